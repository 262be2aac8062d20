"""A job's timeline as data, which is what ``--json`` prints, as text, and in Chrome's trace format.

Perfetto (ui.perfetto.dev) shows the last. It follows the format's description, "Trace Event Format": complete events
(``X``) for phases, instant ones (``i``) for what happens, metadata (``M``) for names. Times are in microseconds from
the job's beginning.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import to_builtins

from rdzv_launcher.run.timeline import PHASES
from rdzv_launcher.tools.timeline.interruptions import Interruption
from rdzv_launcher.tools.timeline.job import JobTimeline, TimelineEvent
from rdzv_plugins.plain_text import many, printable_data


def as_data(job: JobTimeline, found: list[Interruption], complaints: list[str]) -> dict[str, Any]:
    """The data of a timeline. Times are in seconds since the epoch, by the clock of ``clock``; lengths in seconds."""
    data = {
        "run": job.run,
        "begin": job.epoch + job.begin,
        "end": job.epoch + job.end,
        "seconds": job.end - job.begin,
        "without_round": sum(each.seconds for each in found),
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
                "complete": job.epoch + each.complete_at,
                "nodes": each.nodes or len(each.at),
                "files": len(each.at),
            }
            for each in job.rounds
        ],
        "interruptions": [_interruption_data(job, each) for each in found],
        "left_out": complaints,
    }
    return {key: _rounded(value) for key, value in data.items()}


def _rounded(data: Any) -> Any:
    """A copy of the data, with all times in whole microseconds."""
    if isinstance(data, float):
        return round(data, 6)
    if isinstance(data, dict):
        return {key: _rounded(value) for key, value in data.items()}
    return [_rounded(each) for each in data] if isinstance(data, list | tuple) else data


def _clock(job: JobTimeline, clock: str) -> dict[str, Any]:
    offset = job.offsets[clock]
    return {
        "id": clock,
        "ahead": job.epochs[clock] - job.epoch - offset.seconds,
        "uncertainty": offset.uncertainty,
        "exchanges": offset.exchanges,
        "why": offset.why,
    }


def _interruption_data(job: JobTimeline, each: Interruption) -> dict[str, Any]:
    data: dict[str, Any] = to_builtins(each)
    for part in (data, *data["phases"]):
        part["begin"] += job.epoch
    return data


_FIRST_S, _LAST_S = -6e10, 2.5e11
"""The times that have a date: years 1 to 9999."""
_SAME_S = 0.01
"""Clocks that differ by less do not get a line of their own."""


def as_text(data: Mapping[str, Any]) -> str:
    """Who was there, how far apart clocks are, and what each interruption has cost, phase by phase."""
    lines = [
        f"run {data['run']}: {many(len(data['agents']), 'agent')}, {many(len(data['rounds']), 'round')}, "
        f"{data['seconds']:.3f} s from {_moment(data['begin'])} on, by the clock of {data['clock']}",
        *_clocks(data),
        *_missing(data),
    ]
    for each in data["interruptions"]:
        lines += ["", *_interruption_lines(each)]
    share = 100 * data["without_round"] / data["seconds"] if data["seconds"] else 0.0
    lines += ["", f"without a complete round: {data['without_round']:.3f} s of {data['seconds']:.3f} s ({share:.1f} %)"]
    return "\n".join(lines)


def _moment(seconds: float) -> str:
    if not _FIRST_S <= seconds < _LAST_S:  # no clock shows this, but a file may say it
        return f"{seconds:.3f} s since the epoch"
    return datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + "Z"


def _clocks(data: Mapping[str, Any]) -> Iterator[str]:
    seen = set()
    for agent in data["agents"]:
        clock = agent["clock"]
        if clock["id"] in seen:
            continue
        seen.add(clock["id"])
        if clock["uncertainty"] is None:
            yield f"clock of {agent['host']}: not corrected, may be wrong: {clock['why']}"
        elif agent["host"] != data["clock"] or abs(clock["ahead"]) >= _SAME_S:
            side = "ahead of" if clock["ahead"] >= 0 else "behind"
            yield (
                f"clock of {agent['host']}: {abs(clock['ahead']):.4f} s {side} that of {data['clock']}, to within "
                f"{clock['uncertainty'] * 1000:.2f} ms, from {many(clock['exchanges'], 'exchange')}"
            )


def _missing(data: Mapping[str, Any]) -> Iterator[str]:
    for each in data["rounds"]:
        if each["files"] < each["nodes"]:
            yield f"round {each['round']}: files from only {each['files']} of its {each['nodes']} nodes"


def _interruption_lines(each: Mapping[str, Any]) -> Iterator[str]:
    title = {
        "start": f"start: {each['seconds']:.3f} s until round {each['until']} was complete",
        "restart": f"after round {each['after']}: {each['seconds']:.3f} s until round {each['until']} was complete",
        "end": f"after round {each['after']}: {each['seconds']:.3f} s until the end of the job",
    }[each["kind"]]
    yield f"{title}: {each['cause']}" if each["cause"] else title
    for phase in each["phases"]:
        last = f"  {phase['last']} was the last" if phase["last"] else ""
        yield f"  {phase['phase']:<11} {phase['seconds']:>9.3f} s{last}".rstrip()
    then = [
        f"{what} {each[name]:.3f} s after that"
        for what, name in (("workers started", "workers_started_after"), ("first line", "first_line_after"))
        if each[name] is not None
    ]
    if then:
        yield f"  {', '.join(then)}"


_JOB = 1
"""The track of the job; those of agents come after it."""


def as_trace(job: JobTimeline, found: list[Interruption]) -> dict[str, Any]:
    """The whole trace: the job's rounds and interruptions on their own track, then those of each agent."""
    events: list[dict[str, Any]] = [*_name(_JOB, f"run {job.run}", 0), *_job(job, found)]
    for pid, (name, agent) in enumerate(job.agents.items(), start=_JOB + 1):
        events += [*_name(pid, agent.title, pid), *_agent(job, job.of[name], pid)]
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
    job: JobTimeline, name: str, category: str, begin: float, seconds: float, pid: int, **args: Any
) -> dict[str, Any]:
    return {
        "ph": "X",
        "name": name,
        "cat": category,
        "ts": _us(job, begin),
        "dur": round(max(0.0, seconds) * 1e6, 3),
        "pid": pid,
        "tid": 0,
        "args": args,
    }


def _us(job: JobTimeline, at: float) -> float:
    return round((at - job.begin) * 1e6, 3)


def _job(job: JobTimeline, found: list[Interruption]) -> Iterator[dict[str, Any]]:
    for each in found:
        yield _span(job, each.kind, "interruption", each.begin, each.seconds, _JOB, cause=each.cause)
        for part in each.phases:
            yield _span(job, part.phase, "phase", part.begin, part.seconds, _JOB, last=part.last)
    begins = {each.after: each.begin for each in found if each.after}
    for round_ in job.rounds:
        name, nodes = f"round {round_.number}", round_.nodes or len(round_.at)
        seconds = begins.get(round_.number, job.end) - round_.complete_at
        yield _span(job, name, "round", round_.complete_at, seconds, _JOB, nodes=nodes)


def _agent(job: JobTimeline, events: list[TimelineEvent], pid: int) -> Iterator[dict[str, Any]]:
    begin = events[0]
    for each in events:
        record = each.record
        if record.phase != begin.record.phase:
            yield _span(job, begin.record.phase, "phase", begin.at, each.at - begin.at, pid, round=begin.record.round)
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
    seconds = events[-1].at - begin.at
    yield _span(job, begin.record.phase, "phase", begin.at, seconds, pid, round=begin.record.round)
