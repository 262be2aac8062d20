"""Puts results of ``make bench`` into docs/internals/performance.md: ``python docs/performance.py [DIR] [--check]``.

With DIR, its newest result of each benchmark and the charts that the page shows are copied beside the page first. What
stands between a pair of markers is written from those results, and nothing else in the page has a figure.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from rdzv_launcher.bench.points import Point, Ratio
from rdzv_launcher.bench.results import Result, manifest_as_text, number, read_results

PAGE = Path(__file__).parent / "internals/performance.md"
FIGURES = PAGE.parent / "performance"
_BLOCK = re.compile(r"(<!-- (?P<what>[\w-]+)(?P<rest>(?: [\w-]+)*) -->\n).*?(<!-- end -->)", re.DOTALL)
_NOISE = re.compile(r"the runs of .* differ by ([\d.]+) among themselves, the two by ([\d.]+)")
_IMAGE = re.compile(r"\]\(performance/([\w.-]+\.svg)\)")


def collect(directory: Path) -> None:
    """Copy the newest result of each benchmark, and the charts that the page shows, under names without a date."""
    newest = {result.bench: result for result in read_results(directory)}  # by name, which ends in its date
    files = {}
    for bench, result in newest.items():
        if result.end is None:
            sys.exit(f"{result.name} was interrupted: it is no result to publish")
        files[f"{bench}.jsonl"] = directory / f"{result.name}.jsonl"
    for chart in sorted(set(_IMAGE.findall(PAGE.read_text()))):
        bench = chart.partition("-")[0]
        if bench not in newest:
            sys.exit(f"the page shows {chart}, and there is no result of {bench} in {directory}")
        files[chart] = directory / f"{newest[bench].name}{chart.removeprefix(bench)}"
    missing = [str(source) for source in files.values() if not source.exists()]
    if missing:
        sys.exit(f"not there: {', '.join(missing)}")
    shutil.rmtree(FIGURES, ignore_errors=True)
    FIGURES.mkdir()
    for name, source in files.items():
        shutil.copy(source, FIGURES / name)


def written(text: str) -> str:
    """The page with all its blocks written anew."""
    results = read_results(FIGURES)

    def fill(block: re.Match[str]) -> str:
        what, rest = block["what"], block["rest"].split()
        body = manifests(results) if what == "manifest" else tables([r for r in results if r.bench == what], rest)
        return f"{block[1]}\n{body}\n\n{block[4]}"

    return _BLOCK.sub(fill, text)


def manifests(results: Iterable[Result]) -> str:
    """The machine once, and each benchmark's command, date and load."""
    each = list(results)
    machines = {manifest_as_text(result.manifest | {"load": "see below"}) for result in each}
    if len(machines) > 1:
        sys.exit("the results are of different machines or versions: " + "; ".join(sorted(machines)))
    lines = ["```text", *machines, "```", ""]
    lines += ["| benchmark | command | started | load average before | after |", "|---|---|---|---|---|"]
    for result in each:
        about = result.manifest
        lines.append(
            f"| {result.name} | `{about['command']}` | {about['started']} | {about['load']} | "
            f"{result.end['load'] if result.end else '-'} |"
        )
    return "\n".join(lines)


def tables(results: Sequence[Result], figures: Sequence[str]) -> str:
    """For each figure a table of cases by targets, and one of its ratios below it; ``results`` are of one benchmark."""
    return "\n\n".join(_table(results, figure) for figure in figures)


def _table(results: Sequence[Result], figure: str) -> str:
    points = [point for result in results for point in result.points if point.figure == figure]
    if not points:
        sys.exit(f"no result has the figure {figure!r}")
    targets = list(dict.fromkeys(point.target for point in points))
    cells = {(point.case, point.target): _cell(point) for point in points}
    unit = f", {points[0].unit}" if points[0].unit else ""
    title = f"**{points[0].title[:1].upper()}{points[0].title[1:]}{unit}**: median (smallest to largest)"
    lines = [title, "", f"| | {' | '.join(targets)} |", "|---" * (len(targets) + 1) + "|"]
    for case in dict.fromkeys(point.case for point in points):
        lines.append(f"| {case} | {' | '.join(cells.get((case, target), '') for target in targets)} |")
    ratios = [each for result in results for each in result.ratios if each.figure == figure and each.low is not None]
    return "\n".join([*lines, *_ratios(ratios)])


def _cell(point: Point) -> str:
    if point.median is None:
        return point.unfinished or "not measured"
    text = number(point.median)
    if len(point.samples) > 1:
        text += f" ({number(min(point.samples))}..{number(max(point.samples))})"
    return f"{text}; then {point.unfinished}" if point.unfinished else text


def _ratios(ratios: Sequence[Ratio]) -> list[str]:
    """A line for each target by each reference, a column for each case."""
    if not ratios:
        return []
    cells = {(ratio.target, ratio.reference, ratio.case): _ratio(ratio) for ratio in ratios}
    cases = list(dict.fromkeys(ratio.case for ratio in ratios))
    lines = ["", f"| ratio | {' | '.join(cases)} |", "|---" * (len(cases) + 1) + "|"]
    for pair in dict.fromkeys((ratio.target, ratio.reference) for ratio in ratios):
        lines.append(f"| {pair[0]} / {pair[1]} | {' | '.join(cells.get((*pair, case), '') for case in cases)} |")
    return lines


def _ratio(ratio: Ratio) -> str:
    if ratio.value is None or ratio.low is None or ratio.high is None:
        noise = _NOISE.fullmatch(ratio.refused)
        return f"refused: {noise[1]} > {noise[2]}" if noise else f"refused: {ratio.refused}"
    return f"**{number(ratio.value)}** ({number(ratio.low)}..{number(ratio.high)})"


def main(argv: Sequence[str] | None = None) -> int:
    """Write the page, or say with ``--check`` whether it is as it would be written; returns the exit code."""
    parser = argparse.ArgumentParser(prog="docs/performance.py", description=__doc__.partition("\n")[0])
    parser.add_argument("directory", nargs="?", type=Path, help="what make bench has written")
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 if something would change")
    args = parser.parse_args(argv)
    if args.directory is not None:
        collect(args.directory)
    text = PAGE.read_text()
    new = written(text)
    if args.check:
        return int(new != text)
    PAGE.write_text(new)
    return 0


if __name__ == "__main__":
    sys.exit(main())
