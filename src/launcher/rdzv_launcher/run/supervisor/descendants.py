"""Everything that a process has below it, whatever it did to get away, found by following parent processes.

If the process is a subreaper, nothing can leave it: an orphan gets the subreaper as its parent.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple, Protocol

from rdzv_plugins.system.processes import all_pids, children_now, read_file, read_stat
from rdzv_plugins.system.processes import command as command  # one of the functions of ``Processes``


class Process(NamedTuple):
    """A process, as it was seen. Its pid alone may belong to another process a moment later."""

    pid: int
    parent: int
    session: int
    started: str
    lives: bool = True
    state: str = "R"
    """As in /proc/PID/stat."""


class Processes(Protocol):
    """The functions of this module, for those who are given them: the processes of a machine."""

    def look(self, pid: int) -> Process | None: ...
    def children(self, parent: int) -> list[Process]: ...
    def descendants(self, roots: Collection[int]) -> list[Process]: ...
    def send(self, process: Process, number: int) -> bool: ...
    def kill(self, roots: Collection[int]) -> list[int]: ...
    def command(self, pid: int) -> str: ...


def look(pid: int) -> Process | None:
    """Look at a process; None if it does not exist. A zombie does not count as living."""
    stat = read_stat(pid)
    return None if stat is None else Process(pid, stat.parent, stat.session, stat.started, stat.lives, stat.state)


def children(parent: int) -> list[Process]:
    """All children of ``parent``, including those that have ended and have not been waited for."""
    return _children(parent, children_now())


def descendants(roots: Collection[int], spared: Collection[int] = ()) -> list[Process]:
    """All that live below ``roots``, without the roots. ``spared`` processes are left out, but not what is below them.

    A process that loses its parent during the search may be missed: only if two searches in a row find nothing is there
    nothing.
    """
    pids_of = children_now()
    found: list[Process] = []
    below = [process for root in roots if (process := look(root)) is not None]
    while below:
        parent = below.pop()
        its_own = _children(parent.pid, pids_of)
        # otherwise the parent's number belongs to another process by now, and so do these children
        if its_own and (now := look(parent.pid)) is not None and now.started == parent.started:
            below += its_own
            found += (each for each in its_own if each.lives and each.pid not in spared)
    return found


def send(process: Process, number: int) -> bool:
    """Send a signal to this very process, and to no other that has its pid now. False if it is gone."""
    try:
        try:
            fd = os.pidfd_open(process.pid)
        except (AttributeError, PermissionError):  # an old kernel, or a sandbox
            os.kill(process.pid, number)
            return True
        try:
            now = look(process.pid)
            if now is None or not now.lives or now.started != process.started:
                return False
            signal.pidfd_send_signal(fd, number)
            return True
        finally:
            os.close(fd)
    except OSError:
        return False


def kill(roots: Collection[int]) -> list[int]:
    """Send SIGKILL to all that live below ``roots`` now; returns their pids. Repeat until there are none."""
    found = descendants(roots)
    for process in found:
        send(process, signal.SIGKILL)
    return [process.pid for process in found]


def _children(parent: int, pids_of: Callable[[int], list[int]]) -> list[Process]:
    found = (look(pid) for pid in pids_of(parent))
    return [each for each in found if each is not None and each.parent == parent]


# Whatever else an agent has started, besides its workers: found by a mark in its environment.
#
# A plug-in may start a process, or a debugger may be at work. None of them is below the supervisor, which knows its own
# descendants by their parents. A process passes its environment on to what it starts.

VARIABLE = "RDZV_AGENTS"
"""The marks of the agents above a process, the outermost first: a worker may run a launcher of its own."""


class ProcessTag:
    """All processes that carry ``mark``, which is unique on this machine, except this process."""

    def __init__(self, mark: str) -> None:
        assert mark, "else it would be found in every environment"
        self._mark = mark.encode()
        self._spared = {os.getpid()}
        self._sessions = set[int]()

    def spare(self, pid: int) -> None:
        self._spared.add(pid)

    def spare_sessions(self, sessions: Iterable[int]) -> None:
        """Leave these sessions alone from now on, and what will be started in them."""
        self._sessions.update(sessions)

    def signal(self, number: int) -> list[int]:
        """Send a signal to every one of these processes that lives; returns the pids reached."""
        return [pid for pid in all_pids() if pid not in self._spared and self._send(pid, number)]

    def _send(self, pid: int, number: int) -> bool:
        if self._mark not in read_file(pid, "environ"):
            return False
        found = look(pid)
        if found is None or not found.lives or found.session in self._sessions:
            return False
        # once more: the number may have passed to another, and ``send`` reaches only the one that was looked at
        return self._mark in read_file(pid, "environ") and send(found, number)


def mark_children(mark: str) -> None:
    """Mark all processes started from now on with ``mark``, in addition to the marks of this process."""
    os.environ[VARIABLE] = ":".join(filter(None, (os.environ.get(VARIABLE, ""), mark)))
