"""What is measured on one connection: latency, and throughput each way.

Blocks grow until one takes a while, and each is acknowledged. What counts is the quickest block, or the rate at which
the kernel has seen them delivered if that is higher: a slow way is slow for all of them and for the kernel, while on a
busy machine processes wait for a processor. The first block of each size is verified by its checksum, so that a way
that changes what it carries is found.
"""

from __future__ import annotations

import socket as sockets
import struct
import time
import zlib

from rdzv_plugins.elastic.trial.sockets import (
    Broken,
    delivered,
    least_latency,
    receive,
    receive_into,
    receive_struct,
    send,
)

_PINGS = 6
_PING = b"rdzvping"
_SMALLEST, _LARGEST = 1 << 14, 1 << 20
_QUICK_S = 0.02
"""While a block takes less than this, the next is twice as large."""
_HEAD = struct.Struct("!IBI")
"""Size, whether the checksum counts, and the checksum. Size 0 marks the end."""
_ACK = struct.Struct("!B")
"""Whether the block has arrived as it was sent."""


async def ask_back(socket: sockets.socket) -> float:
    """The lowest latency in seconds, as the kernel or this process has seen it."""
    best = float("inf")
    for _ in range(_PINGS):
        began = time.perf_counter()
        await send(socket, _PING)
        await receive(socket, len(_PING))
        best = min(best, time.perf_counter() - began)
    return min(best, least_latency(socket) or best)


async def answer(socket: sockets.socket) -> None:
    """Serve as the other end of ``ask_back``."""
    for _ in range(_PINGS):
        await send(socket, await receive(socket, len(_PING)))


async def pour(socket: sockets.socket, seconds: float) -> float:
    """Send blocks for that long; returns bytes per second. Raises ``Broken`` if they arrive changed."""
    data = memoryview(_noise())
    size, best, compared = _SMALLEST, 0.0, 0
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        compare, compared = size > compared, max(size, compared)
        await send(socket, _HEAD.pack(size, compare, zlib.crc32(data[:size]) if compare else 0))
        began = time.perf_counter()
        await send(socket, data[:size])
        (right,) = await receive_struct(socket, _ACK)
        if not right:
            raise Broken("what was sent arrives changed: a checksum differs")
        took = time.perf_counter() - began
        best = max(best, size / took, delivered(socket))
        if took < _QUICK_S and size < _LARGEST:
            size *= 2
    await send(socket, _HEAD.pack(0, 0, 0))
    return best


async def swallow(socket: sockets.socket) -> None:
    """Serve as the other end of ``pour``. Raises ``Broken`` for what makes no sense."""
    buffer = memoryview(bytearray(_LARGEST))
    while True:
        size, compare, checksum = await receive_struct(socket, _HEAD)
        if size == 0:
            return
        if size > _LARGEST:
            raise Broken("it sends what no node of this version does")
        block = await receive_into(socket, buffer[:size])
        await send(socket, _ACK.pack(not compare or zlib.crc32(block) == checksum))


def _noise() -> bytes:
    """Data that no card or driver can compress, and that differs between any two neighbouring parts."""
    import random

    return random.Random(time.perf_counter_ns()).randbytes(_LARGEST)
