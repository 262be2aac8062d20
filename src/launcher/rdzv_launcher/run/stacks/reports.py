"""What nodes answer about their workers: as JSON and as typed values, grouped by place, and as text for people.

Whoever can reach the service can answer, so everything is checked. Two workers are at the same place if their main
threads have equal stacks and their processes are in similar states. A worker that runs changes its place all the time,
so the line of its innermost call does not count.
"""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field, to_builtins

from rdzv_launcher.run.names import compressed, named
from rdzv_launcher.run.stacks.node import NodeSnapshot
from rdzv_plugins.plain_text import many, printable, some
from rdzv_plugins.questions import RpcResponse, checked

_TEXT, _FRAME_TEXT = 1000, 300
"""The most characters of a text in an answer, and of one in a frame."""
_Index = Annotated[int, Meta(ge=0)]
_MOST_FRAMES = 160
_OUTERMOST = 40
MOST_TEXTS = 32
_Texts = Annotated[tuple[str, ...], Meta(max_length=MOST_TEXTS)]


class Frame(Struct, frozen=True, array_like=True):
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


class Stack(tuple[Frame, ...]):
    """A thread's calls, innermost first. In an answer it is a number: equal stacks are included once."""


class Thread(Struct, frozen=True, omit_defaults=True):
    """One thread of a process."""

    name: str
    is_main: bool = field(name="main")
    frames: Stack = field(name="stack")
    is_active: bool | None = field(name="active", default=None)
    """Whether it was on a processor when it was read; None if that is not known."""


def limited(frames: Sequence[Frame]) -> Stack:
    """No more frames than fit into a message: of an endless recursion, the innermost and the outermost."""
    if left := max(0, len(frames) - _MOST_FRAMES):
        gap = Frame(f"... {left} more calls ...", "", 0)
        frames = (*frames[: _MOST_FRAMES - _OUTERMOST], gap, *frames[-_OUTERMOST:])
    return Stack(Frame(each.function[:_FRAME_TEXT], each.file[:_FRAME_TEXT], each.line) for each in frames)


class ProcessReport(Struct, omit_defaults=True):
    """A worker, or a process below one."""

    pid: _Index
    state: str
    """One letter, as in /proc; or ``ended``."""
    wait_channel: str = ""
    command: str = ""
    is_python: bool | None = field(name="python", default=None)
    how: str = ""
    """How its stacks were read; empty if they were not."""
    tried: _Texts = ()
    """Why other ways were not possible."""
    threads: tuple[Thread, ...] = ()
    """Its threads, the main one first."""
    native: Stack = Stack()
    """The main thread with its native frames, if they were read."""
    kernel: _Texts = ()
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


class WorkerReport(Struct, frozen=True):
    """What is known about one worker of a job: who it is, and where it stands."""

    rank: int
    local_rank: int
    node_rank: int | None
    host: str
    process: ProcessReport


def answer_of(node: NodeSnapshot, workers: Iterable[WorkerReport]) -> dict[str, Any]:
    """What the node answers: its workers as JSON, and their stacks, to which threads refer by number.

    Most ranks of a job that hangs are at the same place.
    """
    numbers: dict[Stack, int] = {}

    def told(process: ProcessReport) -> dict[str, Any]:
        data: dict[str, Any] = to_builtins(process)
        for thread, each in zip(process.threads, data.get("threads", ()), strict=True):
            each["stack"] = numbers.setdefault(thread.frames, len(numbers))
        if process.native:
            data["native"] = numbers.setdefault(process.native, len(numbers))
        if process.below:
            data["below"] = list(map(told, process.below))
        return data

    found = [{"rank": each.rank, "local_rank": each.local_rank} | told(each.process) for each in workers]
    about = {"node_rank": node.node_rank, "host": node.host, "agent": node.agent}
    return about | {"workers": found, "stacks": to_builtins(list(numbers))}


class _Ranks(Struct):
    """Of a worker in an answer, beside the fields of its ``ProcessReport``."""

    rank: _Index
    local_rank: _Index


class _Node(Struct):
    """A node's answer: see ``answer_of``."""

    node_rank: int | None
    host: str
    workers: Annotated[list[dict[str, Any]], Meta(max_length=4096)]
    stacks: list[tuple[Frame, ...]]


def _cut(value: Any) -> Any:
    """The JSON with its texts cut: they come from another node, and go into the log of this one."""
    if isinstance(value, str):
        return value[:_TEXT]
    if isinstance(value, list):
        return [_cut(each) for each in value]
    return {name: _cut(each) for name, each in value.items()} if isinstance(value, dict) else value


def workers_of(answer: Any) -> list[WorkerReport]:
    """The workers of one node, from its answer. Raises ``ValueError`` if it is not a valid answer."""
    node = checked(_cut(answer), _Node)

    def stack(_: type, number: Any) -> Stack:
        if number is not None and (type(number) is not int or not 0 <= number < len(node.stacks)):
            raise ValueError("it refers to stacks that it does not contain")
        return Stack(() if number is None else node.stacks[number])

    found = ((checked(each, _Ranks), checked(each, ProcessReport, stack)) for each in node.workers)
    return [WorkerReport(each.rank, each.local_rank, node.node_rank, node.host, process) for each, process in found]


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
class StackGroup:
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


def grouped(workers: Iterable[WorkerReport]) -> list[StackGroup]:
    """The groups, the odd ones first: what stands still, the smaller ones, those that wait for nobody, then by rank."""
    every = sorted(workers, key=lambda each: (each.rank, each.process.pid))
    waiting = {each.process.frames for each in every if _kind(each) == "waiting"}
    found: dict[object, list[WorkerReport]] = {}
    for worker in every:
        found.setdefault(_place(worker, waiting), []).append(worker)
    groups = [StackGroup(min(map(_kind, each), key=_KINDS.index), tuple(each)) for each in found.values()]
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


class Silent(Struct, frozen=True):
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


def headline(groups: Sequence[StackGroup], silent: Sequence[Silent] = ()) -> str:
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


def _part(group: StackGroup) -> str:
    return f"{named(group.ranks)} ({_where_from(group)}) {doing(group)}"


def doing(group: StackGroup) -> str:
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


def _where_from(group: StackGroup) -> str:
    nodes = sorted({worker.node_rank for worker in group.workers if worker.node_rank is not None})
    hosts = sorted({worker.host for worker in group.workers})
    text = f"node{'' if len(nodes) == 1 else 's'} {compressed(nodes)}" if nodes else ""
    if len(hosts) == 1:
        text = f"{text} on {printable(hosts[0], 80)}" if text else printable(hosts[0], 80)
    return text or "no node"


def _group(group: StackGroup, threads: bool) -> Iterator[str]:
    pids = [worker.process.pid for worker in group.workers]
    pids_text = f"pid{'' if len(pids) == 1 else 's'} {some(pids, _PIDS_NAMED)}"
    name = named(group.ranks)
    yield f"{name[0].upper()}{name[1:]} ({_where_from(group)}, {pids_text}): {_state(group)}"
    worker = group.shown
    yield from _stacks(worker.process, threads)
    odd = [each for each in group.workers if each is not worker and each.process.children]
    for each in (worker, *odd):
        yield from _children(each, group)


def _state(group: StackGroup) -> str:
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


def _children(worker: WorkerReport, group: StackGroup) -> Iterator[str]:
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
