"""What those who watch a job are told of a node: its agent's stage, what its workers use, and what they printed last.

Read only when somebody asks.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

from msgspec import Meta, Struct, to_builtins

from rdzv_launcher.run.agent.state_machine import AgentStateMachine
from rdzv_launcher.run.stacks import processes
from rdzv_launcher.run.stacks.node import NodeSnapshot, StackedWorker
from rdzv_launcher.run.workers.output.growing_file import last_lines
from rdzv_plugins.system.processes import children_now, read_stat

_PAGE = os.sysconf("SC_PAGE_SIZE")


class WorkerStats(Struct, frozen=True):
    """A worker, including everything that it has started. Memory that processes share counts once for each of them."""

    rank: int
    local_rank: int
    pid: int
    state: str
    """One letter, as in /proc/PID/stat."""
    cpu_s: float
    memory_bytes: int


class NodeStats(Struct, frozen=True):
    """A node's answer to ``vitals``."""

    stage: str
    restarts: int
    at: float
    """This machine's clock, in seconds: its increase between two answers is the time between them."""
    workers: Annotated[tuple[WorkerStats, ...], Meta(max_length=4096)]


def vitals(node: NodeSnapshot, decisions: AgentStateMachine) -> Any:
    """The figures, as JSON. Any thread may call it; takes about a millisecond for each worker."""
    pids_of = children_now()
    workers = tuple(each for worker in node.workers if (each := _worker(worker, pids_of)) is not None)
    return to_builtins(NodeStats(decisions.stage, decisions.restarts_used, time.monotonic(), workers))


def _worker(worker: StackedWorker, pids_of: Callable[[int], list[int]]) -> WorkerStats | None:
    """The figures of one worker; None if it has ended."""
    own = read_stat(worker.pid)
    if own is None or not own.lives:
        return None
    pids = [worker.pid, *processes.below(worker.pid, pids_of)]
    stats = [own, *(each for each in map(read_stat, pids[1:]) if each is not None)]
    cpu_s, memory = sum(each.cpu_s for each in stats), sum(map(_memory, pids))
    return WorkerStats(worker.rank, worker.local_rank, worker.pid, own.state, cpu_s, memory)


def _memory(pid: int) -> int:
    fields = processes.read(pid, "statm").split()
    return int(fields[1]) * _PAGE if len(fields) > 1 else 0


MOST_LINES = 500
_LINES = 100
_LONGEST = 2000
"""The most characters of a line."""
_TURN_S = 1.0
_reading = threading.Lock()
"""Held while files are read: they may be on a file system that hangs."""
_TO_SCREEN = "goes to the screen of its node alone: --log-prefix, --tee or --redirects keeps it in a file"
_NOWHERE = "goes nowhere: a filter of ranks leaves it out"


class LogStream(Struct, frozen=True):
    """The end of a stream of a worker."""

    stream: str
    path: str
    lines: list[str]
    problem: str
    """Why there are no lines; empty if they could be read."""


class LogAnswer(Struct, frozen=True):
    """A node's answer to ``log``."""

    streams: list[LogStream]


def log_tail(
    arguments: Mapping[str, Any],
    node: NodeSnapshot,
    files: Callable[[int], Mapping[str, str]],
    stderr: Callable[[int], Sequence[str]],
) -> Any:
    """Answer ``log``, with the arguments ``rank`` and ``lines``, the most for each stream. Any thread.

    ``files`` and ``stderr`` take a local rank: ``files`` returns where its streams go, empty for the screen,
    ``os.devnull`` for nowhere; ``stderr`` the end of a stream that goes to no file. Raises ``ValueError`` for other
    arguments, and ``TimeoutError`` while another look has not ended.
    """
    rank, count = arguments.get("rank"), arguments.get("lines", _LINES)
    if not isinstance(count, int) or not 1 <= count <= MOST_LINES:
        raise ValueError(f"lines={count!r} is not from 1 to {MOST_LINES}")
    worker = next((each for each in node.workers if each.rank == rank), None)
    if worker is None:
        raise ValueError(f"no worker of rank {rank!r} runs here now")
    if not _reading.acquire(timeout=_TURN_S):
        raise TimeoutError("a file that was looked at before has not been read yet: does its file system hang?")
    try:
        kept, places = stderr(worker.local_rank), files(worker.local_rank)
        return to_builtins(LogAnswer([_end_of(stream, path, kept, count) for stream, path in places.items()]))
    finally:
        _reading.release()


def _end_of(stream: str, path: str, stderr: Sequence[str], count: int) -> LogStream:
    lines: Sequence[str] = ()
    problem = ""
    if path not in ("", os.devnull):
        try:
            lines = last_lines(path, count)
        except OSError as error:
            problem = f"cannot be read: {error.strerror or error}"
    elif stream == "stderr":
        lines = stderr[-count:]
    else:
        problem = _NOWHERE if path else _TO_SCREEN
    # of a line that was overwritten, what it showed last
    shown = [line.rstrip("\r").rpartition("\r")[2][:_LONGEST] for line in lines]
    return LogStream(stream, path, shown, problem)
