"""A server as a child of the tests: what a harness needs for a service that the nodes only dial.

It has ``start``, ``kill`` and ``start_again`` as the suite wants them, and the server is certain to be gone with the
tests: if they are killed themselves, the kernel ends it. (It ends the process of the command. If that is a script that
starts the server, have it end with ``exec``.)
"""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import rdzv_plugins
from rdzv_plugins.errors import RdzvError
from rdzv_plugins.system.processes import all_pids, children_now, read_stat
from rdzv_plugins.testing.processes import kill, marked

_START_S = 60.0
_END_S = 30.0
_POLL_S = 0.02
_LAST_LINES = 12
_MARK = "RDZV_SERVER"

# it outlives exec: nothing has to run between fork and exec in the tests' process
_ENDS_WITH_PARENT = (
    "import os, sys\n"
    "sys.path.append(sys.argv[1])\n"
    "from rdzv_plugins.system import prctl\n"
    "if not prctl.die_with_parent(int(sys.argv[2])): sys.exit(1)\n"
    "os.execvp(sys.argv[3], sys.argv[3:])\n"
)
_ROOT = str(Path(rdzv_plugins.__path__[0]).parent)


class ServerProcess:
    """A server on loopback, with all processes that it starts; a ``Service``. Use it from one thread that outlives it.

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
        """``command`` runs in the foreground and serves ``port`` of 127.0.0.1; its output is appended to ``log``.

        ``environment`` has all its variables; if left out, it has those of this process. ``ready`` tells whether it
        answers; without it, the server is ready when it accepts a connection.
        """
        self.port = port
        self._command = list(command)
        self._log = log
        self.keeps_data = keeps_data
        """Whether its keys are still there after ``kill`` and ``start_again``."""
        self._environment = environment
        self._ready = ready or self._accepts
        self._process: subprocess.Popen[bytes] | None = None
        self._mark = secrets.token_hex(16)

    @property
    def pids(self) -> tuple[int, ...]:
        """The pids of its process, if it runs, and of all that it has started, in whatever sessions and below whom."""
        if self._process is None:
            return ()
        session = self._process.pid
        in_session = {pid for pid in all_pids() if (stat := read_stat(pid)) is not None and stat.session == session}
        own = [*in_session.union(marked(self._mark, variable=_MARK))]  # what it has started has it, also as a daemon
        children = children_now()
        for pid in own:  # those found here are looked at in their turn
            own += [child for child in children(pid) if child not in own]
        return tuple(pid for pid in own if (stat := read_stat(pid)) is not None and stat.lives)

    def start(self) -> None:
        """Start it, and return when it answers. Raises ``RdzvError`` with its last words if it does not.

        Also raises it if somebody else already serves its port: the tests would talk to that one.
        """
        assert not self.pids, f"{self._command[0]} runs already: kill it first"
        self.kill()  # one that has ended by itself was not waited for yet
        if self._accepts():
            raise RdzvError(
                f"{self._command[0]} was not started: another process uses 127.0.0.1:{self.port} "
                "(Address already in use)",
                remedy="Choose another port (free_port()), or end that process.",
            )
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-S", "-E", "-c", _ENDS_WITH_PARENT, _ROOT, str(os.getpid()), *self._command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**(os.environ if self._environment is None else self._environment), _MARK: self._mark},
                start_new_session=True,  # Ctrl-C is for the tests, which then end it
            )
        deadline = time.monotonic() + _START_S
        process = self._process
        while True:
            ready = self._ready()
            # checked afterwards: it may be somebody else that answers; and not reaped, which would give its number away
            ended = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
            if ready and not ended:
                return
            if ended or time.monotonic() > deadline:
                self.kill()
                why = f"ended with code {process.returncode}" if ended else f"did not answer for {_START_S:g} s"
                raise RdzvError(f"{self._command[0]} {why}{self._last_words()}", remedy="See its output.")
            time.sleep(_POLL_S)  # there is no event for "it answers"

    def kill(self) -> None:
        """Kill all its processes with SIGKILL; returns when they have ended. Harmless if none is running."""
        if self._process is None:
            return
        deadline = time.monotonic() + _END_S
        while running := self.pids:  # one may just have started another
            if time.monotonic() > deadline:
                raise RdzvError(f"processes {running} of a server are still running {_END_S:g} s after SIGKILL")
            for pid in running:
                kill(pid)
            time.sleep(_POLL_S / 4)
        self._process.wait(_END_S)  # not before: until then no other session can get its number
        self._process = None

    def start_again(self) -> None:
        self.start()

    def _accepts(self) -> bool:
        with socket.socket() as probe:
            probe.settimeout(_END_S)
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def _last_words(self) -> str:
        lines = self._log.read_text(errors="replace").strip().splitlines()[-_LAST_LINES:]
        return "".join(f"\n  | {line}" for line in lines)
