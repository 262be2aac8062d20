"""Whatever else an agent has started, besides its workers: found by a mark in its environment.

A plug-in may start a process, or a debugger may be at work. None of them is below the keeper, which knows its own
descendants by their parents. A process passes its environment on to what it starts.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable

from rdzv_plugins.linux.children import all_pids
from rdzv_plugins.linux.process_stat import read_stat

VARIABLE = "RDZV_AGENTS"
"""The marks of the agents above a process, the outermost first: a worker may run a launcher of its own."""


class Marked:
    """All processes that carry ``mark``, which is unique on this machine, except this process."""

    def __init__(self, mark: str) -> None:
        assert mark, "else it would be found in every environment"
        self._mark = mark.encode()
        self._spared = {os.getpid()}
        self._sessions = set[int]()

    def spare(self, pid: int) -> None:
        """Leave this process alone from now on."""
        self._spared.add(pid)

    def spare_sessions(self, sessions: Iterable[int]) -> None:
        """Leave these sessions alone from now on, and what will be started in them."""
        self._sessions.update(sessions)

    def signal(self, number: int) -> list[int]:
        """Send a signal to every one of these processes that lives; returns the pids reached."""
        return [pid for pid in all_pids() if pid not in self._spared and self._is_ours(pid) and self._send(pid, number)]

    def _send(self, pid: int, number: int) -> bool:
        """Send a signal to this very process, and to no other that gets its pid meanwhile."""
        try:
            try:
                fd = os.pidfd_open(pid)
            except (AttributeError, PermissionError):  # an old kernel, or a sandbox
                os.kill(pid, number)
                return True
            try:
                ours = self._is_ours(pid)
                if ours:
                    signal.pidfd_send_signal(fd, number)
                return ours
            finally:
                os.close(fd)
        except OSError:  # it has ended
            return False

    def _is_ours(self, pid: int) -> bool:
        if self._mark not in _environment(pid):
            return False
        stat = read_stat(pid)
        return stat is not None and stat.lives and stat.session not in self._sessions


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
