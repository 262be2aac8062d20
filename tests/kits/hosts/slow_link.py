"""A link that takes time: ``slow_link.py ONE OTHER SECONDS [RATE]`` hands on what arrives at an interface to the other.

With a RATE it hands on so many bytes in a second each way. Whole frames, in order, so it slows everything that a host
sends and gets, and loses nothing of it. Prints
``ready`` once it does so. For interfaces that no bridge holds.
"""

from __future__ import annotations

import contextlib
import select
import socket
import sys
import time
from collections import deque

_ALL_PROTOCOLS = 3
_SOL_PACKET, _PACKET_VNET_HDR = 263, 15
_OUTGOING = 4
_LARGEST = 1 << 17


def tap(interface: str) -> socket.socket:
    """Everything that arrives there, with what the sender has left to its hardware: checksums, large segments."""
    opened = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ALL_PROTOCOLS))
    opened.setsockopt(_SOL_PACKET, _PACKET_VNET_HDR, 1)
    opened.bind((interface, _ALL_PROTOCOLS))
    opened.setblocking(False)
    return opened


def arrived(source: socket.socket) -> list[bytes]:
    """Frames that have come; what was sent from here is seen too, and left out."""
    found = []
    with contextlib.suppress(OSError):  # no more for now; or the link is down, then what is on the way is lost
        while True:
            frame, (_, _, kind, *_) = source.recvfrom(_LARGEST)
            if kind != _OUTGOING:
                found.append(frame)
    return found


def main() -> None:
    one, other, seconds, *rate = sys.argv[1:]
    per_byte = 1 / float(rate[0]) if rate else 0.0
    taps = tap(one), tap(other)
    free_at = [0.0, 0.0]
    """When each way has sent what it was given."""
    on_the_way: deque[tuple[float, socket.socket, bytes]] = deque()
    print("ready", flush=True)
    while True:
        wait = max(0.0, on_the_way[0][0] - time.monotonic()) if on_the_way else None
        ready, _, _ = select.select(taps, [], [], wait)
        now = time.monotonic()
        for source in ready:
            way = taps.index(source)
            for frame in arrived(source):
                free_at[way] = max(free_at[way], now) + per_byte * len(frame)
                on_the_way.append((free_at[way] + float(seconds), taps[1 - way], frame))
        if per_byte:  # the two ways are not held up by each other
            on_the_way = deque(sorted(on_the_way, key=lambda each: each[0]))
        while on_the_way and on_the_way[0][0] <= time.monotonic():
            _, target, frame = on_the_way.popleft()
            with contextlib.suppress(OSError):  # the link is down, or its queue is full: packets get lost
                target.send(frame)


if __name__ == "__main__":
    main()
