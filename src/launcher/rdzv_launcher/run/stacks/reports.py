"""What nodes answer about their workers: as JSON and as typed values, grouped by place, and as text for people.

Whoever can reach the service can answer, so everything is checked. Two workers are at the same place if their main
threads have equal stacks and their processes are in similar states. A worker that runs changes its place all the time,
so the line of its innermost call does not count.
"""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from rdzv_launcher.run.names import compressed, named
from rdzv_launcher.run.stacks.node import Node
from rdzv_plugins.plain_text import many, printable, some
from rdzv_plugins.questions import RpcResponse, checked

_MOST_WORKERS = 4096
_MOST_TEXTS = 32
_TEXT, _FRAME_TEXT = 1000, 300
"""The most characters of a text that others have sent, and of one in a frame that is sent."""
_Index = Annotated[int, Meta(ge=0)]
_MOST_FRAMES = 160
_OUTERMOST = 40


@dataclass(frozen=True)
class Frame:
    """One call on a thread's stack."""

    function: str
    file: str
    line: int
    """The line number; 0 if it is not known, as for native code."""

    @property
    def short(self) -> str:
        """The file's name and the line, for messages."""
        name = os.path.basename(self.file) or "?"
        return f"{name}:{self.line}" if self.line else name


@dataclass(frozen=True)
class Thread:
    """One thread of a process."""

    name: str
    is_main: bool
    frames: tuple[Frame, ...]
    is_active: bool | None = None
    """Whether it was on a processor when it was read; None if that is not known."""


def limited(frames: Sequence[Frame]) -> tuple[Frame, ...]:
    """No more frames than fit into a message: of an endless recursion, the innermost and the outermost."""
    if len(frames) <= _MOST_FRAMES:
        return tuple(frames)
    left = len(frames) - _MOST_FRAMES
    gap = Frame(f"... {left} more calls ...", "", 0)
    return (*frames[: _MOST_FRAMES - _OUTERMOST], gap, *frames[-_OUTERMOST:])


@dataclass
class ProcessReport:
    """A worker, or a process below one."""

    pid: int
    state: str
    """One letter, as in /proc; or ``ended``."""
    wait_channel: str = ""
    command: str = ""
    is_python: bool | None = None
    how: str = ""
    """How its stacks were read; empty if they were not."""
    tried: tuple[str, ...] = ()
    """Why other ways were not possible."""
    threads: tuple[Thread, ...] = ()
    """Its threads, the main one first."""
    native: tuple[Frame, ...] = ()
    """The main thread with its native frames, if they were read."""
    kernel: tuple[str, ...] = ()
    children: tuple[ProcessReport, ...] = ()
    """The processes that it has started, without stacks."""
    below: tuple[ProcessReport, ...] = ()
    """The processes that it has started, with stacks, if those were asked for."""

    @property
    def reader(self) -> ProcessReport:
        """The process whose stack tells where this one is: itself, or the Python program that it has started."""
        return self if self.threads else next((each for each in self.below if each.threads), self)

    @property
    def frames(self) -> tuple[Frame, ...]:
        """Where its main thread is; empty if that is not known."""
        threads = self.reader.threads
        return threads[0].frames if threads else ()


@dataclass(frozen=True)
class WorkerReport:
    """What is known about one worker of a job: who it is, and where it stands."""

    rank: int
    local_rank: int
    node_rank: int | None
    host: str
    process: ProcessReport


def answer_of(node: Node, workers: Iterable[WorkerReport]) -> dict[str, Any]:
    """What the node answers: its workers as JSON. Equal stacks are included once, and threads refer to them by number.

    Most ranks of a job that hangs are at the same place.
    """
    numbers: dict[tuple[Frame, ...], int] = {}
    return {
        "node_rank": node.node_rank,
        "host": node.host,
        "agent": node.agent,
        "workers": [
            {"rank": each.rank, "local_rank": each.local_rank} | _data(each.process, numbers) for each in workers
        ],
        "stacks": [
            [[each.function[:_FRAME_TEXT], each.file[:_FRAME_TEXT], each.line] for each in frames] for frames in numbers
        ],
    }


def _data(process: ProcessReport, numbers: dict[tuple[Frame, ...], int]) -> dict[str, Any]:
    """A process as JSON; what it adds to ``numbers`` are its stacks."""

    def number(frames: tuple[Frame, ...]) -> int:
        return numbers.setdefault(frames, len(numbers))

    return _known(process) | {
        "python": process.is_python,
        "how": process.how,
        "tried": process.tried,
        "threads": [
            {"name": each.name, "main": each.is_main, "active": each.is_active, "stack": number(each.frames)}
            for each in process.threads
        ],
        "native": number(process.native) if process.native else None,
        "kernel": process.kernel,
        "children": [_known(each) for each in process.children],
        "below": [_data(each, numbers) for each in process.below],
    }


def _known(process: ProcessReport) -> dict[str, Any]:
    """What is known without stacks."""
    return {name: getattr(process, name) for name in ("pid", "state", "wait_channel", "command")}


class _Thread(Struct):
    name: str
    main: bool
    stack: _Index
    active: bool | None = None


class _Process(Struct):
    """What is said of a process; a worker may have some below it, and these have none."""

    pid: _Index
    state: str
    wait_channel: str = ""
    command: str = ""
    python: bool | None = None
    how: str = ""
    tried: list[str] = []
    threads: list[_Thread] = []
    native: _Index | None = None
    kernel: list[str] = []


class _Worker(_Process, kw_only=True):
    rank: _Index
    local_rank: _Index
    children: list[_Process] = []
    below: list[_Process] = []


class _Node(Struct):
    """A node's answer: see ``answer_of``."""

    node_rank: int | None
    host: str
    workers: list[_Worker]
    stacks: list[list[tuple[str, str, int]]]


def workers_of(answer: Any) -> list[WorkerReport]:
    """The workers of one node, from its answer. Raises ``ValueError`` if it is not a valid answer."""
    node = checked(answer, _Node)
    stacks = [tuple(Frame(name[:_TEXT], file[:_TEXT], line) for name, file, line in each) for each in node.stacks]
    try:
        return [
            WorkerReport(each.rank, each.local_rank, node.node_rank, node.host[:_TEXT], _worker(each, stacks))
            for each in node.workers[:_MOST_WORKERS]
        ]
    except IndexError:
        raise ValueError("it refers to stacks that it does not contain") from None


def _worker(said: _Worker, stacks: Sequence[tuple[Frame, ...]]) -> ProcessReport:
    report = _process(said, stacks)
    children = tuple(_process(each, ()) for each in said.children)
    return replace(report, children=children, below=tuple(_process(each, stacks) for each in said.below))


def _process(said: _Process, stacks: Sequence[tuple[Frame, ...]]) -> ProcessReport:
    return ProcessReport(
        pid=said.pid,
        state=said.state[:_TEXT],
        wait_channel=said.wait_channel[:_TEXT],
        command=said.command[:_TEXT],
        is_python=said.python,
        how=said.how[:_TEXT],
        tried=tuple(each[:_TEXT] for each in said.tried[:_MOST_TEXTS]),
        threads=tuple(Thread(each.name[:_TEXT], each.main, stacks[each.stack], each.active) for each in said.threads),
        native=stacks[said.native] if said.native is not None else (),
        kernel=tuple(each[:_TEXT] for each in said.kernel[:_MOST_TEXTS]),
    )


_LIBRARIES = "/site-packages/", "/dist-packages/", "/lib/python3", os.path.join(sysconfig.get_paths()["stdlib"], "")
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
    return file.startswith("<frozen") or any(each in file for each in _LIBRARIES)


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


_HEADLINE_GROUPS = 4
_PIDS_NAMED = 4


@dataclass(frozen=True)
class Silent:
    """A node or an agent about which something other than its workers' places has to be said."""

    name: str
    problem: str
    kind: Literal["silent", "agent", "idle"] = "silent"
    """``silent``: it has not answered. ``agent``: something is wrong with its agent, while its workers are known.

    ``idle``: it has no workers.
    """


def report_text(workers: Sequence[WorkerReport], silent: Sequence[Silent] = (), *, threads: bool = False) -> str:
    """All that is known, in lines. ``threads``: for all threads, not only the main ones."""
    groups = grouped(workers)
    lines = [headline(groups, silent)]
    for group in groups:
        lines += ["", *_group(group, threads)]
    for each in silent:
        lines += ["", f"{printable(each.name)} {printable(each.problem)}"]
    return "\n".join(lines)


def headline(groups: Sequence[Group], silent: Sequence[Silent] = ()) -> str:
    """One sentence: who is where, the odd ones first."""
    workers = [worker for group in groups for worker in group.workers]
    nodes = {(worker.node_rank, worker.host) for worker in workers}
    counts = f"{many(len(workers), 'worker')} on {many(len(nodes), 'node')}" if workers else "no worker"
    odd = groups[:-1]
    parts = [_part(group) for group in odd[:_HEADLINE_GROUPS]]
    if left := odd[_HEADLINE_GROUPS:]:
        place = "another place" if len(left) == 1 else f"{len(left)} other places"
        parts.append(f"{sum(len(group.workers) for group in left)} more at {place}")
    if groups:
        last, count = groups[-1], len(groups[-1].workers)
        parts.append(_part(last) if count == 1 else f"{f'the other {count}' if odd else 'all'} {doing(last)}")
    if count := sum(each.kind == "silent" for each in silent):
        parts.append(f"{many(count, 'node')} without an answer")
    return f"{counts}: {'; '.join(parts)}" if parts else counts


def _part(group: Group) -> str:
    return f"{named(group.ranks)} ({_where_from(group)}) {doing(group)}"


def doing(group: Group) -> str:
    """What its workers do, with a verb: ``is stopped at a.py:3 in step``."""
    place = f" {printable(group.where, 200)}" if group.where else ""
    one = len(group.workers) == 1
    be = "is" if one else "are"
    if group.kind == "stopped":
        return f"{be} stopped{place}"
    if group.kind == "stuck":
        channel = printable(group.workers[0].process.wait_channel, 60)
        return f"{be} stuck in the kernel{f' ({channel})' if channel else ''}{place}"
    if group.kind == "ended":
        return "has ended" if one else "have ended"
    if group.kind == "unknown":
        return f"{be} at a place that cannot be read"
    return f"{'runs' if one else 'run'}{place}" if group.kind == "running" else f"{be}{place}"


def _where_from(group: Group) -> str:
    nodes = sorted({worker.node_rank for worker in group.workers if worker.node_rank is not None})
    hosts = sorted({worker.host for worker in group.workers})
    text = f"node{'' if len(nodes) == 1 else 's'} {compressed(nodes)}" if nodes else ""
    if len(hosts) == 1:
        text = f"{text} on {printable(hosts[0], 80)}" if text else printable(hosts[0], 80)
    return text or "no node"


def _group(group: Group, threads: bool) -> Iterator[str]:
    pids = [worker.process.pid for worker in group.workers]
    pids_text = f"pid{'' if len(pids) == 1 else 's'} {some(pids, _PIDS_NAMED)}"
    name = named(group.ranks)
    yield f"{name[0].upper()}{name[1:]} ({_where_from(group)}, {pids_text}): {_state(group)}"
    worker = group.shown
    yield from _stacks(worker.process, threads)
    odd = [each for each in group.workers if each is not worker and each.process.children]
    for each in (worker, *odd):
        yield from _children(each, group)


def _state(group: Group) -> str:
    process = group.workers[0].process
    channel = f" in {printable(process.wait_channel, 60)}" if process.wait_channel else ""
    if group.kind == "stopped" and process.state == "t":
        return "stopped by a debugger"
    if group.kind == "stopped":
        pids = " ".join(str(worker.process.pid) for worker in group.workers[:_PIDS_NAMED])
        return f"STOPPED by a signal; kill -CONT {pids} resumes {'it' if len(group.workers) == 1 else 'them'}"
    if group.kind == "stuck":
        return f"stuck in the kernel, in state D{channel}: usually a device, a driver or a file system"
    if group.kind == "unknown":
        return f"in state {printable(process.state, 10)}{channel}; its stack cannot be read"
    return {"running": "running", "waiting": f"waiting{channel}", "ended": "ended"}[group.kind]


def _stacks(process: ProcessReport, threads: bool) -> Iterator[str]:
    reader = process.reader
    if reader is not process:
        command = printable(reader.command, 120)
        yield f"  not a Python program; the stack of pid {reader.pid}, which it started ({command}):"
    if not reader.threads:
        yield from (f"  {printable(reason)}" for reason in process.tried)
    else:
        main = reader.threads[0]
        yield from _frames(reader.native or main.frames)
        if reader.how == "faulthandler":
            yield f"  (written by the worker itself: {printable(reader.tried[0] if reader.tried else '')})"
        for thread in reader.threads[1:] if threads else ():
            yield f"  thread {printable(thread.name, 80) or 'without a name'}:"
            yield from _frames(thread.frames)
    if reader.kernel:
        yield "  in the kernel:"
        yield from (f"    {printable(each, 120)}" for each in reader.kernel)


def _frames(frames: Sequence[Frame]) -> Iterator[str]:
    for frame in frames:
        place = f"{frame.file}:{frame.line}" if frame.line else frame.short
        yield f"    {printable(frame.function, 120)}{f' ({printable(place, 240)})' if frame.file else ''}"


def _children(worker: WorkerReport, group: Group) -> Iterator[str]:
    process = worker.process
    of = f" of rank {worker.rank}" if len(group.workers) > 1 else ""
    read = {each.pid: each for each in process.below}
    for child in process.children:
        if process.reader.pid == child.pid:
            continue
        channel = f" in {printable(child.wait_channel, 60)}" if child.wait_channel else ""
        command = printable(child.command, 120)
        yield f"  child{of}: pid {child.pid}, state {printable(child.state, 10)}{channel}: {command}"
        if child.pid in read and read[child.pid].threads:
            yield from _frames(read[child.pid].threads[0].frames)


def read(answers: Iterable[RpcResponse]) -> tuple[list[WorkerReport], list[Silent]]:
    """The workers of all nodes, and the nodes that have said nothing about theirs."""
    workers, silent = [], []
    for each in answers:
        problem = each.problem
        rank = "a node" if each.node_rank is None else f"node {each.node_rank}"
        name = f"{rank} on {each.host} (pid {each.pid})"
        if not problem:
            try:
                found = workers_of(each.answer)
                workers += found
                if not found:
                    silent.append(
                        Silent(name, "has no workers now: it is a spare, or is waiting for other nodes", "idle")
                    )
                continue
            except ValueError as error:
                problem = f"sent an answer that cannot be read: {error}"
        silent.append(Silent(name, problem))
    return workers, silent
