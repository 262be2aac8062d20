"""Groups workers that are at the same place, the odd ones first.

Two workers are at the same place if their main threads have equal stacks and their processes are in similar states. A
worker that runs changes its place all the time, so the line of its innermost call does not count.
"""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass

from rdzv_launcher.run.stacks.frames import Frame
from rdzv_launcher.run.stacks.reports import WorkerReport

_LIBRARIES = ("/site-packages/", "/dist-packages/", "/lib/python3")
_AROUND = ("wrapper", "wrapped", "inner", "decorate_context", "_fn", "<lambda>")
"""Functions that wrap the one that was called, and say nothing about it."""
_STILL = {"T": "stopped", "t": "stopped", "D": "stuck", "Z": "ended", "X": "ended", "ended": "ended"}
_MEETINGS = (
    ("distributed/distributed_c10d.py", ""),
    ("distributed/c10d_logger.py", ""),
    ("distributed/_functional_collectives.py", ""),
    ("distributed/rendezvous.py", ""),
    ("cuda/__init__.py", "synchronize"),
    ("cuda/streams.py", "synchronize"),
    ("npu/utils.py", "synchronize"),
)
"""Files, and functions in them, in which a worker waits for others or for its device."""
_KINDS = ("stopped", "stuck", "ended", "unknown", "waiting", "running")


@dataclass(frozen=True)
class Group:
    """Workers at one place, in the order of their ranks."""

    kind: str
    """``stopped``, ``stuck`` (in the kernel), ``ended``, ``unknown`` (no stack), ``running`` or ``waiting``."""
    workers: tuple[WorkerReport, ...]

    @property
    def ranks(self) -> list[int]:
        return [worker.rank for worker in self.workers]

    @property
    def shown(self) -> WorkerReport:
        """The worker whose stack is shown: one with native frames, if any were read."""
        return next((each for each in self.workers if each.process.reader.native), self.workers[0])

    @property
    def where(self) -> str:
        """The place in a few words; empty if it is not known."""
        return where(self.shown.process.frames)

    @property
    def meets(self) -> bool:
        """Whether they wait for other workers, or for the device."""
        frames = self.shown.process.frames
        return bool(frames) and is_meeting(frames[0].file, frames[0].function)


def grouped(workers: Iterable[WorkerReport]) -> list[Group]:
    """The groups, the odd ones first: what stands still, the smaller ones, those that wait for nobody, then by rank."""
    every = sorted(workers, key=lambda each: (each.rank, each.process.pid))
    waiting = {each.process.frames for each in every if _kind(each) == "waiting"}
    found: dict[object, list[WorkerReport]] = {}
    for worker in every:
        found.setdefault(_place(worker, waiting), []).append(worker)
    groups = [Group(min(map(_kind, each), key=_KINDS.index), tuple(each)) for each in found.values()]
    return sorted(
        groups, key=lambda each: (each.kind not in _STILL.values(), len(each.workers), each.meets, each.ranks)
    )


def is_meeting(file: str, function: str) -> bool:
    """Whether a call of this function waits for other workers, or for the device."""
    return any(
        f"/torch/{name}" in file or f"/torch_npu/{name}" in file for name, only in _MEETINGS if only in ("", function)
    )


def where(frames: Sequence[Frame]) -> str:
    """The innermost line of the user's own code, and what it calls: ``in all_reduce, called at a.py:3 in step``."""
    known = [frame for frame in frames if frame.file]
    if not known:
        return ""
    own = next((at for at, frame in enumerate(known) if not _is_library(frame.file)), None)
    if own is None:
        return f"in {known[0].function} ({known[0].short})"
    line = f"at {known[own].short} in {known[own].function}"
    called = [frame for frame in known[:own] if frame.function.rpartition(".")[2] not in _AROUND]
    return f"in {called[-1].function}, called {line}" if called else line


def _is_library(file: str) -> bool:
    return file.startswith("<frozen") or any(each in file for each in _places())


def _places() -> tuple[str, ...]:
    return (*_LIBRARIES, os.path.join(sysconfig.get_paths()["stdlib"], ""))


def _kind(worker: WorkerReport) -> str:
    process = worker.process
    if process.state in _STILL:
        return _STILL[process.state]
    reader = process.reader
    if reader.state in _STILL and reader.state not in "ZX":
        return _STILL[reader.state]
    if not process.frames:
        return "unknown"
    active = reader.threads[0].is_active
    return "running" if (reader.state == "R" if active is None else active) else "waiting"


def _place(worker: WorkerReport, waiting: Set[tuple[Frame, ...]]) -> object:
    """A key that is equal for two workers of a group. ``waiting``: the places where others wait."""
    kind, frames = _kind(worker), worker.process.frames
    if not frames:
        return kind, worker.process.tried, worker.process.wait_channel
    innermost = frames[0]
    if kind == "running" and frames not in waiting:
        innermost = Frame(innermost.function, innermost.file, 0)
    return kind if kind in ("stopped", "stuck") else "", innermost, frames[1:]
