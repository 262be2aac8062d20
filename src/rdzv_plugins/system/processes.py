"""What ``/proc`` tells about processes: about one (proc_pid_stat(5)), and which are whose children.

Most kernels keep a list of children (CONFIG_PROC_CHILDREN): reading it costs the same however many processes there are
on the machine. If there are no such lists, every process is asked for its parent.
"""

from __future__ import annotations

import os
import signal

TYPE_CHECKING = False  # as in ``rdzv_plugins``
if TYPE_CHECKING:
    from collections.abc import Callable

_TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")
LISTED = os.path.exists("/proc/thread-self/children")
"""Whether this kernel has the lists."""


class ProcessStat:
    """A process, or one of its threads, as it was when it was read."""

    __slots__ = ("_fields",)

    def __init__(self, text: str) -> None:
        """``text`` is the file's whole contents. Raises ``IndexError`` if that is not a process's line."""
        self._fields = text.rpartition(")")[2].split()  # the name before may contain any character
        self._fields[19]  # check that everything asked for below is there

    @property
    def state(self) -> str:
        """One letter: R runs, S sleeps, D waits in the kernel uninterruptibly, T stopped, t traced, Z ended."""
        return self._fields[0]

    @property
    def lives(self) -> bool:
        """False if it has ended and only remains to be waited for."""
        return self._fields[0] not in "ZX"

    @property
    def parent(self) -> int:
        """The parent's pid; 0 if the parent is in no namespace of ours."""
        return int(self._fields[1])

    @property
    def session(self) -> int:
        """The pid of the session leader, which may have ended."""
        return int(self._fields[3])

    @property
    def has_terminal(self) -> bool:
        """Whether it has a controlling terminal."""
        return self._fields[4] != "0"

    @property
    def major_faults(self) -> int:
        """How often it had to wait for a page from a file or from swap."""
        return int(self._fields[9])

    @property
    def cpu_s(self) -> float:
        """CPU time so far, user and system: its own, and that of its ended children and all below them that it has
        waited for, as far as they have waited for theirs.
        """
        return sum(map(int, self._fields[11:15])) * _TICK_S

    @property
    def started(self) -> str:
        """When it was started, as counted by the kernel; together with its pid this is unique."""
        return self._fields[19]


def read_stat(pid: int, thread: int | None = None) -> ProcessStat | None:
    """The process, or one of its threads; None if it does not exist or may not be seen."""
    path = f"/proc/{pid}/stat" if thread is None else f"/proc/{pid}/task/{thread}/stat"
    try:
        with open(path, "rb") as file:
            return ProcessStat(file.read().decode(errors="replace"))
    except (OSError, IndexError):
        return None


def all_pids() -> list[int]:
    """The pids of all visible processes of this machine."""
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdecimal()]
    except OSError:
        return []


def read_file(pid: int, name: str) -> bytes:
    """A file of a process below ``/proc``; empty if it may not be read, or the process has ended."""
    try:
        with open(f"/proc/{pid}/{name}", "rb", buffering=0) as file:
            return file.read()
    except OSError:
        return b""


def command(pid: int) -> str:
    """The command line of a process; empty if it cannot be read."""
    return read_file(pid, "cmdline").replace(b"\0", b" ").decode(errors="replace").strip()


def ended_by(code: int) -> str:
    """How a process ended, in words: by its exit code or, if that is negative, by a signal."""
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


def children_now() -> Callable[[int], list[int]]:
    """Return a function from a pid to the pids of its children, to be used at once.

    These include children that have ended and have not been waited for. Processes that start, end or lose their parent
    in the meantime may be missing; to find all, look again until there is nothing new.
    """
    if LISTED:
        return _listed
    found: dict[int, list[int]] = {}
    for pid in all_pids():
        stat = read_stat(pid)
        if stat is not None:
            found.setdefault(stat.parent, []).append(pid)
    return lambda pid: found.get(pid, [])


def _listed(pid: int) -> list[int]:
    """The children listed for each thread: those it has started, and those of threads that have ended."""
    found: list[int] = []
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return found
    for thread in threads:
        try:
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                found += map(int, file.read().split())
        except OSError:  # it has just ended
            continue
    return found
