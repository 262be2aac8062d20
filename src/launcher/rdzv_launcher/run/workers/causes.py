"""What is known of the cause of a worker's end, beyond its exit code: memory, or imports."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from signal import SIGKILL

from msgspec import Struct

from rdzv_plugins.system.cgroups import directories_of

# Reads the end of a worker's stderr: which exception ended it, where, and whether that was while it imported.
#
# The text is the interpreter's, but a script may have changed or cut it: anything not in the interpreter's format
# counts as unknown.

_HEAD = "Traceback (most recent call last):"
_FRAME = r'^[\s|]*File "(?P<file>[^"]+)", line (?P<line>\d+)(?:, in (?P<function>.+))?$'
_EXCEPTION = r"^(?P<name>[A-Za-z_][\w.]*)(?:: .*)?$"
_IMPORT = r"^\s*(?:import|from)\s"
_NO_PROGRAM = r"^\S*python[\d.]*: (?:can't (?:open file|find '__main__')|No module named |Error while finding )"
_OF_IMPORTS = frozenset({"ImportError", "ModuleNotFoundError", "SyntaxError", "IndentationError", "TabError"})
_OF_THE_TEXT = _OF_IMPORTS | {"NameError"}
_MODULE = "<module>"


class LastTraceback(Struct, frozen=True):
    """The last traceback on a worker's stderr."""

    exception: str
    """The name of its class, as printed; empty if the interpreter has refused to begin."""
    place: str
    """Where it was raised, such as ``/job/train.py:3``; empty if the interpreter has refused to begin."""
    importing: bool
    """It was raised while the script imported its modules, or there was no script to run."""

    @property
    def is_of_the_text(self) -> bool:
        """Whether the program's text, or what is installed, is at fault: the same program raises it every time."""
        return self.exception in _OF_THE_TEXT


def read_traceback(lines: Sequence[str]) -> LastTraceback | None:
    """The last traceback among the last lines of a worker's stderr; None if there is none that can be read."""
    if lines and re.match(_NO_PROGRAM, lines[-1]):
        return LastTraceback("", "", importing=True)
    heads = [number for number, line in enumerate(lines) if line.strip(" |") == _HEAD]
    frames = [(number, found) for number, line in enumerate(lines) if (found := re.match(_FRAME, line))]
    if not frames:
        return None
    last, frame = frames[-1]
    name = next((found["name"] for line in lines[last + 1 :] if (found := re.match(_EXCEPTION, line))), "")
    if not name:
        return None
    whole = bool(heads) and heads[-1] < last
    own = [each for each in frames if not whole or each[0] > heads[-1]]
    own = [(number, found) for number, found in own if not _is_interpreters(found)] or own
    return LastTraceback(name, f"{frame['file']}:{frame['line']}", _is_of_imports(lines, own, name, whole))


def _is_interpreters(frame: re.Match[str]) -> bool:
    """Whether the frame is of the code that runs a script by ``-m``, which is frozen from Python 3.11 on."""
    return frame["file"].startswith("<frozen ") or (
        frame["file"].endswith("/runpy.py") and frame["function"] in ("_run_module_as_main", "_run_code")
    )


def _is_of_imports(lines: Sequence[str], frames: list[tuple[int, re.Match[str]]], name: str, whole: bool) -> bool:
    """``frames`` are the available frames of the traceback; ``whole``: it is complete, including its beginning."""
    number, first = frames[0]
    if whole and first["function"] == _MODULE and re.match(_IMPORT, "".join(lines[number + 1 : number + 2])):
        return True
    # either the script itself cannot be compiled, and there is no traceback; or its beginning is cut off
    return (
        not (whole and len(frames) > 1)
        and name in _OF_IMPORTS
        and all(found["function"] in (_MODULE, None) for _, found in frames)
    )


# Processes of this node that the kernel has killed because memory was short, according to its own counters.
#
# A worker's end by signal 9 does not say who sent the signal. The counter of the memory cgroup in which the workers run
# does: ``oom_kill`` in ``memory.events`` (cgroup v2) or ``memory.oom_control`` (v1) grows before the process gets the
# signal, and counts kills in that cgroup. Where neither exists, the counter of the machine is used (``/proc/vmstat``).
# Linux only.

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


class OomKills:
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
                "Not by the kernel's out-of-memory killer: its count for the workers' cgroup has not grown. A person "
                "or a program sent the signal."
            )
        where = f"cgroup {counter.cgroup}{_limit(counter)}" if counter.cgroup else "this machine"
        if killed and counter.cgroup and count - before == 1:
            return f"The kernel's out-of-memory killer killed it: {where} ran out of memory."
        killed_now = f"{count - before} process(es) of {where} since the start of the workers"
        return f"The kernel's out-of-memory killer killed {killed_now}."

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


def cause_of(exit_code: int, stderr: Sequence[str], kills: OomKills) -> str:
    """A sentence for people; empty if nothing more is known. ``stderr``: the last lines of the worker's stderr."""
    if killed := kills.describe(exit_code):
        return killed
    found = read_traceback(stderr) if exit_code > 0 else None
    if found is None or not found.importing:
        return ""
    what = f"{found.exception} at {found.place}" if found.place else "the interpreter found no program"
    return f"It failed while importing its modules: {what}."
