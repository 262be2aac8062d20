"""A job's timeline as data, which is what ``--json`` prints."""

from __future__ import annotations

from typing import Any

from rdzv_launcher.tools.timeline.interruptions import Interruption
from rdzv_launcher.tools.timeline.job import JobTimeline


def as_data(job: JobTimeline, found: list[Interruption], complaints: list[str]) -> dict[str, Any]:
    """The data of a timeline. Times are in seconds since the epoch, by the clock of ``clock``; lengths in seconds."""
    return {
        "run": job.run,
        "begin": _at(job, job.begin),
        "end": _at(job, job.end),
        "seconds": round(job.end - job.begin, 6),
        "without_round": round(sum(each.seconds for each in found), 6),
        "clock": job.hosts[job.reference],
        "agents": [
            {
                "agent": each.name,
                "title": each.title,
                "host": each.host,
                "file": each.file,
                "events": len(each.records),
                "clock": _clock(job, each.clock),
            }
            for each in job.agents.values()
        ],
        "rounds": [
            {
                "round": each.number,
                "complete": _at(job, each.complete_at),
                "nodes": each.nodes or len(each.at),
                "files": len(each.at),
            }
            for each in job.rounds
        ],
        "interruptions": [_interruption(job, each) for each in found],
        "left_out": complaints,
    }


def _at(job: JobTimeline, at: float) -> float:
    return round(job.epoch + at, 6)


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 6)


def _clock(job: JobTimeline, clock: str) -> dict[str, Any]:
    offset = job.offsets[clock]
    shift = offset.seconds + job.epoch - _base(job, clock)
    return {
        "id": clock,
        "ahead": round(-shift, 6),
        "uncertainty": _rounded(offset.uncertainty),
        "exchanges": offset.exchanges,
        "why": offset.why,
    }


def _base(job: JobTimeline, clock: str) -> float:
    """A clock's own idea of the epoch."""
    first = next(each for each in job.agents.values() if each.clock == clock).records[0]
    return first.wall - first.mono


def _interruption(job: JobTimeline, each: Interruption) -> dict[str, Any]:
    return {
        "kind": each.kind,
        "after": each.after,
        "until": each.until,
        "begin": _at(job, each.begin),
        "seconds": round(each.seconds, 6),
        "cause": each.cause,
        "phases": [
            {
                "phase": phase.name,
                "begin": _at(job, phase.begin),
                "seconds": round(phase.seconds, 6),
                "last": phase.last,
            }
            for phase in each.phases
        ],
        "workers_started_after": _rounded(each.started),
        "first_line_after": _rounded(each.line),
    }
