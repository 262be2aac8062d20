"""What nodes answer when asked for their vitals, checked; and the use of processors between two answers."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct
from msgspec.structs import replace

from rdzv_plugins.plain_text import printable
from rdzv_plugins.questions import checked


class WorkerVitals(Struct, frozen=True):
    """A worker, including everything that it has started."""

    rank: int
    local_rank: int
    pid: int
    state: str
    """One letter, as in /proc/PID/stat."""
    cpu_s: float
    memory_bytes: int


class Vitals(Struct, frozen=True):
    """A node's answer."""

    stage: str
    restarts: int
    at: float
    """The node's own clock, in seconds."""
    workers: Annotated[tuple[WorkerVitals, ...], Meta(max_length=4096)]


def parse_vitals(answer: Any) -> Vitals:
    """Read a node's answer. Raises ``ValueError`` for anything else."""
    said = checked(answer, Vitals)
    workers = tuple(replace(each, state=printable(each.state, 1)) for each in said.workers)
    return replace(said, stage=printable(said.stage, 20), workers=workers)


def cpu_percent(now: Vitals, before: Vitals | None, worker: WorkerVitals) -> float | None:
    """Per cent of one processor, between two answers; None if there is no earlier one of this worker."""
    if before is None or not now.at > before.at:
        return None
    last = next((each for each in before.workers if (each.rank, each.pid) == (worker.rank, worker.pid)), None)
    return None if last is None else max(0.0, 100 * (worker.cpu_s - last.cpu_s) / (now.at - before.at))
