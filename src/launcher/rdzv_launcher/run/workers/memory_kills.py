"""Processes of this node that the kernel has killed because memory was short, according to its own counters.

A worker's end by signal 9 does not say who sent the signal. The counter of the memory cgroup in which the workers run
does: ``oom_kill`` in ``memory.events`` (cgroup v2) or ``memory.oom_control`` (v1) grows before the process gets the
signal, and counts kills in that cgroup. Where neither exists, the counter of the machine is used (``/proc/vmstat``).
Linux only.
"""

from __future__ import annotations

from pathlib import Path
from signal import SIGKILL

from msgspec import Struct

from rdzv_plugins.linux.cgroups import directories_of

_KILLS = "oom_kill"
_FILES = {2: ("memory.events", "memory.max"), 1: ("memory.oom_control", "memory.limit_in_bytes")}
"""By version of cgroups: the file with the counter, and the file with the limit."""
_NO_LIMIT = 1 << 60
"""cgroup v1 has no word for "no limit", but uses a number that no machine has."""


class _Counter(Struct, frozen=True):
    """Where the kernel counts, and what the count covers."""

    file: Path
    cgroup: str
    """The cgroup's name; empty for the whole machine."""
    limits: tuple[Path, ...] = ()
    """The files with its limit and those of the cgroups around it, innermost first."""


class MemoryKills:
    """Kills among one generation of workers after another. For one thread."""

    def __init__(self, root: Path = Path("/")) -> None:
        """``root`` is the directory with ``proc``, and with everything that it names."""
        self._counter = _find(root)
        self._before = self._count()

    def begin(self) -> None:
        """Workers are about to be started: what was killed before is not one of them."""
        self._before = self._count()

    def describe(self, exit_code: int) -> str:
        """What the counter says about a worker that ended with this code, as a sentence; empty if it says nothing."""
        counter, count, before = self._counter, self._count(), self._before
        if counter is None or count is None or before is None:
            return ""
        killed = exit_code == -SIGKILL
        if count <= before:
            if not killed or not counter.cgroup:
                return ""
            return (
                "Not by the kernel's out-of-memory killer, whose count for the workers' cgroup has not grown: a person "
                "or a program has sent the signal."
            )
        where = f"cgroup {counter.cgroup}{_limit(counter)}" if counter.cgroup else "this machine"
        if killed and counter.cgroup and count - before == 1:
            return f"The kernel's out-of-memory killer has killed it: {where} had no memory left."
        return (
            f"The kernel's out-of-memory killer has killed {count - before} process(es) of {where} since the workers "
            "were started."
        )

    def _count(self) -> int | None:
        return None if self._counter is None else _read(self._counter.file)


def _read(file: Path) -> int | None:
    """The number of kills, from a file of lines with a name and a number; None if it is not there."""
    try:
        for line in file.read_text().splitlines():
            name, _, number = line.partition(" ")
            if name == _KILLS:
                return int(number)
    except (OSError, ValueError):
        pass
    return None


def _find(root: Path) -> _Counter | None:
    """The counter of the cgroup of this process, which the workers inherit; the machine's if there is none."""
    for version, directory, path in directories_of("memory", root):
        events, limit = _FILES[version]
        if _read(directory / events) is not None:
            above = [each for each in (directory, *directory.parents) if (each / limit).exists()]
            return _Counter(directory / events, path or "/", tuple(each / limit for each in above))
    machine = root / "proc/vmstat"
    return _Counter(machine, "") if _read(machine) is not None else None


def _limit(counter: _Counter) -> str:
    """The tightest of the limits, in words; empty if there is none."""
    limits = []
    for file in counter.limits:
        try:
            limits.append(int(file.read_text()))
        except (OSError, ValueError):  # "max"
            continue
    least = min(limits, default=_NO_LIMIT)
    return f", whose limit is {least / 2**20:.0f} MiB," if least < _NO_LIMIT else ""
