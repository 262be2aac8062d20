"""Points and ratios as text: one line for each figure of a target, so that a terminal of 100 columns is enough."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rdzv_launcher.bench.charts.style import number, share
from rdzv_launcher.bench.method.points import Point, Ratio

_NAME, _FIGURE, _SPREAD = 22, 10, 24


def as_text(case: str, points: Sequence[Point], ratios: Iterable[Ratio], notes: Sequence[str] = ()) -> str:
    """The points of one case under its name; ratios beside them, refused ones with their reason.

    ``notes``: lines that are put under them.
    """
    ratios, notes = _shortened([*ratios], notes)
    by_target: dict[tuple[str, str], list[Ratio]] = {}
    for ratio in ratios:
        by_target.setdefault((ratio.figure, ratio.target), []).append(ratio)
    lines = [case]
    for figure in dict.fromkeys(point.figure for point in points):
        group = [point for point in points if point.figure == figure]
        lines.append(f"  {group[0].title}{f' [{group[0].unit}]' if group[0].unit else ''}")
        for point in group:
            lines += _lines(point, by_target.get((figure, point.target), []))
    return "\n".join([*lines, *(f"  {note}" for note in notes), ""])


def _shortened(ratios: Sequence[Ratio], notes: Sequence[str]) -> tuple[Sequence[Ratio], Sequence[str]]:
    """Say only once why there are no ratios, if the reason is the same for all."""
    reasons = {ratio.refused for ratio in ratios if ratio.low is not None}
    if len(ratios) < 3 or len(reasons) != 1 or "" in reasons:
        return ratios, notes
    return [], [*notes, f"no ratios: {reasons.pop()}"]


def _lines(point: Point, ratios: Sequence[Ratio]) -> list[str]:
    name = f"    {point.target:{_NAME}}"
    if point.median is None:
        return [f"{name}  {point.unfinished or 'not measured'}"]
    spread = f"({number(min(point.samples))} .. {number(max(point.samples))})"
    line = f"{name}{number(point.median):>{_FIGURE}}  {spread:{_SPREAD}}"
    printed = [share(ratio.value, ratio.reference) for ratio in ratios if ratio.value is not None]
    lines = [(line + "  ".join(printed)).rstrip()]
    why: dict[str, list[str]] = {}
    for each in ratios:
        if each.refused and each.low is not None:  # a reference that was not measured has said so in its own line
            why.setdefault(each.refused, []).append(each.reference)
    lines += [f"      no ratio to {', '.join(names)}: {refused}" for refused, names in why.items()]
    if point.unfinished:
        lines.append(f"      then {point.unfinished}")
    return lines
