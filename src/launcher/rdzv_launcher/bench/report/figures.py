"""The figures of a page as tables: medians with their spread, ratios or why there is none, what did not finish."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rdzv_launcher.bench.charts.style import label, number, share
from rdzv_launcher.bench.method.points import Point, Ratio
from rdzv_launcher.bench.method.results import Result
from rdzv_launcher.bench.report.html import Html, table, tag
from rdzv_plugins.plain_text import some


def figure_table(figure: str, results: Sequence[Result]) -> Html:
    """The table of one figure: a line for each target in each case, a column for each result."""
    mine = [
        {(point.case, point.target): point for point in result.points if point.figure == figure} for result in results
    ]
    ratios = [_ratios(figure, result) for result in results]
    cases: dict[str, list[str]] = {}
    for case, target in dict.fromkeys(key for points in mine for key in points):
        cases.setdefault(case, []).append(target)
    rows = []
    for case, targets in cases.items():
        named = [tag("td", case, rowspan=str(len(targets)))]  # once for all of its rows
        for target in targets:
            found = [points.get((case, target)) for points in mine]
            reference = any(point is not None and point.reference for point in found)
            cells = [_cell(point, each.get((case, target), [])) for point, each in zip(found, ratios, strict=True)]
            rows.append(tag("tr", named, tag("td", f"{target} (reference)" if reference else target), cells))
            named = []
    return table(["case", "target", *(result.name for result in results)], rows)


def _ratios(figure: str, result: Result) -> dict[tuple[str, str], list[Ratio]]:
    found: dict[tuple[str, str], list[Ratio]] = {}
    for ratio in result.ratios:
        if ratio.figure == figure:
            found.setdefault((ratio.case, ratio.target), []).append(ratio)
    return found


def _cell(point: Point | None, ratios: Sequence[Ratio]) -> Html:
    if point is None:
        return tag("td", "-")
    lines: list[Html] = []
    if point.median is not None:
        runs = "1 run" if len(point.samples) == 1 else f"{_between(*point.samples)}; {len(point.samples)} runs"
        lines += [tag("strong", number(point.median)), Html(" "), tag("span", f"({runs})")]
    if point.unfinished or point.median is None:
        why = point.unfinished or "not measured"
        lines.append(tag("small", f"then {why}" if point.samples else f"no result: {why}", class_="warn"))
    if point.samples:
        lines += [tag("small", text) for text in _ratio_lines(ratios)]
    return tag("td", lines, class_="number")


def _ratio_lines(ratios: Sequence[Ratio]) -> Iterator[str]:
    """One line for each ratio, and one for each reason why there is none."""
    refused: dict[str, list[str]] = {}
    for ratio in ratios:
        if ratio.value is None:
            refused.setdefault(ratio.refused or "it was refused", []).append(ratio.reference)
        elif ratio.low is None or ratio.high is None:
            yield share(ratio.value, ratio.reference)
        else:
            yield share(ratio.value, ratio.reference, ratio.low, ratio.high)
    for why, references in refused.items():
        yield f"no ratio to {', '.join(references)}: {why}"


def _between(*values: float) -> str:
    return f"{number(min(values))} .. {number(max(values))}"


def unfinished_list(results: Sequence[Result]) -> Html | None:
    """Targets with no result, or fewer than the others, in what, and why; each reason once. None: there are none."""
    found: dict[tuple[str, str, str], list[Point]] = {}
    for result in results:
        name = f"{result.name}: " if len(results) > 1 else ""
        cases = {point.case for point in result.points}
        for point in result.points:
            if point.unfinished or not point.samples:
                why = point.unfinished or "not measured"
                for case in cases:
                    why = why.removesuffix(f" ({case})")  # where it stopped: said about the cases after it
                found.setdefault((name, point.target, why), []).append(point)
    items = [
        tag(
            "li",
            name,
            tag("strong", target),
            f", {_distinct(p.case for p in points)}; {_distinct(p.title for p in points)}: {why}",
        )
        for (name, target, why), points in found.items()
    ]
    return tag("ul", items) if items else None


def _distinct(texts: Iterable[str]) -> str:
    return some(dict.fromkeys(texts), 3)


def heading(point: Point) -> str:
    """The heading above the charts of a figure."""
    return label(point.title, point.unit)
