"""What stands between the nodes of ``rdzv bench rendezvous`` and their service, each in a process of its own.

``python -m launcher.bench.rendezvous_parts ROLE TASK``: a ``server`` (a native store, as by ``rdzv serve``) or a
``relay`` that takes its time. It prints its port and ends with its standard input: nothing is left behind if whoever
started it is killed.
"""

from __future__ import annotations

import json
import os
import selectors
import socket
import subprocess
import sys
import tempfile
import threading
from contextlib import nullcontext
from dataclasses import asdict
from types import TracebackType
from typing import Any

from launcher.bench.ends import end_by_input, tail
from launcher.bench.tiered_network import Machine, inside
from rdzv_plugins.errors import RdzvError
from rdzv_plugins.kvstore.limits import raise_file_limit

_START_S = 120.0
_END_S = 5.0
_BACKLOG = 2**16
"""The kernel caps it at somaxconn."""


class Part:
    """One of them. A context manager: it serves ``port`` from the beginning of the block to its end."""

    def __init__(self, role: str, machine: Machine, **task: Any) -> None:
        """``machine``: where it is. A relay's ``task``: ``host``, ``port``, ``delay_s`` one way, ``there`` (dials)."""
        self._role, self.machine = role, machine
        self._task = {"machine": asdict(machine), **task}
        self.port = 0
        self.pid = 0

    def __enter__(self) -> Part:
        """Raises ``RdzvError`` with its last words if it does not start."""
        self._stderr = tempfile.TemporaryFile("w+")
        command = [sys.executable, "-m", "launcher.bench.rendezvous_parts", self._role, json.dumps(self._task)]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=self._stderr, text=True, start_new_session=True
        )
        self.pid = self._process.pid
        assert self._process.stdout is not None, "started with a pipe"
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            line = self._process.stdout.readline() if selector.select(_START_S) else ""
        if not line.strip():
            words = tail(self._stderr)
            self.__exit__(None, None, None)
            raise RdzvError(f"the {self._role} of the benchmark did not start{words}")
        self.port = int(line)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        end_by_input(self._process, _END_S)
        self._stderr.close()


def _serve(machine: Machine) -> tuple[int, object]:
    from rdzv_plugins.kvstore.server import StoreServer

    with inside(machine):
        server = StoreServer("0.0.0.0" if machine.network else machine.address)
    return server.port, server


def _relay(machine: Machine, host: str, port: int, delay_s: float, there: bool) -> tuple[int, object]:
    from launcher.bench import _load

    with inside(machine):
        listener = socket.create_server(("0.0.0.0" if machine.network else machine.address, 0), backlog=_BACKLOG)
    with inside(machine) if there else nullcontext():
        threading.Thread(target=_load.serve_delayed, args=(listener.fileno(), host, port, delay_s), daemon=True).start()
    return int(listener.getsockname()[1]), listener


def main() -> None:
    """Serve until standard input ends."""
    raise_file_limit()
    task = json.loads(sys.argv[2])
    machine = Machine(**task.pop("machine"))
    port, _kept = _serve(machine) if sys.argv[1] == "server" else _relay(machine, **task)
    print(port, flush=True)
    sys.stdin.buffer.read()
    os._exit(0)


if __name__ == "__main__":
    main()
