"""Which charts the points of a result make, and what belongs on the same axes. Independent of how they are drawn."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from rdzv_launcher.bench.method.points import Point

Kind: TypeAlias = Literal["curves", "bars"]


@dataclass(frozen=True)
class Chart:
    """One figure: as curves over nodes or clients, or as bars, with a group for each case."""

    figure: str
    title: str
    unit: str
    kind: Kind
    panels: dict[str, list[Point]]
    """For curves: by what stays the same while nodes grow, see ``family``. For bars: by case."""
    also_bars: bool = False
    """Curves whose figure also has bars."""

    @property
    def name(self) -> str:
        """The name for a file: the figure's identifier, with ``-curves`` if there are also bars of it."""
        name = re.sub(r"[^A-Za-z0-9_.-]", "_", self.figure)
        return f"{name}-curves" if self.also_bars else name

    @property
    def points(self) -> list[Point]:
        """All points, panel after panel."""
        return [point for panel in self.panels.values() for point in panel]

    @property
    def targets(self) -> list[str]:
        """The targets in the order in which they were measured."""
        return list(dict.fromkeys(point.target for point in self.points))

    @property
    def axis(self) -> str:
        """What the horizontal axis of curves counts."""
        return next((point.axis for point in self.points), "nodes")


@dataclass(frozen=True)
class Extent:
    """What the axes of a chart have to hold; ``None``: there is nothing. Both axes may be logarithmic."""

    nodes: tuple[int, ...]
    low: float | None
    """The smallest sample above 0."""
    high: float | None
    has_zero: bool


def plan(points: Sequence[Point]) -> list[Chart]:
    """The charts of one result, figure by figure.

    Figures measured with several numbers of nodes become curves. If some cases were not, bars show every kind of case
    side by side, each with the most nodes. A figure that was not measured for anything makes no chart.
    """
    charts = []
    for figure in dict.fromkeys(point.figure for point in points):
        mine = [point for point in points if point.figure == figure]
        if any(point.samples for point in mine):
            charts += _plan_one(figure, mine)
    return charts


def _plan_one(figure: str, points: Sequence[Point]) -> list[Chart]:
    families: dict[str, list[Point]] = {}
    for point in points:
        families.setdefault(family(point), []).append(point)
    curves = {
        name: sorted(each, key=lambda point: point.nodes or 0)
        for name, each in families.items()
        if len({point.nodes for point in each}) > 1 and any(point.samples for point in each)
    }
    charts: list[Chart] = []
    title, unit = points[0].title, points[0].unit
    if bars := len(curves) < len(families):
        cases: dict[str, list[Point]] = {}
        for each in families.values():
            for point in _of_the_most_nodes(each):
                cases.setdefault(point.case, []).append(point)
        charts.append(Chart(figure, title, unit, "bars", cases))
    if curves:
        charts.append(Chart(figure, title, unit, "curves", curves, also_bars=bars))
    return charts


def _of_the_most_nodes(points: Iterable[Point]) -> list[Point]:
    """The points of the largest case in which something was measured."""
    points = list(points)
    most = max((point.nodes or 0 for point in points if point.samples), default=None)
    if most is None:
        most = max(point.nodes or 0 for point in points)
    return [point for point in points if (point.nodes or 0) == most]


def family(point: Point) -> str:
    """The case with N in place of its number of nodes: cases of one family make one curve. Empty for "64 nodes"."""
    if point.nodes is None:
        return point.case
    singular = point.axis.removesuffix("s")
    number = rf"(?<![\d.,])(?:{point.nodes}|{point.nodes:,})"
    text, count = re.subn(rf"{number}(?= {re.escape(singular)}s?\b)", "N", point.case, count=1)
    if not count:
        text = re.sub(rf"{number}(?![\d.,])", "N", point.case, count=1)
    text = re.sub(rf"\bN {re.escape(singular)}s?\b", f"N {point.axis}", text)
    return "" if text == f"N {point.axis}" else text


def extent(charts: Iterable[Chart]) -> Extent:
    """The extent of all charts together, so that those of several results can have the same axes."""
    points = [point for chart in charts for point in chart.points]
    samples = [sample for point in points for sample in point.samples]
    above = [sample for sample in samples if sample > 0]
    return Extent(
        nodes=tuple(sorted({point.nodes for point in points if point.nodes is not None})),
        low=min(above, default=None),
        high=max(above, default=None),
        has_zero=len(above) < len(samples),
    )


def stops(points: Iterable[Point]) -> dict[str, Point]:
    """For each target, its first point by nodes for which nothing was measured; larger ones were not tried."""
    found: dict[str, Point] = {}
    for point in sorted(points, key=lambda point: point.nodes or 0):
        if not point.samples:
            found.setdefault(point.target, point)
    return found


def spread_note(points: Iterable[Point], lines: str) -> str:
    """What the figures of a chart are; ``lines`` says what shows how much the runs differ."""
    if all(len(point.samples) < 2 for point in points):
        return "One run of each: how far runs differ is not known."
    return f"Medians; the {lines} lines go from the smallest run to the largest."
