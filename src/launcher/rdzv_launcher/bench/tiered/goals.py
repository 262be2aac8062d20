"""What proxies should achieve, beside what was measured."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from rdzv_launcher.bench.method.points import Point, Ratio, compare, ratio_of
from rdzv_launcher.bench.method.turns import Turns
from rdzv_launcher.bench.processes.closed import BOTH, TLS, TOKEN
from rdzv_launcher.bench.tiered.cases import TieredCase, TieredSample, Way

_MOST_REQUESTS = 1.5  # for each rank and node
_MOST_BYTES, _FROM_RANKS, _FROM_NODES = 0.15, 1024, 128
_MOST_TIME = 0.25
_MOST_BARRIER = 2
_MOST_CPU = {TOKEN: 1.05, TLS: 2.0, BOTH: 2.0}


@dataclass(frozen=True)
class Goal:
    """One thing that proxies should achieve, in one case."""

    goal: str
    where: str
    most: float
    measured: float | None
    """The measured value; None: a ratio that was refused, or a way that did not finish."""
    refused: str = ""

    @property
    def met(self) -> bool | None:
        """Whether it was met; None if nothing can be said."""
        return None if self.measured is None else self.measured <= self.most


def goals(
    case: TieredCase, stage: str, ways: Sequence[Way], turns: Turns[TieredSample], points: Sequence[Point]
) -> list[Goal]:
    """The goals of one stage by ``ways``, whose points are given. Those of ways that have not finished stay open."""
    ratios = {(ratio.target, ratio.figure): ratio for ratio in compare(points) if ratio.reference == "direct"}
    found: list[Goal] = []
    reached: Iterable[Goal]
    for way in ways:
        if way.reference:
            continue
        if way.closed:
            reached = _of_closed(way, points[0].case, points) if stage == "gloo init" else ()
        elif stage == "gloo init":
            reached = _of_init(case, way, points[0].case, _requests(way, points), ratios)
        elif stage == "barrier":
            reached = _of_barrier(case, way, points[0].case, _requests(way, points), turns.samples[way.name])
        else:
            continue
        if not turns.samples[way.name]:
            why = turns.unfinished.get(way.name, "not measured")
            reached = (dataclasses.replace(goal, measured=None, refused=why) for goal in reached)
        found += reached
    return found


def _requests(way: Way, points: Sequence[Point]) -> float:
    """The most requests at the root in any run; 0 if there was no run."""
    mine = [p for p in points if (p.target, p.figure) == (way.target, "root_requests")]
    return max((sample for point in mine for sample in point.samples), default=0)


def _of_init(
    case: TieredCase, way: Way, where: str, requests: float, ratios: dict[tuple[str, str], Ratio]
) -> Iterator[Goal]:
    where = f"{where}, {way.target}"
    each = requests / (case.ranks * case.nodes)
    yield Goal("requests of the init at the root, for each rank and node", where, _MOST_REQUESTS, each)
    most = {"wall": _MOST_TIME if way.delay_s else 1.0}
    if case.ranks >= _FROM_RANKS and case.nodes >= _FROM_NODES:
        most["root_bytes"] = _MOST_BYTES
    words = {"wall": "time", "root_bytes": "bytes"}
    for figure, limit in most.items():
        if ratio := ratios.get((way.target, figure)):
            yield Goal(f"{words[figure]} of the init, beside direct", where, limit, ratio.value, ratio.refused)


def _of_closed(way: Way, where: str, points: Sequence[Point]) -> Iterator[Goal]:
    """What keeping strangers out may cost; the requests are the same."""
    cpu = {point.target: point for point in points if point.figure == "cpu"}
    ratio = ratio_of(cpu[way.target], cpu[way.route])
    where = f"{where}, {way.target}"
    yield Goal(f"CPU, beside {way.route}", where, _MOST_CPU[way.closed], ratio.value, ratio.refused)


def _of_barrier(
    case: TieredCase, way: Way, where: str, requests: float, samples: Sequence[TieredSample]
) -> Iterator[Goal]:
    where = f"{where}, {way.target}"
    connections = samples[-1].phases["store_barrier"].connections if samples else None
    yield Goal("requests of a barrier at the root, for each node", where, _MOST_BARRIER, requests / case.nodes)
    yield Goal("connections at the root", where, way.fanout or case.nodes, connections)


def as_text(reached: Sequence[Goal]) -> str:
    """The goals as text, one line for each."""
    return "\n".join(["goals", *(_line(goal) for goal in reached), ""])


def _line(goal: Goal) -> str:
    if goal.measured is None:
        return f"  {'open':8}{'':10}  at most {goal.most:<6g}  {goal.goal}: {goal.where}: {goal.refused}"
    word = "met" if goal.met else "MISSED"
    return f"  {word:8}{goal.measured:>10.3f}  at most {goal.most:<6g}  {goal.goal}: {goal.where}"
