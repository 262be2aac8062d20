"""One server of the comparison, in a process of its own: ``python -m launcher.bench.store_server KIND [THREADS]``.

It serves on a free port, prints the port, and ends with its standard input: nothing is left behind if
whoever started it is killed.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections.abc import Callable

from rdzv_plugins.kvstore.limits import raise_file_limit

_Server = tuple[int, object]
"""The port, and what has to be kept alive."""


def _ours(threads: int) -> _Server:
    from rdzv_plugins.kvstore.server import StoreServer

    server = StoreServer("127.0.0.1", threads=threads)
    return server.port, server


def _torch(*, use_libuv: bool) -> _Server:
    from datetime import timedelta

    from torch.distributed import TCPStore

    store = TCPStore(
        "127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=60), wait_for_workers=False, use_libuv=use_libuv
    )
    return store.port, store


def _echo() -> _Server:
    from launcher.bench import _load

    listener = socket.create_server(("127.0.0.1", 0), backlog=2**16)  # the kernel caps it at somaxconn
    threading.Thread(target=_load.serve_echo, args=(listener.fileno(),), daemon=True).start()
    return int(listener.getsockname()[1]), listener


_KINDS: dict[str, Callable[[int], _Server]] = {
    "ours": _ours,
    "libuv": lambda _: _torch(use_libuv=True),
    "legacy": lambda _: _torch(use_libuv=False),
    "echo": lambda _: _echo(),
}


def main() -> None:
    """Serve until standard input ends."""
    raise_file_limit()
    kind, threads = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 0
    port, _kept = _KINDS[kind](threads)
    print(port, flush=True)
    sys.stdin.buffer.read()
    os._exit(0)  # no tidying up of thousands of connections


if __name__ == "__main__":
    main()
