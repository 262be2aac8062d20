"""``rdzv bench report``: several results side by side, as one self-contained page."""

from __future__ import annotations

import argparse
import base64
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rdzv_launcher.bench.charts.files import require_matplotlib
from rdzv_launcher.bench.charts.plan import Chart, extent, plan
from rdzv_launcher.bench.method.results import Result, read_results
from rdzv_launcher.bench.report.figures import figure_table, heading, unfinished_list
from rdzv_launcher.bench.report.html import Html, page, tag
from rdzv_launcher.bench.report.manifests import anchor, machines_table, options_table, results_table
from rdzv_plugins.errors import UsageError

_ORDER = ("rendezvous", "launch", "faults", "store", "tiered", "transport")
_TITLE = "Results of rdzv bench"
_INTRO = (
    "Every figure is the median of the runs that count, with the smallest and the largest of them beside it. Targets "
    "of one case were measured in turns. A ratio is that of the two runs of each turn, the median again; there is none "
    "where the runs of one of the two differ by more, among themselves, than the two do: it would be of the machine's "
    "noise."
)


def configure(what: Any) -> None:
    """Add the sub-command's parser."""
    report = what.add_parser("report", help="several results side by side, as one HTML page that needs nothing else")
    report.add_argument("directory", metavar="DIR", help="where rdzv bench wrote the results, with --out=DIR")
    report.add_argument("--to", metavar="FILE", help="the page (default DIR/report.html)")


def run(args: argparse.Namespace) -> int:
    """Write the page; returns the exit code. Raises ``UsageError`` and ``MissingDependency``."""
    directory = Path(args.directory)
    print(f"wrote {write_report(directory, Path(args.to) if args.to else directory / 'report.html')}", flush=True)
    return 0


def write_report(directory: Path, file: Path) -> Path:
    """Read the results in ``directory``, write the page to ``file`` and return that.

    Raises ``UsageError`` if there are no results, a file is not a valid one, or ``file`` cannot be written;
    ``MissingDependency`` without matplotlib.
    """
    if not directory.is_dir():
        raise UsageError(f"there is no directory {directory}", remedy="Name the one that rdzv bench got with --out.")
    results = read_results(directory)
    require_matplotlib()
    text = as_page(results)
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"cannot write the report {file}: {error.strerror}", remedy="Name another file with --to."
        ) from None
    return file


def as_page(results: Sequence[Result]) -> Html:
    """The whole report as HTML."""
    by_bench: dict[str, list[Result]] = {}
    for result in sorted(results, key=lambda each: _ORDER.index(each.bench) if each.bench in _ORDER else len(_ORDER)):
        by_bench.setdefault(result.bench, []).append(result)
    ordered = [result for each in by_bench.values() for result in each]
    links = [tag("a", f"rdzv bench {bench}", href=f"#{anchor(bench)}") for bench in by_bench]
    body = [tag("h1", _TITLE), tag("nav", tag("ul", [tag("li", link) for link in links]))]
    for bench, each in by_bench.items():
        body += _section(bench, each)
    body += [
        tag("h2", "Results"),
        tag("p", _INTRO),
        results_table(ordered),
        tag("h2", "Machines and versions"),
        machines_table(ordered),
    ]
    return page(_TITLE, body)


def _section(bench: str, results: Sequence[Result]) -> Iterator[Html]:
    yield tag("h2", f"rdzv bench {bench}", id=anchor(bench))
    for result in results:
        if result.end is None:
            text = f"{result.name} was INTERRUPTED: what is here was measured, the rest was not."
            yield tag("p", text, class_="warn")
        if not result.points:
            yield tag("p", f"{result.name}: nothing was measured.", class_="warn")
    plans = [(result, plan(result.points)) for result in results]
    targets = list(dict.fromkeys(point.target for result in results for point in result.points))
    points = [point for result in results for point in result.points]
    for figure in dict.fromkeys(point.figure for point in points):
        yield tag("h3", heading(next(point for point in points if point.figure == figure)))
        mine = [(result, chart) for result, charts in plans for chart in charts if chart.figure == figure]
        for kind in ("bars", "curves"):
            pictures = list(_pictures([pair for pair in mine if pair[1].kind == kind], targets))
            if pictures:
                yield tag("div", pictures, class_="charts")
        yield figure_table(figure, results)
    unfinished = unfinished_list(results)
    if unfinished is not None:
        yield tag("h3", "Did not finish, or was not measured")
        yield unfinished
    yield tag("h3", "Options")
    yield options_table(results)


def _pictures(charts: Sequence[tuple[Result, Chart]], targets: Sequence[str]) -> Iterator[Html]:
    """The charts side by side, with the same axes."""
    from rdzv_launcher.bench.charts.drawing import as_svg, drawn

    shared = extent(chart for _, chart in charts)
    for result, chart in charts:
        with drawn(chart, result, shared, targets) as figure:
            data = base64.b64encode(as_svg(figure)).decode()
        about = f"{result.name}: {chart.title}, as {chart.kind}. The table below has the figures."
        picture = tag("img", src=f"data:image/svg+xml;base64,{data}", alt=about)
        yield tag("figure", picture, tag("figcaption", result.name))
