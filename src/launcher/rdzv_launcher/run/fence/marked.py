"""Everything that an agent has started, however it was started: found by a mark in its environment, or its session.

A process hands its environment down to what it starts, so a data loader, a daemon and a daemon's child carry the mark
of the agent above them, whatever they did to get away from its process group. Who starts with an empty environment is
found by its session, as long as that is one of a worker. The guardian uses this file.
"""

from __future__ import annotations

import os
import signal

from rdzv_plugins.linux.children import all_pids
from rdzv_plugins.linux.process_stat import read_stat

VARIABLE = "RDZV_AGENTS"
"""The marks of the agents above a process, the outermost first: a worker may run a launcher of its own."""


HAS_PROC = os.path.exists("/proc/self/environ")
"""Without it (macOS) only the process groups of the workers are known."""


class Marked:
    """All processes that carry ``mark``, which is unique on this machine. Thread-safe.

    ``keep``: processes that are never touched, though they may carry it.
    """

    def __init__(self, mark: str, keep: frozenset[int] = frozenset()) -> None:
        self._mark = mark.encode()
        self._keep = keep | {os.getpid()}
        self._sessions: dict[int, str] = {}

    def add_session(self, leader: int) -> None:
        """Whatever is in the session of ``leader``, a worker that lives, is meant, too."""
        self._sessions[leader] = _started(leader)

    def forget_sessions(self) -> None:
        """The workers have ended, and their numbers may be given to others."""
        self._sessions.clear()

    def spare(self, pid: int) -> None:
        """This process is not touched from now on."""
        self._keep |= {pid}

    def signal_sessions(self, number: int) -> None:
        """Send a signal to the workers' process groups. At once: nothing is looked for."""
        for leader, started in list(self._sessions.items()):
            if _started(leader) == started:
                try:
                    os.killpg(leader, number)
                except OSError:  # it has ended
                    continue

    def signal(self, number: int, *, sessions_only: bool = False) -> list[int]:
        """Send a signal to everything that lives; returns to whom.

        ``sessions_only``: to what is in the workers' sessions, and not to what has left them (a daemon).
        """
        sent = []
        for pid in all_pids():
            if pid not in self._keep and self._is_ours(pid, sessions_only):
                try:
                    if self._send(pid, number, sessions_only):
                        sent.append(pid)
                except OSError:  # it has ended
                    continue
        if not HAS_PROC:
            self.signal_sessions(number)
        return sent

    def living(self) -> list[int]:
        """The pids of the marked processes that are left."""
        return [pid for pid in all_pids() if pid not in self._keep and self._is_ours(pid, sessions_only=False)]

    def _send(self, pid: int, number: int, sessions_only: bool) -> bool:
        """Send a signal to this very process, and to no other one that gets its number meanwhile."""
        try:
            fd = os.pidfd_open(pid)
        except (AttributeError, PermissionError):  # an old kernel, a sandbox
            os.kill(pid, number)
            return True
        try:
            ours = self._is_ours(pid, sessions_only)
            if ours:
                signal.pidfd_send_signal(fd, number)
            return ours
        finally:
            os.close(fd)

    def _is_ours(self, pid: int, sessions_only: bool) -> bool:
        stat = read_stat(pid)
        if stat is None or not stat.lives:
            return False
        started = self._sessions.get(stat.session)
        # a number is not given anew while a session has it: who leads it now, if anybody does, is who led it then
        if started is not None and _started(stat.session) in (started, ""):
            return True
        return not sessions_only and self._mark in _environment(pid)


def mark_children(mark: str) -> None:
    """Mark all processes started from now on with ``mark``, in addition to the marks of this process."""
    os.environ[VARIABLE] = ":".join(filter(None, (os.environ.get(VARIABLE, ""), mark)))


def _environment(pid: int) -> bytes:
    """The environment that a process was started with; empty if it may not be read."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return file.read()
    except OSError:
        return b""


def _started(pid: int) -> str:
    """When it was started; empty when there is no such process."""
    stat = read_stat(pid)
    return stat.started if stat is not None and stat.state != "X" else ""
