"""Signs of life of a worker, as the kernel counts them (/proc), and samples of where it is, by py-spy. Linux.

The signs are cheap to read, and nothing runs in the worker. Values of variables are not passed on: only a number is.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct

from rdzv_launcher.run.stacks import processes, reading
from rdzv_launcher.run.stacks.reports import is_meeting
from rdzv_plugins.linux.processes import read_stat


class Signs(Struct, frozen=True):
    """What had been counted for one process at some moment. Times are in seconds."""

    at: float
    """The moment of the count (monotonic)."""
    state: str
    """One letter, as in /proc/PID/stat."""
    born: int
    """When it was started, in ticks: another process with the same pid has another value."""
    main_s: float
    """The processor time that the main thread got, or wanted while others had it."""
    all_s: float
    """The processor time of all threads, and of children that have been waited for."""
    faults: int
    """Pages that it had to wait for, from a file or from swap: a kind of reading that is not among the bytes."""
    moved: int
    """Bytes that it has read and written through files and pipes; 0 if that may not be seen."""


def read_signs(pid: int, asked: Path | None) -> Signs | None:
    """The signs of a process; None if it has ended.

    ``asked`` is the directory to which workers write when an agent asks for their stacks; that is not a sign of life.
    """
    stat = read_stat(pid)
    if stat is None or not stat.lives:
        return None
    main_s, born = _main_s(pid, stat.cpu_s), int(stat.started)
    return Signs(time.monotonic(), stat.state, born, main_s, stat.cpu_s, stat.major_faults, _moved(pid, asked))


def below_s(pid: int, pids_of: Callable[[int], list[int]]) -> float:
    """The processor time that all processes below one got or wanted, in seconds. ``pids_of``: like ``children_now``."""
    total = 0.0
    for each in processes.below(pid, pids_of):
        if stat := read_stat(each):
            total += max(stat.cpu_s, _main_s(each, stat.cpu_s))
    return total


def _main_s(pid: int, otherwise: float) -> float:
    """The time of the main thread, including its time in the queue; ``otherwise`` if the kernel does not say."""
    schedstat = processes.read(pid, "schedstat").split()
    return sum(map(int, schedstat[:2])) / 1e9 if len(schedstat) == 3 else otherwise


def _moved(pid: int, asked: Path | None) -> int:
    lines = processes.read(pid, "io").splitlines()[:2]  # rchar, wchar
    if not lines:
        return 0
    try:
        written = (asked / str(pid)).stat().st_size if asked is not None else 0
    except OSError:  # it writes none
        written = 0
    return sum(int(line.rpartition(" ")[2]) for line in lines) - written


Native = Literal["loop", "waits", "computes"]
"""What the main thread does below its innermost line of Python: just run it, wait for others, or anything else."""

_WAITS = re.compile(r"(?i)nccl|hccl|rccl|gloo::|c10d|(?:cu|cuda|hip|acl|npu)\w*(?:synchronize|query|memcpy)")
_LOOKS = 2
"""How many looks must find no native code: a stack may be one that cannot be read."""


@dataclass(frozen=True)
class Sample:
    """Where the main thread was at one moment."""

    at: float
    """The moment of the sample (monotonic, seconds)."""
    print: int
    """Equal for the same lines with the same variables."""
    runs: bool
    """Python's own code was running: the thread was on a processor, and held the interpreter's lock."""
    meets: bool
    """The thread was in a call that waits for other workers, or for the device."""


def take(process: processes.Process, at: float, *, timeout: float) -> Sample:
    """Take a sample of a Python process; this pauses it for some milliseconds. Raises ``NoStacks``."""
    main = _main(reading.py_spy_threads(process, ("--locals",), timeout=timeout), process.pid)
    frames = main["frames"]
    values = tuple((frame["name"], frame["filename"], frame["line"], *_values(frame)) for frame in frames)
    places = [(str(frame["filename"]), str(frame["name"])) for frame in frames[:1]]
    return Sample(at, hash(values), bool(main["active"] and main["owns_gil"]), bool(places) and is_meeting(*places[0]))


def below_python(process: processes.Process, *, timeout: float) -> Native:
    """What the main thread does in native code; finding out takes seconds. Raises ``NoStacks``."""
    for _ in range(_LOOKS):
        if names := _native_names(process, timeout):
            return "waits" if any(_WAITS.search(name) for name in names) else "computes"
    return "loop"


def _native_names(process: processes.Process, timeout: float) -> list[str]:
    """The native functions that its innermost line of Python is in, or has called; empty if there are none."""
    names = []
    for frame in _main(reading.py_spy_threads(process, ("--native",), timeout=timeout), process.pid)["frames"]:
        if frame["line"]:
            break
        names.append(str(frame["name"]))
    return names


def _values(frame: dict[str, Any]) -> Sequence[object]:
    return [(each["name"], each["addr"], each["repr"]) for each in frame["locals"] or ()]


def _main(threads: Sequence[dict[str, Any]], pid: int) -> dict[str, Any]:
    found = next((each for each in threads if each["os_thread_id"] == pid), None)
    if found is None:
        found = next((each for each in threads if each["thread_name"] == "MainThread"), None)
    if found is None:
        raise reading.NoStacks("py-spy has found no main thread")
    return found
