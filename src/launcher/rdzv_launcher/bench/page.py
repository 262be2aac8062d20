"""Charts of results by matplotlib, and one self-contained page that shows several results side by side, by Jinja2."""

from __future__ import annotations

import base64
import importlib.util
import io
import json
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rdzv_launcher.bench.points import Point
from rdzv_launcher.bench.results import Result, number, read_results, table
from rdzv_plugins.errors import MissingDependency, UsageError

_ORDER = ("rendezvous", "launch", "faults", "store")
_MACHINE = ("cpu", "cores", "memory_gib", "kernel", "limits", "python", "versions")
_DIFFERS = "≠ "
_FAR_APART = 200
"""Bars must begin at 0; if figures differ by this factor, points on a logarithmic axis replace them."""
_RC = {
    "font.family": ["DejaVu Sans"],  # comes with matplotlib
    "text.parse_math": False,  # a name may contain dollars
    "axes.unicode_minus": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": "#d9d9d9",
    "svg.fonttype": "none",  # text stays text: it can be found, copied and read aloud
    "svg.hashsalt": "rdzv bench",  # the same chart has the same bytes
}
# Okabe and Ito's colours, which colour-blind people can tell apart, too; without yellow, which is invisible on white
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#7a7a7a")
_MARKERS = "os^DvPX*<p>"


def require_libraries() -> None:
    """Raise ``MissingDependency`` if there is no matplotlib or Jinja2."""
    missing = [name for name in ("matplotlib", "jinja2") if importlib.util.find_spec(name) is None]
    if missing:
        raise MissingDependency(
            f"charts and pages need module '{missing[0]}', which is not installed",
            remedy="Install it: pip install 'rdzv-plugins[bench]'",
        )


# charts


def write_charts(result: Result, directory: Path) -> list[Path]:
    """Write a chart of each figure as ``NAME-FIGURE.svg``; returns the files. Raises ``UsageError``."""
    files = []
    for figure in dict.fromkeys(point.figure for point in result.points if point.samples):
        for kind, svg in charts(result, figure):
            files.append(directory / f"{result.name}-{re.sub(r'[^A-Za-z0-9_.-]', '_', figure)}{kind}.svg")
            try:
                files[-1].write_text(svg, encoding="utf-8")
            except OSError as error:
                raise UsageError(f"cannot write the chart {files[-1]}: {error.strerror}") from None
    return files


def charts(result: Result, figure: str) -> Iterator[tuple[str, str]]:
    """The charts of one figure: what is added to a file's name, and the SVG.

    Cases that differ only in their number of nodes make curves. If some do not, all of these are bars, too.
    """
    points = [point for point in result.points if point.figure == figure]
    measured = [(family(point), point.nodes) for point in points if point.samples]
    several = {name for name, nodes in measured if any(name == each and nodes != more for each, more in measured)}
    bars = [point for point in points if family(point) not in several]
    curves: dict[str, list[Point]] = {}
    for point in points:
        if family(point) in several:
            curves.setdefault(family(point), []).append(point)
    looks = {target: index for index, target in enumerate(dict.fromkeys(point.target for point in result.points))}
    if any(point.samples for point in bars):
        yield "", _drawn(lambda sheet: _draw_bars(sheet, bars, looks), 1.0 + 0.25 * len(bars), result)
    if curves:
        height = 4.2 * len(curves)
        yield "-curves" if bars else "", _drawn(lambda sheet: _draw_curves(sheet, curves, looks), height, result)


def family(point: Point) -> str:
    """The case with N in place of its number of nodes: cases of one family make one curve."""
    return point.case if point.nodes is None else re.sub(rf"(?<![\d.]){point.nodes}(?![\d.])", "N", point.case, count=1)


def _drawn(draw: Any, height: float, result: Result) -> str:
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(), warnings.catch_warnings():
        # a user's matplotlibrc is ignored: charts of different machines appear side by side
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_RC)
        warnings.filterwarnings("ignore", message="Glyph .* missing from", category=UserWarning)
        sheet = Figure(figsize=(9, height + 0.9), layout="constrained")
        draw(sheet)
        about = result.manifest
        where = f"{about.get('cpu', '?')}, {about.get('cores', '?')} cores, {about.get('kernel', '?')}"
        state = "" if result.end is not None else " INTERRUPTED"
        title = f"rdzv bench {result.bench}: {where}; {str(about.get('started', ''))[:10]}{state}"
        sheet.suptitle(_line(title), fontsize=10, x=0.01, ha="left")
        stream = io.StringIO()
        sheet.savefig(stream, format="svg", metadata={"Date": None, "Creator": None})
        return stream.getvalue()


def _line(text: str) -> str:
    """The text in one line without what an SVG cannot hold: control characters and halves of characters."""
    return " ".join("".join(each if each.isprintable() else " " for each in text).split())


def _axis(point: Point) -> str:
    title = point.title[:1].upper() + point.title[1:]
    return _line(f"{title} [{point.unit}]" if point.unit and point.unit not in title.lower() else title)


def _error(point: Point) -> list[list[float]]:
    """How far the smallest and the largest run are from the median."""
    median = point.median or 0.0
    return [[median - min(point.samples)], [max(point.samples) - median]]


def _draw_bars(sheet: Any, points: Sequence[Point], looks: Mapping[str, int]) -> None:
    """A bar from 0 to each median, hatched for references; a line over the spread; the median in digits."""
    axes = sheet.subplots()
    samples = [sample for point in points for sample in point.samples]
    log = min(samples) > 0 and max(samples) / min(samples) > _FAR_APART
    names = []
    for place, point in enumerate(points):
        new = place == 0 or points[place - 1].case != point.case
        names.append(_line(f"{point.case}:  {point.target}" if new else point.target))
        if not point.samples:
            why = _line(f" no result: {point.unfinished or 'not measured'}")[:90]
            axes.annotate(why, (0, place), xycoords=("axes fraction", "data"), va="center", size=8, style="italic")
            continue
        median, colour = point.median or 0.0, _COLOURS[looks[point.target] % len(_COLOURS)]
        if log:
            axes.plot([median], [place], marker="o", color=colour)
        else:
            fill = {"color": "white", "hatch": "////"} if point.reference else {"color": colour}
            axes.barh(place, median, height=0.66, **{**fill, "edgecolor": colour})
        axes.errorbar([median], [place], xerr=_error(point), fmt="none", ecolor="#1a1a1a", capsize=3)
        text = f"  {number(median)}{' *' if point.unfinished else ''}"
        axes.annotate(text, (max(point.samples), place), va="center", size=8)
    if log:
        axes.set_xscale("log")
        _plain(axes.xaxis)
    axes.margins(x=0.15, y=0.02)
    axes.set_yticks(range(len(points)), names, fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel(_axis(points[0]))


def _plain(axis: Any) -> None:
    """Numbers beside a logarithmic axis as they are: powers would need mathtext, and names may contain dollars."""
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter("")


def _draw_curves(sheet: Any, curves: Mapping[str, Sequence[Point]], looks: Mapping[str, int]) -> None:
    """A line for each target, both axes logarithmic; what has no result from where on is said in the legend."""
    grid = sheet.subplots(len(curves), squeeze=False)
    for (axes,), (name, points) in zip(grid, curves.items(), strict=True):
        for target in dict.fromkeys(point.target for point in points):
            mine = sorted((point for point in points if point.target == target), key=lambda point: point.nodes or 0)
            there = [point for point in mine if point.samples]
            gone = next((f", no result from {point.nodes:,} on" for point in mine if not point.samples), "")
            look = looks[target]
            axes.errorbar(
                [point.nodes or 0 for point in there],
                [point.median or 0.0 for point in there],
                yerr=[[_error(point)[side][0] for point in there] for side in (0, 1)],
                label=_line(f"{target}{' (reference)' if mine[0].reference else ''}{gone}"),
                color=_COLOURS[look % len(_COLOURS)],
                marker=_MARKERS[look % len(_MARKERS)],
                linestyle="--" if mine[0].reference else "-",
                capsize=2.5,
            )
        counts = sorted({point.nodes or 0 for point in points})
        samples = [sample for point in points for sample in point.samples]
        axes.set_xscale("log")
        axes.set_yscale("log" if min(samples) > 0 else "symlog")
        _plain(axes.yaxis)
        axes.set_xticks(counts, [f"{count:,}" for count in counts])
        axes.set_xticks([], minor=True)
        axes.set_xlabel(points[0].axis.capitalize())
        axes.set_ylabel(_axis(points[0]))
        axes.set_title(_line(name), loc="left", fontsize=10)
        axes.legend(fontsize=8)


# the page


def write_report(directory: Path, file: Path) -> Path:
    """Read the results in ``directory``, write the page to ``file`` and return that.

    Raises ``UsageError`` if there are no results, a file is not a valid one, or ``file`` cannot be written;
    ``MissingDependency``.
    """
    results = read_results(directory)
    require_libraries()
    try:
        file.write_text(as_page(results), encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"cannot write the report {file}: {error.strerror}", remedy="Choose another file with --to."
        ) from None
    return file


def as_page(results: Sequence[Result]) -> str:
    """The whole report as HTML. Nothing in it comes from outside it, and text is escaped by Jinja2."""
    import jinja2

    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True, finalize=_finalized
    )
    template = environment.from_string(Path(__file__).with_name("page.html.j2").read_text(encoding="utf-8"))
    known = [bench for bench in _ORDER if any(result.bench == bench for result in results)]
    sections = []
    for bench in dict.fromkeys([*known, *(result.bench for result in results)]):
        mine = [result for result in results if result.bench == bench]
        points = {point.figure: point for result in mine for point in result.points}
        pictures = [
            (_axis(point), result.name, base64.b64encode(svg.encode()).decode())
            for figure, point in points.items()
            for result in mine
            for _, svg in charts(result, figure)
        ]
        sections.append((bench, mine, pictures, [*_compared([*map(_about, mine)])]))
    page: str = template.render(sections=sections, tables=_tables)
    return page


def _finalized(value: Any) -> Any:
    return (
        "".join(each if each.isprintable() or each == "\n" else " " for each in value) if type(value) is str else value
    )


def _tables(result: Result) -> str:
    """What the terminal has shown of it."""
    texts = []
    for case in dict.fromkeys(point.case for point in result.points):
        points = [each for each in result.points if each.case == case]
        texts.append(table(case, points, [each for each in result.ratios if each.case == case]))
    return "\n".join(texts)


def _about(result: Result) -> dict[str, str]:
    """What its figures depend on."""
    about = {key: result.manifest.get(key, "-") for key in _MACHINE} | dict(result.manifest.get("options") or {})
    flat: dict[str, str] = {}
    for key, value in about.items():
        each = {f"{key}: {name}": what for name, what in value.items()} if isinstance(value, Mapping) else {key: value}
        flat |= {name: what if isinstance(what, str) else json.dumps(what) for name, what in each.items()}
    return flat


def _compared(columns: Sequence[Mapping[str, str]]) -> Iterator[tuple[str, bool, list[str]]]:
    """A row for each key: its name, whether the columns differ (marked, not by colour alone), and the values."""
    for key in dict.fromkeys(key for column in columns for key in column):
        values = [column.get(key, "-") for column in columns]
        differs = len(set(values)) > 1
        yield _DIFFERS * differs + key, differs, values
