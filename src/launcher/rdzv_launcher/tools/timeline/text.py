"""A job's timeline as text for people, from the data of ``report``."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping
from typing import Any

_FIRST_S, _LAST_S = -6e10, 2.5e11
"""The times that have a date: years 1 to 9999."""
_SAME_S = 0.01
"""Clocks that differ by less do not get a line of their own."""


def as_text(data: Mapping[str, Any]) -> str:
    """Who was there, how far apart clocks are, and what each interruption has cost, phase by phase."""
    lines = [
        f"run {data['run']}: {_count(len(data['agents']), 'agent')}, {_count(len(data['rounds']), 'round')}, "
        f"{data['seconds']:.3f} s from {_moment(data['begin'])} on, by the clock of {data['clock']}",
        *_clocks(data),
        *_missing(data),
    ]
    for each in data["interruptions"]:
        lines += ["", *_interruption(each)]
    share = 100 * data["without_round"] / data["seconds"] if data["seconds"] else 0.0
    lines += ["", f"without a complete round: {data['without_round']:.3f} s of {data['seconds']:.3f} s ({share:.1f} %)"]
    return "\n".join(lines)


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


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
            yield f"clock of {agent['host']}: taken as it is, and may be wrong: {clock['why']}"
        elif agent["host"] != data["clock"] or abs(clock["ahead"]) >= _SAME_S:
            side = "ahead of" if clock["ahead"] >= 0 else "behind"
            yield (
                f"clock of {agent['host']}: {abs(clock['ahead']):.4f} s {side} that of {data['clock']}, to within "
                f"{clock['uncertainty'] * 1000:.2f} ms, by {_count(clock['exchanges'], 'exchange')}"
            )


def _missing(data: Mapping[str, Any]) -> Iterator[str]:
    for each in data["rounds"]:
        if each["files"] < each["nodes"]:
            yield f"round {each['round']}: there are files of {each['files']} of its {each['nodes']} nodes alone"


def _interruption(each: Mapping[str, Any]) -> Iterator[str]:
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
