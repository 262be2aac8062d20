"""A way through the network that takes time, but lets everything through: ``relay.py SECONDS PORT=HOST:PORT...``.

What arrives at PORT is passed on to HOST:PORT after SECONDS, and what comes back as well, any amount of it at a
time; so are the ends. Prints ``ready`` once it listens.
"""

from __future__ import annotations

import signal
import socket
import sys
import threading

from rdzv_launcher.bench import _load


def main() -> None:
    delay, *ways = sys.argv[1:]
    for way in ways:
        port, _, target = way.partition("=")
        host, _, target_port = target.rpartition(":")
        family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
        listener = socket.create_server(("", int(port)), family=family, dualstack_ipv6=family == socket.AF_INET6)
        arguments = (listener.detach(), host, int(target_port), float(delay))
        threading.Thread(target=_load.serve_delayed, args=arguments, daemon=True).start()
    print("ready", flush=True)
    signal.pause()


if __name__ == "__main__":
    main()
