"""A server as a child of the tests: what a harness needs for a service that the nodes only dial.

``start``, ``kill`` and ``start_again`` as the suite wants them, and the certainty that the server is gone with the
tests: if they are killed themselves, the kernel ends it.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rdzv_plugins.errors import RdzvError

_START_S = 60.0
_END_S = 30.0
_POLL_S = 0.02
_LAST_LINES = 12

# Linux' PR_SET_PDEATHSIG is 1. It outlives exec: nothing has to run between fork and exec in the tests' process.
_ENDS_WITH_PARENT = (
    "import ctypes, os, signal, sys\n"
    "ctypes.CDLL(None).prctl(1, signal.SIGKILL)\n"
    "if os.getppid() != int(sys.argv[1]): sys.exit(1)\n"
    "os.execvp(sys.argv[2], sys.argv[2:])\n"
)


class ServerProcess:
    """One process on loopback that serves; a ``Service``. For one thread, which has to outlive the server.

    ``start`` starts it, ``kill`` ends it for good unless ``start_again`` follows.
    """

    def __init__(
        self,
        command: Sequence[str],
        port: int,
        *,
        log: Path,
        keeps_data: bool,
        environment: Mapping[str, str] | None = None,
        ready: Callable[[], bool] | None = None,
    ) -> None:
        """``command`` runs in the foreground and serves ``port`` of 127.0.0.1; its output goes to the end of ``log``.

        ``environment``: all its variables, this process's if left out. ``ready`` says whether it answers; without it,
        it is ready when it accepts a connection.
        """
        self.port = port
        self._command = list(command)
        self._log = log
        self._keeps_data = keeps_data
        self._environment = environment
        self._ready = ready or self._accepts
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pids(self) -> tuple[int, ...]:
        """Its process, if it runs."""
        return (self._process.pid,) if self._process is not None and self._process.poll() is None else ()

    @property
    def keeps_data(self) -> bool:
        """As given."""
        return self._keeps_data

    def start(self) -> None:
        """Start it, and return when it answers. Raises ``RdzvError`` with its last words if it does not."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-S", "-E", "-c", _ENDS_WITH_PARENT, str(os.getpid()), *self._command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=None if self._environment is None else dict(self._environment),
                start_new_session=True,  # Ctrl-C is for the tests, which then end it
            )
        deadline = time.monotonic() + _START_S
        while not self._ready():
            ended = self._process.poll() is not None
            if ended or time.monotonic() > deadline:
                why = f"ended with code {self._process.returncode}" if ended else f"did not answer for {_START_S:g} s"
                self.kill()
                raise RdzvError(f"{self._command[0]} {why}{self._last_words()}", remedy="Its own output says why.")
            time.sleep(_POLL_S)  # there is no event for "it answers"

    def kill(self) -> None:
        """SIGKILL; returns when it has ended. Harmless when it does not run."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(_END_S)

    def start_again(self) -> None:
        """The same command, after ``kill``; returns when it answers."""
        self.start()

    def _accepts(self) -> bool:
        with socket.socket() as probe:
            probe.settimeout(_END_S)
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def _last_words(self) -> str:
        lines = self._log.read_text(errors="replace").strip().splitlines()[-_LAST_LINES:]
        return "".join(f"\n  | {line}" for line in lines)
