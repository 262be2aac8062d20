"""One run of ``rdzv bench rendezvous`` in a process of its own: ``python -m launcher.bench.rendezvous_child TASK``.

All nodes are threads of this process, which is the benchmark's doing and costs more than it would in a
cluster: they share one interpreter lock, where each has a machine to itself. Hence the small stacks below. The
interval at which threads take turns (``sys.setswitchinterval``) is left alone: from 0.5 to 100 ms makes no difference.
Garbage is collected between the rounds only: a collection goes through the objects of all nodes, again and again.

TASK is JSON; what comes out is one line of JSON, and the end of standard input ends the process.
"""

from __future__ import annotations

import gc
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
from launcher.bench.rendezvous_nodes import Field, Node, Service, make
from rdzv_plugins.errors import RdzvError
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
    """Of a service in another process; 0: there is none."""
    pid: int
    """Of that process."""
    ttl: float
    limit_s: float
    idle: bool


@dataclass
class Round:
    """From the first call, or the loss, to the last node's answer."""

    seconds: float
    known_s: float | None
    """From the loss to when the service said so, where it does not know at once."""
    requests: dict[str, int]
    """That the service has counted."""
    per_node: dict[str, float]
    """Of a plain node, neither first nor leading."""
    cpu_s: float
    """Of this process, the server in it included."""
    server_cpu_s: float
    syncs: int
    """How often the service made sure that what it wrote is on disk."""
    sync_s: float


@dataclass
class Sample:
    """What came out."""

    join: Round | None = None
    loss: Round | None = None
    close: Round | None = None
    """One that says that it goes, where that is not the same."""
    idle: dict[str, int] | None = None
    """Requests in three times the time to live."""
    signs: int | None = None
    """Of life, in the same time."""
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
        self._errors: list[BaseException] = []
        self._there = len(field.nodes)

    def join(self) -> Round:
        """All nodes, one straight after the other."""
        return self._measure("joined", self._start, self._limit_s)

    def go(self, begin: Callable[[], None], unheard_s: float) -> Round:
        """One goes, which the service may not hear of for ``unheard_s``; the others join again."""
        self._there -= 1
        return self._measure("joined again", begin, self._limit_s + unheard_s)

    def _start(self) -> None:
        """No gate that all wait at: thousands of threads that want the interpreter lock at one time stand still."""
        for node in self._field.nodes:
            threading.Thread(target=self._live, args=(node,), daemon=True).start()

    def _measure(self, what: str, begin: Callable[[], None], limit_s: float) -> Round:
        field = self._field
        self._expect(self._there)
        gc.collect()
        per_node, before, cpu_s = field.per_node(), field.counts(), time.process_time()
        start = time.perf_counter()
        begin()
        in_time = self._all.wait(limit_s)
        cpu_s = time.process_time() - cpu_s
        if self._errors:
            error = self._errors[0]
            if isinstance(error, RdzvError):
                raise DidNotFinish(f"a node gave up before all had {what}: {error}")
            raise error
        if not in_time:
            there = self._wanted - 1 - next(self._missing)
            raise DidNotFinish(f"{there} of {self._wanted} nodes had {what} after {limit_s:g} s")
        now, known_at = field.counts(), field.known_at()
        return Round(
            seconds=self._last - start,
            known_s=known_at - start if known_at is not None else None,
            requests=_new(now.requests, before.requests),
            per_node=_new(field.per_node(), per_node),
            cpu_s=cpu_s,
            server_cpu_s=now.cpu_s - before.cpu_s,
            syncs=now.syncs - before.syncs,
            sync_s=now.sync_s - before.sync_s,
        )

    def _expect(self, wanted: int) -> None:
        self._wanted = wanted
        self._missing = itertools.count(wanted - 1, -1)  # the next of it is atomic, and needs no lock
        self._all = threading.Event()

    def _live(self, node: Node) -> None:
        try:
            while True:
                self._join(node)
                node.wait_over()
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

    import rdzv_plugins.elastic.handler

    if task.target == "etcd":
        import rdzv_plugins.backends.etcd.coordination  # noqa: F401

    sample = Sample()
    before = resident_memory(os.getpid())
    service = Service(task.port, task.pid)
    field = make(task.target, task.nodes, service, task.ttl, task.limit_s)
    run = Run(field, task.limit_s)
    try:
        sample.join = run.join()
        if task.idle:
            then = field.counts()
            time.sleep(_IDLE_TTLS * task.ttl)
            now = field.counts()
            sample.idle, sample.signs = _new(now.requests, then.requests), now.signs - then.signs
        field.choose_one()
        sample.loss = run.go(field.lose_one, 0 if field.told_of_loss else 2 * task.ttl)
        if not field.told_of_loss:
            field.choose_one()
            sample.close = run.go(field.close_one, 0)
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
    gc.disable()
    try:
        print(json.dumps(asdict(measure(task))), flush=True)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


if __name__ == "__main__":
    main()
