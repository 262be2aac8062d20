"""What the kernel says about processes: state, wait channel, command, children. Linux (/proc)."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeGuard

from msgspec import Struct

from rdzv_plugins.system.processes import read_file, read_stat

_COMMAND = 200


class StackedProcess(Struct, frozen=True):
    """One process, as it was a moment ago."""

    pid: int
    parent: int
    state: str
    """One letter: R running, S sleeping, D waiting in the kernel uninterruptibly, T stopped, t traced, Z ended."""
    wait_channel: str
    """The function of the kernel in which it waits; empty if that is not known."""
    command: str

    @property
    def stands_still(self) -> bool:
        """Whether a debugger's stop would never be answered: it is already stopped, or does not leave the kernel."""
        return self.state in "TtD"


def name_of(pid: int) -> str:
    """The kernel's name for the process; empty if there is none."""
    return read(pid, "comm").strip()


def look(pid: int) -> StackedProcess | None:
    """The process; None if there is none."""
    stat = read_stat(pid)
    if stat is None:
        return None
    channel = read(pid, "wchan").strip()
    command = " ".join(filter(None, read(pid, "cmdline").split("\0")))
    return StackedProcess(pid, stat.parent, stat.state, channel if channel != "0" else "", command[:_COMMAND])


def is_there(process: StackedProcess | None) -> TypeGuard[StackedProcess]:
    """Whether the process is there and has not ended."""
    return process is not None and process.state not in "ZX"


def environment(pid: int) -> dict[str, str]:
    """The variables with which a process was started; empty if they may not be read."""
    pairs = (each.partition("=") for each in read(pid, "environ").split("\0"))
    return {name: value for name, _, value in pairs if name}


def below(pid: int, pids_of: Callable[[int], list[int]]) -> list[int]:
    """All descendants of ``pid``: children, their children, and so on. ``pids_of`` is like ``children_now``."""
    found, left = [], sorted(pids_of(pid))
    while left:
        each = left.pop(0)
        found.append(each)
        left += sorted(pids_of(each))
    return found


def is_python(pid: int) -> bool | None:
    """Whether it contains a Python interpreter; None if that cannot be seen."""
    try:
        maps = Path(f"/proc/{pid}/maps").read_text(errors="replace")
    except OSError:
        return None
    names = {os.path.basename(line.split(None, 5)[5]) for line in maps.splitlines() if line.count("/") > 1}
    return any(name.startswith(("python", "libpython", "pypy", "libpypy")) for name in names) if names else None


def catches(pid: int, number: int) -> bool:
    """Whether the process has a handler for signal ``number``."""
    return bool(int(_status(pid, "SigCgt") or "0", 16) >> (number - 1) & 1)


def kernel_stack(pid: int) -> list[str]:
    """The functions of the kernel that it is in, innermost first; empty if only root may know."""
    lines = (line.partition("] ")[2].partition("+")[0] for line in read(pid, "stack").splitlines())
    return [line for line in lines if line]


def user_of(pid: int) -> int | None:
    """The id of the user as whom it runs."""
    ids = _status(pid, "Uid").split()
    return int(ids[1]) if ids else None


def _status(pid: int, name: str) -> str:
    """What is after a name in a process's status; empty if that cannot be read."""
    lines = (line.partition(":") for line in read(pid, "status").splitlines())
    return next((value for found, _, value in lines if found == name), "")


def read(pid: int, name: str) -> str:
    """A file of a process in /proc as text; empty if there is none, or it may not be read."""
    return read_file(pid, name).decode(errors="replace")
