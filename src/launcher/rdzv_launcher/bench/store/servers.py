"""The servers that ``rdzv bench store`` compares, each in a process of its own.

``python -m rdzv_launcher.bench.store.servers KIND [THREADS [CONF]]`` is one. It serves on a free port, prints the port,
and ends with its standard input, so nothing is left behind if the process that started it is killed.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from rdzv_launcher.bench.processes.child import Child, module_command
from rdzv_launcher.bench.processes.closed import OPEN, of_server
from rdzv_plugins.errors import UsageError
from rdzv_plugins.kvstore.native.limits import raise_file_limit

_START_LIMIT_S = 120.0
_SETTLE_LIMIT_S = 20.0
_QUIET_S = 0.02


@dataclass(frozen=True)
class StoreTarget:
    """A kind of server; ``ours:2`` is ours with two threads."""

    server: str
    closed: str = ""
    """How our server keeps strangers out, as in ``closed.WAYS``; empty: not at all."""

    @property
    def name(self) -> str:
        """Its name in figures and charts."""
        return f"{self.server}, {self.closed}" if self.closed else self.server

    @property
    def kind(self) -> str:
        return self.server.partition(":")[0]

    @property
    def threads(self) -> int:
        """The number of event loops of our server; 0: its default."""
        return int(self.server.partition(":")[2] or 0)

    @property
    def echo(self) -> bool:
        return self.kind == "echo"

    @property
    def reference(self) -> bool:
        """Whether others are compared with it."""
        return self.kind != "ours"

    @property
    def looks_up_names(self) -> bool:
        """Whether it looks up the name of every peer that it accepts."""
        return self.kind in ("libuv", "legacy")


KINDS = {
    "ours": "our server, with its default number of threads; ours:N with N",
    "libuv": "torch's TCPStore server",
    "legacy": "torch's older server (use_libuv=False)",
    "echo": "a bare epoll loop: one recv and one send for each message of the same size, and nothing else",
}


def parse_target(text: str) -> StoreTarget:
    """A target by its name. Raises ``UsageError``."""
    kind, colon, threads = text.partition(":")
    if kind not in KINDS or (colon and (kind != "ours" or not threads.isdecimal() or int(threads) < 1)):
        raise UsageError(f"--targets: '{text}' is none of {', '.join(KINDS)}, ours:N")
    return StoreTarget(text)


class StoreProcess(Child):
    """A running server. A context manager: it is stopped at the end of the block."""

    def __init__(self, target: StoreTarget, prefix: list[str], conf: Mapping[str, str] = OPEN) -> None:
        """``prefix`` goes before its command; ``conf`` is from ``closed.conf_of``. Returns at once, see ``start``."""
        self.target, self.conf = target, conf
        super().__init__(
            f"the server '{target.name}'",
            [*prefix, *module_command("store.servers", target.kind, str(target.threads), json.dumps(dict(conf)))],
            end_limit_s=0.5,
            # otherwise torch's messages about every reset connection would count as its CPU time
            environment={"TORCH_CPP_LOG_LEVEL": "ERROR", **os.environ},
        )
        self.port = 0

    def start(self) -> None:
        """Wait until it serves at ``port``. Raises ``RdzvError`` with its last words if it does not."""
        self.port = int(self.wait_ready(_START_LIMIT_S))

    def settled_cpu_seconds(self) -> float:
        """CPU time so far, once the server has nothing left to do (or keeps being busy)."""
        end = time.monotonic() + _SETTLE_LIMIT_S
        before = self.own_cpu_seconds()
        while True:
            time.sleep(_QUIET_S)
            now = self.own_cpu_seconds()
            if now - before < _QUIET_S / 50 or time.monotonic() > end:
                return now
            before = now


_Server = tuple[int, object]
"""The port, and what has to be kept alive."""


def _ours(threads: int, conf: Mapping[str, str]) -> _Server:
    from rdzv_plugins.kvstore.native.server import StoreServer

    tokens, tls = of_server(conf)
    server = StoreServer("127.0.0.1", threads=threads, tokens=tokens, tls=tls)
    return server.port, server


def _torch(*, use_libuv: bool) -> _Server:
    from datetime import timedelta

    from torch.distributed import TCPStore

    store = TCPStore(
        "127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=60), wait_for_workers=False, use_libuv=use_libuv
    )
    return store.port, store


def _echo() -> _Server:
    from rdzv_launcher.bench import _load

    listener = socket.create_server(("127.0.0.1", 0), backlog=2**16)  # the kernel caps it at somaxconn
    threading.Thread(target=_load.serve_echo, args=(listener.fileno(),), daemon=True).start()
    return int(listener.getsockname()[1]), listener


_SERVE: dict[str, Callable[[int, Mapping[str, str]], _Server]] = {
    "ours": _ours,
    "libuv": lambda threads, conf: _torch(use_libuv=True),
    "legacy": lambda threads, conf: _torch(use_libuv=False),
    "echo": lambda threads, conf: _echo(),
}


def main() -> None:
    """Serve until standard input ends."""
    raise_file_limit()
    kind, threads = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 0
    conf = json.loads(sys.argv[3]) if len(sys.argv) > 3 else {}
    port, _kept = _SERVE[kind](threads, conf)
    print(port, flush=True)
    sys.stdin.buffer.read()
    os._exit(0)  # no tidying up of thousands of connections


if __name__ == "__main__":
    main()
