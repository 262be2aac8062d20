"""A job's timeline in Chrome's trace format, which Perfetto (ui.perfetto.dev) shows.

It follows the format's description, "Trace Event Format": complete events (``X``) for phases, instant ones (``i``) for
what happens, metadata (``M``) for names. Times are in microseconds from the job's beginning.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rdzv_launcher.run.timeline import PHASES
from rdzv_launcher.tools.timeline.interruptions import Interruption
from rdzv_launcher.tools.timeline.job import JobTimeline, TimelineEvent
from rdzv_plugins.plain_text import printable_data

_JOB = 1
"""The track of the job; those of agents come after it."""


def as_trace(job: JobTimeline, found: list[Interruption]) -> dict[str, Any]:
    """The whole trace: the job's rounds and interruptions on their own track, then those of each agent."""
    events: list[dict[str, Any]] = [*_name(_JOB, f"run {job.run}", 0), *_job(job, found)]
    for pid, (name, agent) in enumerate(job.agents.items(), start=_JOB + 1):
        events += [*_name(pid, agent.title, pid), *_agent(job, job.of(name), pid)]
    return {
        "traceEvents": printable_data(events),
        "displayTimeUnit": "ms",
        "otherData": {"run": job.run, "begin": job.epoch + job.begin},
    }


def _name(pid: int, name: str, order: int) -> list[dict[str, Any]]:
    return [
        {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": name}},
        {"ph": "M", "name": "process_sort_index", "pid": pid, "tid": 0, "args": {"sort_index": order}},
    ]


def _span(
    job: JobTimeline, name: str, category: str, begin: float, end: float, pid: int, tid: int, **args: Any
) -> dict[str, Any]:
    return {
        "ph": "X",
        "name": name,
        "cat": category,
        "ts": _us(job, begin),
        "dur": round(max(0.0, end - begin) * 1e6, 3),
        "pid": pid,
        "tid": tid,
        "args": args,
    }


def _us(job: JobTimeline, at: float) -> float:
    return round((at - job.begin) * 1e6, 3)


def _job(job: JobTimeline, found: list[Interruption]) -> Iterator[dict[str, Any]]:
    for each in found:
        yield _span(job, each.kind, "interruption", each.begin, each.end, _JOB, 0, cause=each.cause)
        for phase in each.phases:
            yield _span(job, phase.name, "phase", phase.begin, phase.end, _JOB, 0, last=phase.last)
    begins = {each.after: each.begin for each in found if each.after}
    for round_ in job.rounds:
        end = begins.get(round_.number, job.end)
        yield _span(
            job,
            f"round {round_.number}",
            "round",
            round_.complete_at,
            end,
            _JOB,
            0,
            nodes=round_.nodes or len(round_.at),
        )


def _agent(job: JobTimeline, events: list[TimelineEvent], pid: int) -> Iterator[dict[str, Any]]:
    begin = events[0]
    for each in events:
        record = each.record
        if record.phase != begin.record.phase:
            yield _span(job, begin.record.phase, "phase", begin.at, each.at, pid, 0, round=begin.record.round)
            begin = each
        if record.event not in PHASES or record.cause:
            yield {
                "ph": "i",
                "s": "p",
                "name": record.event,
                "cat": "event",
                "ts": _us(job, each.at),
                "pid": pid,
                "tid": 0,
                "args": {"round": record.round, "cause": record.cause, **record.facts},
            }
    yield _span(job, begin.record.phase, "phase", begin.at, events[-1].at, pid, 0, round=begin.record.round)
