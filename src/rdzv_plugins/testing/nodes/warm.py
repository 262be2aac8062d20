"""The program that forks the processes of nodes, as the tests see it: one for all tests of a process."""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from typing import Any

START_S = 180.0
"""More than importing torch takes on a machine that is busy with other things."""
_READ_AT_START = ("LD_", "PYTHONHASHSEED", "PYTHONMALLOC", "TORCH", "OMP_", "MALLOC_", "RDZV_DEBUG", "GRPC_")
"""How the names begin of variables that must be there when the interpreter starts, or a library is imported."""


class Warm:
    """The program. Thread-safe: one request at a time."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._lock = threading.Lock()
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "rdzv_plugins.testing.nodes.process", str(theirs.fileno())],
                env={**os.environ, **environment, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,  # Ctrl-C is for the tests, which then end their nodes
            )
        self._ready = False
        atexit.register(self.close)

    def fork(self, job: Mapping[str, Any], connection: socket.socket, output: int) -> int:
        """A new process that runs ``job``; returns its pid. ``connection`` and ``output`` go to it."""
        with self._lock:
            self._wait_ready()
            socket.send_fds(self._control, [json.dumps(job).encode()], [connection.fileno(), output])
            return int(self._answer(START_S))

    def wait(self, pid: int, timeout: float) -> int | None:
        """The exit code of a node's process, once; None if it has not ended within ``timeout`` seconds."""
        with self._lock:
            self._control.send(json.dumps({"wait": pid, "timeout": timeout}).encode())
            code: int | None = self._answer(timeout + START_S)
            return code

    def close(self) -> None:
        """End it, and all nodes with it."""
        atexit.unregister(self.close)
        self._control.close()
        try:
            self._process.wait(START_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    @property
    def alive(self) -> bool:
        """Whether it can still be asked for nodes."""
        return self._process.poll() is None

    def _wait_ready(self) -> None:
        if not self._ready:
            self._answer(START_S)
            self._ready = True

    def _answer(self, timeout: float) -> Any:
        ready = select.select([self._control], [], [], timeout)[0]
        answer = self._control.recv(1 << 16) if ready else b""
        if not answer:
            raise RuntimeError(
                f"the process that forks nodes (pid {self._process.pid}) "
                + ("has ended, see its output above" if ready else f"has not answered for {timeout:g} s")
            )
        return json.loads(answer)


def warm(environment: Mapping[str, str]) -> Warm:
    """The one for nodes with these variables; it is started at the first use, and ends with this process.

    If it has died, another one: its nodes are lost, not those of all later tests.
    """
    early = {name: value for name, value in environment.items() if name.startswith(_READ_AT_START)}
    key = os.getpid(), tuple(sorted(early.items()))  # a fork of this process has none yet
    if key not in _warm or not _warm[key].alive:
        _warm[key] = Warm(early)
    return _warm[key]


_warm: dict[tuple[int, tuple[tuple[str, str], ...]], Warm] = {}


def kill(pid: int) -> None:
    """Kill a node's process, which has not been waited for, with SIGKILL."""
    os.kill(pid, signal.SIGKILL)
