"""One run of ``rdzv bench rendezvous`` in a process of its own: ``python -m launcher.bench.rendezvous_child TASK``.

All nodes are threads of this process, which is the benchmark's doing and costs more than it would in a
cluster: they share one interpreter lock, where each has a machine to itself. Hence the small stacks below. The
interval at which threads take turns (``sys.setswitchinterval``) is left alone: from 0.5 to 100 ms makes no difference.

TASK is JSON; what comes out is one line of JSON, and the end of standard input ends the process.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TypeVar

from launcher.bench.measure import peak_memory, resident_memory
from launcher.bench.rendezvous_nodes import Field, Node, make
from rdzv_plugins.kvstore.limits import raise_file_limit

Number = TypeVar("Number", int, float)

_STACK_BYTES = 256 * 1024
_IDLE_TTLS = 3


@dataclass(frozen=True)
class Task:
    """What to measure."""

    target: str
    nodes: int
    port: int
    """Of a server in another process; 0: in this one."""
    ttl: float
    limit_s: float
    idle: bool


@dataclass
class Round:
    """From the first call, or the loss, to the last node's answer."""

    seconds: float
    requests: dict[str, int]
    """That the service has counted."""
    per_node: dict[str, float]
    """Of a plain node, neither first nor leading."""
    cpu_s: float
    """Of this process, the server in it included."""
    server_cpu_s: float


@dataclass
class Sample:
    """What came out."""

    join: Round | None = None
    loss: Round | None = None
    idle: dict[str, int] | None = None
    """Requests in three times the time to live."""
    peak_mib: float = 0.0
    grown_mib: float = 0.0
    """Above what was resident before the first handler was made, torch loaded."""
    unfinished: str = ""
    """It took longer than the limit, and where it was then."""


class DidNotFinish(Exception):
    """A result, not a fault of the benchmark."""


class Run:
    """The threads of the nodes, and the phases that they go through."""

    def __init__(self, field: Field, limit_s: float) -> None:
        self._field, self._limit_s = field, limit_s
        self._lost: Node | None = None
        self._errors: list[BaseException] = []
        self._expect(len(field.nodes))

    def join(self) -> Round:
        """All nodes, one straight after the other."""
        return self._measure("joined", self._start)

    def loss(self) -> Round:
        """One is lost; the others join again."""
        self._expect(len(self._field.nodes) - 1)
        return self._measure("joined again", self._lose)

    def _start(self) -> None:
        """No gate that all wait at: thousands of threads that want the interpreter lock at one time stand still."""
        for node in self._field.nodes:
            threading.Thread(target=self._live, args=(node,), daemon=True).start()

    def _lose(self) -> None:
        self._lost = self._field.lose_one()

    def _measure(self, what: str, begin: Callable[[], None]) -> Round:
        field = self._field
        per_node = field.per_node()
        requests, cpu, server = field.requests(), time.process_time(), field.server_cpu_s()
        start = time.perf_counter()
        begin()
        in_time = self._all.wait(self._limit_s)
        if self._errors:
            raise self._errors[0]
        if not in_time:
            there = self._wanted - 1 - next(self._missing)
            raise DidNotFinish(f"{there} of {self._wanted} nodes had {what} after {self._limit_s:g} s")
        return Round(
            seconds=self._last - start,
            requests=_new(field.requests(), requests),
            per_node=_new(field.per_node(), per_node),
            cpu_s=time.process_time() - cpu,
            server_cpu_s=field.server_cpu_s() - server,
        )

    def _expect(self, wanted: int) -> None:
        self._wanted = wanted
        self._missing = itertools.count(wanted - 1, -1)  # the next of it is atomic, and needs no lock
        self._all = threading.Event()

    def _live(self, node: Node) -> None:
        try:
            self._join(node)
            node.wait_over()
            self._join(node)
        except BaseException as error:
            self._errors.append(error)
            self._all.set()

    def _join(self, node: Node) -> None:
        node.join()
        now = time.perf_counter()
        if next(self._missing) == 0:
            self._last = now
            self._all.set()


def _new(now: dict[str, Number], before: dict[str, Number]) -> dict[str, Number]:
    grown = {name: count - before.get(name, 0) for name, count in now.items()}
    return {name: count for name, count in grown.items() if count}


def measure(task: Task) -> Sample:
    """Make the nodes and let them join, idle, and join again."""
    import torch.distributed.elastic.rendezvous.c10d_rendezvous_backend  # noqa: F401

    import rdzv_plugins.elastic.handler  # noqa: F401  (loading them is not what is measured)

    sample = Sample()
    before = resident_memory(os.getpid())
    field = make(task.target, task.nodes, task.port, task.ttl, task.limit_s)
    run = Run(field, task.limit_s)
    try:
        sample.join = run.join()
        if task.idle:
            requests = field.requests()
            time.sleep(_IDLE_TTLS * task.ttl)
            sample.idle = _new(field.requests(), requests)
        sample.loss = run.loss()
    except DidNotFinish as error:
        sample.unfinished = str(error)
    sample.peak_mib = peak_memory(os.getpid()) or 0.0
    sample.grown_mib = max(0.0, sample.peak_mib - before)
    return sample


def _end_with_standard_input() -> None:
    sys.stdin.buffer.read()
    os._exit(1)


def main() -> None:
    """Measure, print, and end without tidying up thousands of nodes."""
    task = Task(**json.loads(sys.argv[1]))
    raise_file_limit()
    threading.Thread(target=_end_with_standard_input, daemon=True).start()
    threading.stack_size(_STACK_BYTES)
    try:
        print(json.dumps(asdict(measure(task))), flush=True)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


if __name__ == "__main__":
    main()
