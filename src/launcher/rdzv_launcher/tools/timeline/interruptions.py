"""What the time without a complete round was spent on: each interruption, cut into phases. No I/O.

A phase ends when the last node has got that far, so that the phases of an interruption follow each other, and add up to
all of it. If nobody has reported a phase, its time is part of the next one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

from msgspec import Struct

from rdzv_launcher.run.timeline import INTERRUPTING
from rdzv_launcher.tools.timeline.job import JobTimeline, RoundTimeline, TimelineEvent

_CAUSES = ("lost", "hung", "leaving", "failed", "over")
"""The events that say why a round has ended: if there are several, the first does, as the others follow from it."""


class Phase(Struct, frozen=True):
    """A part of an interruption. It begins at a time by the reference's clock, in seconds.

    docs/reference/timeline.md says what each phase is.
    """

    phase: str
    begin: float
    seconds: float
    last: str
    """The last node to end it; empty if there is none."""


class Interruption(Struct, frozen=True):
    """A time in which no round was complete. It begins at a time by the reference's clock, in seconds."""

    kind: Literal["start", "restart", "end"]
    after: int
    """The number of the round before; 0: none."""
    until: int
    """The number of the round after; 0: none."""
    begin: float
    seconds: float
    cause: str
    phases: tuple[Phase, ...]
    workers_started_after: float | None
    """Seconds from the interruption's end until the last node had started its workers."""
    first_line_after: float | None
    """Seconds from the interruption's end until the last node whose workers wrote something had its first line."""


def interruptions(job: JobTimeline) -> list[Interruption]:
    """All interruptions, in order: the start of the job, what lay between rounds, and an end that was not a success."""
    found: list[Interruption] = []
    for before, after in zip([None, *job.rounds], [*job.rounds, None], strict=True):
        if before is None:
            found.append(_between(job, None, after, job.begin, []))
            continue
        signs = _signs(job, before, after)
        if after is None and (not signs or _was_done(job)):
            continue
        begin = signs[0].at if signs else min(before.complete_at, after.complete_at if after else job.end)
        found.append(_between(job, before, after, max(begin, before.complete_at), signs))
    return found


def _was_done(job: JobTimeline) -> bool:
    ends = [each.record.facts.get("outcome") for each in job.events if each.record.event == "left"]
    return bool(ends) and set(ends) == {"done"}


def _window(
    job: JobTimeline, name: str, before: RoundTimeline | None, after: RoundTimeline | None
) -> Iterator[TimelineEvent]:
    """An agent's events from one round's completion to the next one's, in order."""
    since = before.at.get(name, before.complete_at) if before is not None else float("-inf")
    until = float("inf") if after is None else after.at.get(name, after.complete_at)
    return (each for each in job.of[name] if since <= each.at <= until)


def _signs(job: JobTimeline, before: RoundTimeline, after: RoundTimeline | None) -> list[TimelineEvent]:
    """The events that say that ``before`` does not go on, in order of time."""
    found = [
        each
        for name in before.at
        for each in _window(job, name, before, after)
        if each.record.event in INTERRUPTING and each.record.facts.get("over", before.number) == before.number
    ]
    return sorted(found, key=lambda each: each.at)


def _cause(signs: list[TimelineEvent]) -> str:
    said = [each for each in signs if each.record.cause and each.record.event in _CAUSES]
    return min(said, key=lambda each: (_CAUSES.index(each.record.event), each.at)).record.cause if said else ""


_Mark = tuple[float, str]
"""A time, and the node that the event came from."""


def _between(
    job: JobTimeline,
    before: RoundTimeline | None,
    after: RoundTimeline | None,
    begin: float,
    signs: list[TimelineEvent],
) -> Interruption:
    names = set(job.agents) if before is None or after is None else {*before.at, *after.at}
    windows = {name: list(_window(job, name, before, after)) for name in names}
    inside = [each for window in windows.values() for each in window if each.at >= begin]
    marks: list[tuple[str, _Mark | None]] = []
    if before is not None:
        stops = [_first("stopping", windows[name]) or _first("stopped", windows[name]) for name in before.at]
        marks.append(("noticing", max((each for each in stops if each is not None), default=None)))
        marks.append(("stopping", _last("stopped", inside)))
    end = job.end if after is None else after.complete_at
    if after is None:
        last = max(((each.at, each.agent.title) for each in inside), default=(end, ""))
        marks.append(("ending", (end, last[1])))
    else:
        joins = [each for name in after.at for each in windows[name] if each.record.event == "joined"]
        delayed, joined = _last("delayed", inside), _last("joined", joins)
        if before is None:
            marks.append(("opening", joined))
        else:
            marks += [("deciding", delayed), ("delaying", joined)] if delayed else [("deciding", joined)]
        # failed attempts have other numbers, unless the nodes count by themselves and report nothing else
        here = [each for each in inside if each.record.round == after.number]
        slowest = max((at, name) for name, at in after.at.items())[1]
        placed = _first("placed", here)
        marks.append(("meeting", (placed[0], "") if placed else None))  # nobody was the last: rank 0 is told first
        marks.append(("connecting", _last("reached", here)))
        marks.append(("completing", (end, job.agents[slowest].title)))
    return Interruption(
        "start" if before is None else "end" if after is None else "restart",
        before.number if before else 0,
        after.number if after else 0,
        begin,
        end - begin,
        _cause(signs),
        tuple(_phases(begin, end, marks)),
        _after(job, after, "started"),
        _after(job, after, "line"),
    )


def _last(event: str, among: Iterable[TimelineEvent]) -> _Mark | None:
    return max(((each.at, each.agent.title) for each in among if each.record.event == event), default=None)


def _first(event: str, among: Iterable[TimelineEvent]) -> _Mark | None:
    return min(((each.at, each.agent.title) for each in among if each.record.event == event), default=None)


def _phases(begin: float, end: float, marks: Iterable[tuple[str, _Mark | None]]) -> Iterator[Phase]:
    """The phases, one after another, from ``begin`` to the last mark."""
    for name, mark in marks:
        if mark is not None:
            until = min(max(mark[0], begin), end)
            yield Phase(name, begin, until - begin, mark[1])
            begin = until


def _after(job: JobTimeline, round_: RoundTimeline | None, event: str) -> float | None:
    """Seconds from the round's completion to this event on the last node that reports it before its next round."""
    if round_ is None:
        return None
    times = []
    for name, at in round_.at.items():
        for each in job.of[name]:
            if each.at > at and each.record.event in (event, "joined"):
                times += [each.at] if each.record.event == event else []
                break
    return max(0.0, max(times) - round_.complete_at) if times else None
