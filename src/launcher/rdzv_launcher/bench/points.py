"""What every benchmark finds out: points, measured in turns, and the ratios between them.

Tables, charts and the page know nothing else. A ratio is printed only if it says something: see ``ratio_of``.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

Sample = TypeVar("Sample")


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


class DidNotFinish(Exception):
    """A result, not a fault of the benchmark: a target took longer than its limit, or gave up. The text says so."""


@dataclass
class Turns(Generic[Sample]):
    """The outcome: the samples of each target in the order of its runs, so that equal positions belong to one turn."""

    samples: dict[str, list[Sample]]
    unfinished: dict[str, str] = field(default_factory=dict)
    """Why a target was not measured, or not as often as the others."""


def take_turns(
    case: str,
    targets: Sequence[str],
    measure: Callable[[str, int], Sample],
    *,
    repeats: int,
    begins: Callable[[str], None],
    warm_up: bool = True,
    given_up: dict[str, str] | None = None,
    once: Callable[[Sample], bool] = lambda sample: False,
) -> Turns[Sample]:
    """Run ``measure(target, turn)`` for every target in ``repeats`` turns; turn -1 is the warm-up and not kept.

    ``measure`` raises ``DidNotFinish`` for what counts as a result; its target is not run again, here or later with the
    same ``given_up``, which maps targets to reasons and is added to. Any other exception ends the benchmark. A target
    for whose sample ``once`` is true is not run again in this case: it takes too long. ``begins`` is called with the
    case's name if there is something to measure.
    """
    given_up = {} if given_up is None else given_up
    turns: Turns[Sample] = Turns({target: [] for target in targets})
    enough: set[str] = set()
    if not given_up.keys() >= {*targets}:
        begins(case)
    for turn in range(-1 if warm_up else 0, repeats):
        for target in in_turn(targets, turn):
            if target in given_up:
                turns.unfinished.setdefault(target, given_up[target])
            elif target not in enough:
                try:
                    sample = measure(target, turn)
                except DidNotFinish as error:
                    given_up[target] = f"{error} ({case})"
                    turns.unfinished[target] = str(error)
                    continue
                if turn >= 0:
                    turns.samples[target].append(sample)
                    if once(sample):
                        enough.add(target)
    return turns


def points_of(
    bench: str,
    case: str,
    figures: Mapping[str, tuple[str, str]],
    turns: Turns[Mapping[str, Any]],
    references: Container[str],
    nodes: int | None = None,
    axis: str = "nodes",
) -> list[Point]:
    """A point for each figure of a sample and each target. ``figures``: the title and unit of each."""
    return [
        Point(bench, case, target, figure, title, unit, tuple(float(each[figure]) for each in samples), nodes, axis,
              target in references, turns.unfinished.get(target, ""))
        for figure, (title, unit) in figures.items()
        for target, samples in turns.samples.items()
    ]  # fmt: skip


def in_turn(targets: Sequence[str], turn: int) -> list[str]:
    """The order of one turn: each begins with another target, and every other one goes backwards."""
    if not targets:
        return []
    first = (turn // 2) % len(targets)
    order = [*targets[first:], *targets[:first]]
    return order if turn % 2 == 0 else order[::-1]
