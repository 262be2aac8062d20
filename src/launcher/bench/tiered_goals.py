"""What proxies were to reach, beside what was measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from launcher.bench.points import Point, Ratio, compare
from launcher.bench.tiered_cases import Case, Sample, Way
from launcher.bench.turns import Turns

_MOST_REQUESTS = 1.5  # for each rank and node
_MOST_BYTES, _FROM_RANKS, _FROM_NODES = 0.15, 1024, 128
_MOST_TIME = 0.25
_MOST_BARRIER = 2


@dataclass(frozen=True)
class Goal:
    """One of them, in one case."""

    goal: str
    where: str
    most: float
    measured: float | None
    """None: a ratio that was refused."""
    refused: str = ""

    @property
    def met(self) -> bool | None:
        """None where nothing can be said."""
        return None if self.measured is None else self.measured <= self.most


def goals(case: Case, stage: str, ways: Sequence[Way], turns: Turns[Sample], points: Sequence[Point]) -> list[Goal]:
    """Those of one stage by ``ways``, whose points are given. Ways that have not finished reach nothing."""
    ratios = {(ratio.target, ratio.figure): ratio for ratio in compare(points)}
    found: list[Goal] = []
    for way in ways:
        if way.route != "direct" and turns.samples[way.name]:
            requests = max(max(p.samples) for p in points if (p.target, p.figure) == (way.target, "root_requests"))
            if stage == "gloo init":
                found += _of_init(case, way, points[0].case, requests, ratios)
            elif stage == "barrier":
                found += _of_barrier(case, way, points[0].case, requests, turns.samples[way.name][-1])
    return found


def _of_init(case: Case, way: Way, where: str, requests: float, ratios: dict[tuple[str, str], Ratio]) -> Iterator[Goal]:
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


def _of_barrier(case: Case, way: Way, where: str, requests: float, sample: Sample) -> Iterator[Goal]:
    where = f"{where}, {way.target}"
    connections = sample.phases["store_barrier"].connections
    yield Goal("requests of a barrier at the root, for each node", where, _MOST_BARRIER, requests / case.nodes)
    yield Goal("connections at the root", where, way.fanout or case.nodes, connections)


def as_text(reached: Sequence[Goal]) -> str:
    """One line for each."""
    return "\n".join(["goals", *(_line(goal) for goal in reached), ""])


def _line(goal: Goal) -> str:
    if goal.measured is None:
        return f"  {'open':8}{'':10}  at most {goal.most:<6g}  {goal.goal}: {goal.where}: {goal.refused}"
    word = "met" if goal.met else "MISSED"
    return f"  {word:8}{goal.measured:>10.3f}  at most {goal.most:<6g}  {goal.goal}: {goal.where}"
