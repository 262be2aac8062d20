"""Samples of where a worker's main thread is, by py-spy. Values of variables are not passed on: only a number is."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rdzv_launcher.run.stacks import processes, reading
from rdzv_launcher.run.stacks.grouping import is_meeting

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
