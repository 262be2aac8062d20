"""What every benchmark finds out: points, and the ratios between them. Tables, charts and reports know nothing else.

A ratio is printed only if it says something: see ``compare``.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Point:
    """One figure of one target in one case: a sample for each run that counts, in the order of the turns."""

    bench: str
    """The word after ``rdzv bench``."""
    case: str
    """What was measured, in a few words; points of one case come from the same turns, so they may be compared."""
    target: str
    """What was measured: a backend, a server, a launcher."""
    figure: str
    """The measured quantity: an identifier that is the same in every case."""
    title: str
    """The measured quantity, in words, for the axis of a chart."""
    unit: str
    """``s``, ``us``, ``MiB``, ``requests``, ``bytes``, ...; empty for a plain number."""
    samples: tuple[float, ...] = ()
    nodes: int | None = None
    """The case's place on the axis of a curve: nodes, or clients; None if there is no curve."""
    axis: str = "nodes"
    """What ``nodes`` counts."""
    reference: bool = False
    """Others are compared with it: torch's own."""
    unfinished: str = ""
    """Why there are no samples, or no more of them: what did not finish within its limit, or was not measured."""

    @property
    def median(self) -> float | None:
        """The median of the repeats; None if nothing was measured."""
        return statistics.median(self.samples) if self.samples else None

    @property
    def spread(self) -> float | None:
        """The largest sample by the smallest, 1 or more; None for fewer than two samples, or for a mix of 0 and others.

        The spread of a figure that is 0 in every run is 1.
        """
        if len(self.samples) < 2:
            return None
        low, high = min(self.samples), max(self.samples)
        if high == low:
            return 1.0
        return high / low if low > 0 else None


@dataclass(frozen=True)
class Ratio:
    """A target divided by a reference, or why there is no ratio."""

    bench: str
    case: str
    figure: str
    target: str
    reference: str
    value: float | None
    """The median of the ratios of each turn. None: refused."""
    low: float | None
    high: float | None
    """The smallest and the largest of these ratios; also set if the ratio is refused."""
    refused: str = ""


def ratio_of(mine: Point, theirs: Point) -> Ratio:
    """``mine`` divided by ``theirs``, turn by turn.

    Refused if the runs of either differ among themselves by more than the two do: such a ratio would show the machine's
    noise. Also refused for single runs, whose spread nobody knows; if something is 0; and if one of the two did not
    finish in every run, since its good runs alone are not a fair sample.
    """
    turns = [one / other for one, other in zip(mine.samples, theirs.samples, strict=False) if other]
    value = statistics.median(turns) if turns else None
    refused = _refused(mine, theirs, value)
    return Ratio(
        mine.bench,
        mine.case,
        mine.figure,
        mine.target,
        theirs.target,
        value=None if refused else value,
        low=min(turns) if turns else None,
        high=max(turns) if turns else None,
        refused=refused,
    )


def _refused(mine: Point, theirs: Point, value: float | None) -> str:
    for each in (mine, theirs):
        if not each.samples:
            return f"{each.target} was not measured"
    for each in (mine, theirs):
        if each.unfinished:
            return f"{each.target} did not finish in every run"
    if not value:
        return "there is nothing to divide by" if value is None else "it is 0"
    for each in (mine, theirs):
        if len(each.samples) < 2:
            return "one run each: how far runs differ is not known"
        if each.spread is None:
            return f"{each.target}: 0 in some runs and not in others"
    by = max(value, 1 / value)
    widest = max((mine, theirs), key=lambda each: each.spread or 1)
    if (widest.spread or 1) > by:
        return f"the runs of {widest.target} differ by {widest.spread:.2f} among themselves, the two by {by:.2f}"
    return ""


def compare(points: Iterable[Point]) -> list[Ratio]:
    """Every target divided by every reference of its case, for each figure that both may have."""
    groups: dict[tuple[str, str, str], list[Point]] = {}
    for point in points:
        groups.setdefault((point.bench, point.case, point.figure), []).append(point)
    return [
        ratio_of(mine, theirs)
        for group in groups.values()
        for mine in group
        for theirs in group
        if theirs.reference and not mine.reference
    ]


def curves(points: Sequence[Point], figure: str) -> dict[str, list[Point]]:
    """The points of one figure that have a place on an axis, by target, in the order of that axis."""
    found: dict[str, list[Point]] = {}
    for point in sorted((each for each in points if each.nodes is not None), key=lambda each: each.nodes or 0):
        if point.figure == figure:
            found.setdefault(point.target, []).append(point)
    return found
