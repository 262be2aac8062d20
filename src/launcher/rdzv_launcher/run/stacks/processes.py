"""What the kernel says of processes: state, wait channel, command, children. Linux (/proc)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_COMMAND = 200


@dataclass(frozen=True)
class Process:
    """One process, as it was a moment ago."""

    pid: int
    parent: int
    state: str
    """A letter: R runs, S sleeps, D waits in the kernel uninterruptibly, T stopped, t traced, Z ended."""
    wait_channel: str
    """The function of the kernel in which it waits, empty if that is not known."""
    command: str

    @property
    def stands_still(self) -> bool:
        """A debugger's stop would never be answered: it is stopped already, or does not come out of the kernel."""
        return self.state in "TtD"


def name_of(pid: int) -> str:
    """What the kernel calls the process; empty if there is none."""
    return _read(pid, "comm").strip()


def look(pid: int) -> Process | None:
    """The process, None if there is none."""
    fields = _stat(pid)
    if not fields:
        return None
    channel = _read(pid, "wchan").strip()
    command = " ".join(filter(None, _read(pid, "cmdline").split("\0")))
    return Process(pid, int(fields[1]), fields[0], channel if channel != "0" else "", command[:_COMMAND])


def is_there(process: Process | None) -> bool:
    """Whether it has not ended."""
    return process is not None and process.state not in "ZX"


def environment(pid: int) -> dict[str, str]:
    """The variables with which a process was started; empty if they may not be read."""
    pairs = (each.partition("=") for each in _read(pid, "environ").split("\0"))
    return {name: value for name, _, value in pairs if name}


def all_pids() -> list[int]:
    """Every process of this machine that can be seen."""
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdecimal()]
    except OSError:
        return []


def families() -> dict[int, list[int]]:
    """The children of each process that has any."""
    found: dict[int, list[int]] = {}
    for pid in sorted(all_pids()):
        fields = _stat(pid)
        if fields:
            found.setdefault(int(fields[1]), []).append(pid)
    return found


def below(pid: int, family: Mapping[int, list[int]]) -> list[int]:
    """All that have come from ``pid``: children, their children, and so on."""
    found, left = [], list(family.get(pid, ()))
    while left:
        each = left.pop(0)
        found.append(each)
        left += family.get(each, ())
    return found


def is_python(pid: int) -> bool | None:
    """Whether it has a Python interpreter in it; None if that cannot be seen."""
    try:
        maps = Path(f"/proc/{pid}/maps").read_text(errors="replace")
    except OSError:
        return None
    names = {os.path.basename(line.split(None, 5)[5]) for line in maps.splitlines() if line.count("/") > 1}
    return any(name.startswith(("python", "libpython", "pypy", "libpypy")) for name in names) if names else None


def catches(pid: int, number: int) -> bool:
    """Whether the process has a handler for signal ``number``."""
    for line in _read(pid, "status").splitlines():
        if line.startswith("SigCgt:"):
            return bool(int(line.partition(":")[2], 16) >> (number - 1) & 1)
    return False


def kernel_stack(pid: int) -> list[str]:
    """The functions of the kernel in which it is, the innermost first; empty where only root may know."""
    lines = (line.partition("] ")[2].partition("+")[0] for line in _read(pid, "stack").splitlines())
    return [line for line in lines if line]


def user_of(pid: int) -> int | None:
    """The user as whom it runs."""
    for line in _read(pid, "status").splitlines():
        if line.startswith("Uid:"):
            return int(line.split()[2])
    return None


def _stat(pid: int) -> list[str]:
    """The fields of its ``stat`` from the state on: the name before may contain any character."""
    return _read(pid, "stat").rpartition(")")[2].split()


def _read(pid: int, name: str) -> str:
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:
            return file.read().decode(errors="replace")
    except OSError:
        return ""
