"""What nodes answer when asked for their vitals, checked; and the use of processors between two answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rdzv_plugins.plain_text import printable

_MOST_WORKERS = 4096


@dataclass(frozen=True)
class WorkerVitals:
    """A worker, including everything that it has started."""

    rank: int
    local_rank: int
    pid: int
    state: str
    """One letter, as in /proc/PID/stat."""
    cpu_s: float
    memory_bytes: int


@dataclass(frozen=True)
class Vitals:
    """A node's answer."""

    stage: str
    restarts: int
    at: float
    """The node's own clock, in seconds."""
    workers: tuple[WorkerVitals, ...]


def parse_vitals(answer: Any) -> Vitals:
    """Read a node's answer. Raises ``ValueError`` for anything else."""
    try:
        workers = answer["workers"]
        if not isinstance(workers, list) or len(workers) > _MOST_WORKERS:
            raise TypeError("its workers are no list, or too many")
        return Vitals(
            printable(str(answer["stage"]), 20),
            int(answer["restarts"]),
            float(answer["at"]),
            tuple(
                WorkerVitals(
                    int(each["rank"]),
                    int(each["local_rank"]),
                    int(each["pid"]),
                    printable(str(each["state"]), 1),
                    float(each["cpu_s"]),
                    int(each["memory_bytes"]),
                )
                for each in workers
            ),
        )
    except (TypeError, KeyError, IndexError, OverflowError) as error:
        raise ValueError(f"not the vitals of a node: {error!r}") from None


def cpu_percent(now: Vitals, before: Vitals | None, worker: WorkerVitals) -> float | None:
    """Per cent of one processor, between two answers; None if there is no earlier one of this worker."""
    if before is None or not now.at > before.at:
        return None
    last = next((each for each in before.workers if (each.rank, each.pid) == (worker.rank, worker.pid)), None)
    return None if last is None else max(0.0, 100 * (worker.cpu_s - last.cpu_s) / (now.at - before.at))
