"""How far apart the clocks of several machines are, from what nodes told each other. No I/O, no clock of its own.

Where some nodes log a moment before they tell something, and others log one after they have heard all of it, each of
the first moments was before each of the second. With an unknown offset for every clock that is a difference constraint,
and together both directions bound an offset from both sides. A round is such an exchange: every node logs that it has
reached the store before it says so, and that the round is complete after all have said so. The tightest bounds are
shortest paths (Bellman and Ford; Cormen et al., *Introduction to Algorithms*, "Difference constraints and shortest
paths"). An extra graph node for each exchange, standing for its own moment, keeps the number of constraints at two per
clock.
"""

from __future__ import annotations

import collections
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_SLACKS = (0.0, 0.0002, 0.001, 0.005, 0.02, 0.1, 1.0)
"""Seconds by which constraints may be violated, tried in turn: clocks of machines drift while a job runs."""


@dataclass(frozen=True)
class Exchange:
    """All of ``before`` was earlier than all of ``after``: times in seconds, each by the clock that is its key."""

    before: dict[str, float]
    after: dict[str, float]


@dataclass(frozen=True)
class Offset:
    """What has to be added to a clock to get the reference's time, in seconds."""

    seconds: float
    uncertainty: float | None
    """The offset's largest error in seconds; None: nothing bounds it, it comes from the wall clocks alone."""
    exchanges: int = 0
    """How many exchanges included this clock."""
    why: str = ""
    """Why nothing bounds it."""


def estimate(reference: str, guesses: Mapping[str, float], exchanges: Sequence[Exchange]) -> dict[str, Offset]:
    """The offset of each clock. ``guesses``, from the wall clocks, are used where nothing bounds an offset.

    A clock that contradicts the others is left with its guess, and does not affect theirs.
    """
    exchanges = [_without(each, _with_itself(each)) for each in exchanges]
    excluded: set[str] = set()
    while True:
        used = [_without(each, excluded) for each in exchanges]
        suspects: set[str] = set()
        for slack in _SLACKS:
            bounds = _bounds(reference, used, slack)
            if not isinstance(bounds, set):
                return _offsets(reference, guesses, bounds, used, excluded)
            suspects = bounds
        excluded.add(_worst(reference, used, suspects))


def _with_itself(exchange: Exchange) -> set[str]:
    """The clocks that contradict themselves: what had to be earlier is later."""
    before, after = exchange.before, exchange.after
    return {clock for clock in before.keys() & after.keys() if before[clock] > after[clock]}


def _without(exchange: Exchange, clocks: set[str]) -> Exchange:
    before = {clock: at for clock, at in exchange.before.items() if clock not in clocks}
    return Exchange(before, {clock: at for clock, at in exchange.after.items() if clock not in clocks})


def _worst(reference: str, exchanges: Sequence[Exchange], suspects: set[str]) -> str:
    """Of the clocks that contradict each other, the one without which the rest fits; the last one if there is none."""
    candidates = sorted(suspects - {reference})
    for clock in candidates:
        if not isinstance(_bounds(reference, [_without(each, {clock}) for each in exchanges], _SLACKS[-1]), set):
            return clock
    return candidates[-1]


def _offsets(
    reference: str,
    guesses: Mapping[str, float],
    bounds: tuple[dict[str, float], dict[str, float]],
    exchanges: Sequence[Exchange],
    excluded: set[str],
) -> dict[str, Offset]:
    counts = collections.Counter(
        clock for each in exchanges if len({*each.before, *each.after}) > 1 for clock in {*each.before, *each.after}
    )
    most, least = bounds
    offsets = {}
    for clock, guess in guesses.items():
        if clock == reference:
            offsets[clock] = Offset(0.0, 0.0, counts[clock])
        elif clock in most and clock in least:
            middle, half = (most[clock] + least[clock]) / 2, (most[clock] - least[clock]) / 2
            offsets[clock] = Offset(middle, max(0.0, half), counts[clock])
        else:
            why = "it contradicts the others" if clock in excluded else "no round was complete with both"
            offsets[clock] = Offset(guess, None, counts[clock], why)
    return offsets


_Edge = tuple[str, str, float]


def _bounds(
    reference: str, exchanges: Sequence[Exchange], slack: float
) -> tuple[dict[str, float], dict[str, float]] | set[str]:
    """The most and the least that each clock's offset can be, or the clocks that contradict each other."""
    edges: list[_Edge] = []
    for number, each in enumerate(exchanges):
        moment = f"\0{number}"  # no clock has this name
        edges += [(moment, clock, -at + slack) for clock, at in each.before.items()]
        edges += [(clock, moment, at + slack) for clock, at in each.after.items()]
    most = _distances(reference, edges)
    if isinstance(most, set):
        return most
    back = _distances(reference, [(there, here, weight) for here, there, weight in edges])
    if isinstance(back, set):
        return back
    return most, {clock: -far for clock, far in back.items()}


def _distances(source: str, edges: Sequence[_Edge]) -> dict[str, float] | set[str]:
    """Shortest paths from ``source``; or the clocks on a path that gets shorter and shorter."""
    edges_from: dict[str, list[tuple[str, float]]] = collections.defaultdict(list)
    for here, there, weight in edges:
        edges_from[here].append((there, weight))
    far, steps, before = {source: 0.0}, {source: 0}, dict[str, str]()
    nodes = len({*(each[0] for each in edges), *(each[1] for each in edges), source})
    todo = collections.deque([source])
    queued = {source}
    while todo:
        here = todo.popleft()
        queued.discard(here)
        for there, weight in edges_from[here]:
            if far[here] + weight < far.get(there, float("inf")) - 1e-9:
                far[there], before[there], steps[there] = far[here] + weight, here, steps[here] + 1
                if there == source or steps[there] >= nodes:
                    return _clocks_on_cycle(there, before)
                if there not in queued:
                    queued.add(there)
                    todo.append(there)
    return far


def _clocks_on_cycle(at: str, before: Mapping[str, str]) -> set[str]:
    seen: list[str] = []
    while at not in seen:
        seen.append(at)
        at = before[at]
    return {each for each in seen[seen.index(at) :] if not each.startswith("\0")}
