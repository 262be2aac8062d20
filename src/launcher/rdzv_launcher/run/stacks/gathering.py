"""What one node says about its workers: their states and stacks, as JSON.

Equal stacks are included once, under ``stacks``, and threads refer to them by number: most ranks of a job that hangs
are at the same place. Native frames are read from one worker at each such place, as that takes a few times as long.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rdzv_launcher.run.stacks import processes, reading
from rdzv_launcher.run.stacks.node import Node
from rdzv_launcher.run.stacks.processes import Process
from rdzv_launcher.run.stacks.reading import Frame, Thread, frame_data
from rdzv_plugins.linux.processes import children_now

_AT_A_TIME = max(4, 2 * (os.cpu_count() or 1))
NATIVE_S = 3.0
"""The time for native frames: looking up symbols of torch's libraries takes seconds, and must not hold up the rest."""
_ONE_S = 8.0
"""The most seconds for one process, out of those for all."""
_NATIVE_PLACES = 8
_CHILDREN_NAMED = 16
_CHILDREN_READ = 32


@dataclass
class _Found:
    """What was found for one process."""

    process: Process
    how: str = ""
    tried: list[str] = field(default_factory=list)
    threads: list[Thread] = field(default_factory=list)
    native: tuple[Frame, ...] = ()
    is_python: bool | None = None
    children: list[Process] = field(default_factory=list)
    below: list[_Found] = field(default_factory=list)

    def take_native(self, frames: Sequence[Frame]) -> None:
        """Set the main thread's native frames, if it is still at the same place. Those around ``main`` are left out."""
        python = [at for at, frame in enumerate(frames) if frame.line]
        if [frames[at] for at in python] == list(self.threads[0].frames):
            self.native = tuple(frames[: python[-1] + 1])

    @property
    def place(self) -> tuple[Frame, ...]:
        """Where its main thread is; for a program other than Python, where the first Python program below it is."""
        if self.threads:
            return self.threads[0].frames
        return next((each.place for each in self.below if each.place), ())


def gather(node: Node, *, within: float, children: bool = False, native: float = NATIVE_S) -> dict[str, Any]:
    """What the node's workers do, as JSON, after about ``within`` seconds at the latest. Raises nothing.

    ``children``: include the stacks of what the workers have started. ``native``: how many of those seconds native
    frames may take to read; after that they are left out. Workers that have ended are included without a stack.
    """
    deadline = time.monotonic() + within
    reader = _Reader(node.own_stacks, children_now(), deadline, children)
    with ThreadPoolExecutor(_AT_A_TIME, thread_name_prefix="rdzv-stacks") as pool:
        found = list(pool.map(reader.read, (worker.pid for worker in node.workers)))
        reader.deadline = min(deadline, time.monotonic() + native)
        list(pool.map(reader.add_native, _one_of_each(found)))
    stacks = _Stacks()
    return {
        "node_rank": node.node_rank,
        "host": node.host,
        "agent": node.agent,
        "workers": [
            {"rank": worker.rank, "local_rank": worker.local_rank, "pid": worker.pid} | stacks.data(each)
            for worker, each in zip(node.workers, found, strict=True)
        ],
        "stacks": stacks.all,
    }


class _Reader:
    """Reads processes until a given moment (monotonic). Thread-safe."""

    def __init__(self, own: Path | None, pids_of: Callable[[int], list[int]], deadline: float, children: bool) -> None:
        self._own, self._pids_of, self.deadline, self._children = own, pids_of, deadline, children

    def read(self, pid: int) -> _Found | None:
        """Read a worker and, if wanted, the processes below it; None if it has ended."""
        process = processes.look(pid)
        if process is None or not processes.is_there(process):
            return None
        found = self._read_one(process)
        below = [each for each in map(processes.look, processes.below(pid, self._pids_of)) if each is not None]
        below = [each for each in below if processes.is_there(each)]
        found.children = below[:_CHILDREN_NAMED]
        if self._children or found.is_python is False:
            found.below = [self._read_one(each) for each in below[:_CHILDREN_READ]]
        return found

    def _read_one(self, process: Process) -> _Found:
        found = _Found(process, is_python=processes.is_python(process.pid))
        if found.is_python is False:
            found.tried.append("it is no Python program")
            return found
        for how, read in (("py-spy", self._by_py_spy), ("faulthandler", self._by_request)):
            try:
                found.threads = read(process)
                found.how = how
                break
            except reading.NoStacks as error:
                found.tried.append(str(error))
        return found

    def _by_py_spy(self, process: Process) -> list[Thread]:
        return reading.by_py_spy(process, timeout=self._left())

    def _by_request(self, process: Process) -> list[Thread]:
        return reading.by_request(process, self._own, timeout=self._left())

    def _left(self) -> float:
        return max(0.5, min(_ONE_S, self.deadline - time.monotonic()))

    def add_native(self, found: _Found) -> None:
        """Add the native frames of its main thread, unless there is no time left, or no way to read them."""
        if time.monotonic() >= self.deadline or found.process.stands_still:
            return
        try:
            threads = reading.by_py_spy(found.process, native=True, timeout=self.deadline - time.monotonic())
        except reading.NoStacks:
            return
        if threads:
            found.take_native(threads[0].frames)


def _one_of_each(found: Sequence[_Found | None]) -> list[_Found]:
    places: dict[tuple[Frame, ...], _Found] = {}
    for each in found:
        if each is not None and each.how == "py-spy":
            places.setdefault(each.place, each)
    return list(places.values())[:_NATIVE_PLACES]


class _Stacks:
    """Holds each stack once."""

    def __init__(self) -> None:
        self.all: list[list[Any]] = []
        self._numbers: dict[tuple[Frame, ...], int] = {}

    def number(self, frames: tuple[Frame, ...]) -> int:
        if frames not in self._numbers:
            self._numbers[frames] = len(self.all)
            self.all.append([frame_data(frame) for frame in frames])
        return self._numbers[frames]

    def data(self, found: _Found | None) -> dict[str, Any]:
        if found is None:
            return {"state": "ended"}
        process = found.process
        data: dict[str, Any] = {
            "pid": process.pid,
            "state": process.state,
            "wait_channel": process.wait_channel,
            "command": process.command,
            "python": found.is_python,
            "how": found.how,
            "tried": found.tried,
            "threads": [
                {"name": each.name, "main": each.is_main, "active": each.is_active, "stack": self.number(each.frames)}
                for each in found.threads
            ],
            "native": self.number(found.native) if found.native else None,
        }
        if process.state == "D" or not found.how:
            data["kernel"] = processes.kernel_stack(process.pid)
        data["children"] = [
            {"pid": each.pid, "state": each.state, "wait_channel": each.wait_channel, "command": each.command}
            for each in found.children
        ]
        data["below"] = [self.data(each) for each in found.below]
        return data
