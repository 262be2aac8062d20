"""The groups of a job's workers as text for people: a headline, each place once, and who has not answered."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from rdzv_launcher.run.rank_names import compressed, named
from rdzv_launcher.run.stacks.frames import Frame, Thread
from rdzv_launcher.run.stacks.grouping import Group, grouped
from rdzv_launcher.run.stacks.reports import ProcessReport, WorkerReport
from rdzv_plugins.plain_text import printable, some

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
    counts = f"{_many(len(workers), 'worker')} on {_many(len(nodes), 'node')}" if workers else "no worker"
    odd, most = groups[:-1], groups[-1:]
    parts = [_part(group) for group in odd[:_HEADLINE_GROUPS]]
    if left := odd[_HEADLINE_GROUPS:]:
        place = "another place" if len(left) == 1 else f"{len(left)} other places"
        parts.append(f"{sum(len(group.workers) for group in left)} more at {place}")
    parts += [_most(group, odd) for group in most]
    if count := sum(each.kind == "silent" for each in silent):
        parts.append(f"{_many(count, 'node')} without an answer")
    return f"{counts}: {'; '.join(parts)}" if parts else counts


def _part(group: Group) -> str:
    return f"{named(group.ranks)} ({_where_from(group)}) {doing(group)}"


def _most(group: Group, odd: Sequence[Group]) -> str:
    if len(group.workers) == 1:
        return _part(group)
    return f"{f'the other {len(group.workers)}' if odd else 'all'} {doing(group)}"


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
        return f"STOPPED by a signal; kill -CONT {pids} lets {'it' if len(group.workers) == 1 else 'them'} go on"
    if group.kind == "stuck":
        return f"stuck in the kernel, in D state{channel}: mostly a device, a driver or a file system"
    if group.kind == "unknown":
        return f"in state {printable(process.state, 10)}{channel}; its stack cannot be read"
    return {"running": "running", "waiting": f"waiting{channel}", "ended": "ended"}[group.kind]


def _stacks(process: ProcessReport, threads: bool) -> Iterator[str]:
    reader = process.reader
    if reader is not process:
        yield f"  no Python program; that of pid {reader.pid}, which it has started ({printable(reader.command, 120)}):"
    if not reader.threads:
        yield from (f"  {printable(reason)}" for reason in process.tried)
    else:
        main = reader.threads[0]
        yield from _frames(reader.native or main.frames)
        if reader.how == "faulthandler":
            yield f"  (written by the worker itself: {printable(reader.tried[0] if reader.tried else '')})"
        if threads:
            for thread in reader.threads[1:]:
                yield from _thread(thread)
    if reader.kernel:
        yield "  in the kernel:"
        yield from (f"    {printable(each, 120)}" for each in reader.kernel)


def _thread(thread: Thread) -> Iterator[str]:
    yield f"  thread {printable(thread.name, 80) or 'without a name'}:"
    yield from _frames(thread.frames)


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


def _many(count: int, one: str) -> str:
    return f"{count} {one if count == 1 else one + 's'}"
