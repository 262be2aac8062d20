"""What one node says about its workers: their states and stacks, read from outside.

Native frames are read from one worker at each place where workers are, as that takes a few times as long.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from rdzv_launcher.run.stacks import processes, reading
from rdzv_launcher.run.stacks.node import Node
from rdzv_launcher.run.stacks.processes import Process
from rdzv_launcher.run.stacks.reading import Frame, Thread
from rdzv_launcher.run.stacks.reports import ProcessReport, WorkerReport
from rdzv_plugins.linux.processes import children_now

_AT_A_TIME = max(4, 2 * (os.cpu_count() or 1))
NATIVE_S = 3.0
"""The time for native frames: looking up symbols of torch's libraries takes seconds, and must not hold up the rest."""
_ONE_S = 8.0
"""The most seconds for one process, out of those for all."""
_NATIVE_PLACES = 8
_CHILDREN_NAMED = 16
_CHILDREN_READ = 32


def gather(node: Node, *, within: float, children: bool = False, native: float = NATIVE_S) -> list[WorkerReport]:
    """Where the node's workers are, after about ``within`` seconds at the latest. Raises nothing.

    ``children``: include the stacks of what the workers have started. ``native``: how many of those seconds native
    frames may take to read; after that they are left out. Workers that have ended are included without a stack.
    """
    deadline = time.monotonic() + within
    reader = _Reader(node.own_stacks, children_now(), deadline, children)
    places: dict[tuple[Frame, ...], ProcessReport] = {}
    with ThreadPoolExecutor(_AT_A_TIME, thread_name_prefix="rdzv-stacks") as pool:
        found = list(pool.map(reader.read, (worker.pid for worker in node.workers)))
        for each in found:
            if each.how == "py-spy":
                places.setdefault(each.frames, each)
        reader.deadline = min(deadline, time.monotonic() + native)
        list(pool.map(reader.add_native, [*places.values()][:_NATIVE_PLACES]))
    return [
        WorkerReport(worker.rank, worker.local_rank, node.node_rank, node.host, each)
        for worker, each in zip(node.workers, found, strict=True)
    ]


class _Reader:
    """Reads processes until a given moment (monotonic). Thread-safe."""

    def __init__(self, own: Path | None, pids_of: Callable[[int], list[int]], deadline: float, children: bool) -> None:
        by_request = functools.partial(reading.by_request, directory=own)
        self._ways: dict[str, Callable[..., list[Thread]]] = {"py-spy": reading.by_py_spy, "faulthandler": by_request}
        self._pids_of, self.deadline, self._children = pids_of, deadline, children

    def read(self, pid: int) -> ProcessReport:
        """Read a worker and, if wanted, the processes below it."""
        process = processes.look(pid)
        if process is None or not processes.is_there(process):
            return ProcessReport(pid, "ended")
        found = self._read_one(process)
        below = [each for each in map(processes.look, processes.below(pid, self._pids_of)) if processes.is_there(each)]
        found.children = tuple(map(_without_stacks, below[:_CHILDREN_NAMED]))
        if self._children or found.is_python is False:
            found.below = tuple(map(self._read_one, below[:_CHILDREN_READ]))
        return found

    def _read_one(self, process: Process) -> ProcessReport:
        found = replace(_without_stacks(process), is_python=processes.is_python(process.pid))
        if found.is_python is False:
            found.tried = ("it is no Python program",)
        else:
            found.how, found.threads, found.tried = self._threads(process)
        if process.state == "D" or not found.how:
            found.kernel = tuple(processes.kernel_stack(process.pid))
        return found

    def _threads(self, process: Process) -> tuple[str, tuple[Thread, ...], tuple[str, ...]]:
        """How its stacks were read, its threads, and why other ways were not possible."""
        tried = list[str]()
        for how, read in self._ways.items():
            try:
                seconds = max(0.5, min(_ONE_S, self.deadline - time.monotonic()))
                return how, tuple(read(process, timeout=seconds)), tuple(tried)
            except reading.NoStacks as error:
                tried.append(str(error))
        return "", (), tuple(tried)

    def add_native(self, found: ProcessReport) -> None:
        """Add the native frames of its main thread, if it is still at the same place, unless there is no time left.

        Those around ``main`` are left out.
        """
        process = processes.look(found.pid)
        if process is None or process.stands_still or time.monotonic() >= self.deadline:
            return
        try:
            threads = reading.by_py_spy(process, native=True, timeout=self.deadline - time.monotonic())
        except reading.NoStacks:
            return
        frames = threads[0].frames if threads else ()
        python = [at for at, frame in enumerate(frames) if frame.line]
        if python and [frames[at] for at in python] == list(found.frames):
            found.native = frames[: python[-1] + 1]


def _without_stacks(process: Process) -> ProcessReport:
    return ProcessReport(process.pid, process.state, process.wait_channel, process.command)
