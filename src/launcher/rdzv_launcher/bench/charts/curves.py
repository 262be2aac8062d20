"""Curves: a figure against nodes or clients, both axes logarithmic, one line for each target."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedFormatter, FixedLocator, NullFormatter, NullLocator

from rdzv_launcher.bench.charts.frame import NOTE, WIDTH_IN, Sheet, size_in, width_in, wrap
from rdzv_launcher.bench.charts.plan import Chart, Extent, extent, spread_note, stops
from rdzv_launcher.bench.charts.style import FAINT, GREY, INK, TEXT_PT, Style, apart, clean, label, log_ticks, plain
from rdzv_launcher.bench.method.points import Point

_LEFT_IN, _RIGHT_IN, _BELOW_IN = 1.15, 0.3, 0.6
_BETWEEN_IN = 0.85
_LABEL_IN = 0.72
_ALONE_IN, _PANEL_IN = 3.9, 2.4
_STRIP_IN, _STRIP_GAP_IN = 0.34, 0.06
_HEADING_IN = 0.3
_MARKER_PT = 6.5
_STEP_PT = 5.0
NO_RESULT = "no result"


def draw_curves(
    chart: Chart, title: str, subtitle: Sequence[str], shared: Extent, looks: Mapping[str, Style]
) -> Figure:
    """The sheet of one chart. ``shared``: what its axes have to hold. ``looks``: of its targets, perhaps of others."""
    looks = {target: looks[target] for target in chart.targets}
    sheet = Sheet(title, subtitle, *_legend(chart, looks), _notes(chart))
    across = 1 if len(chart.panels) == 1 else 2
    height = _ALONE_IN if across == 1 else _PANEL_IN
    strip = any(stops(panel) for panel in chart.panels.values())
    heading = _HEADING_IN if any(chart.panels) else 0.05
    above = heading + (_STRIP_IN + _STRIP_GAP_IN if strip else 0)
    row_in = above + height + _BELOW_IN
    width = (WIDTH_IN - _LEFT_IN - _RIGHT_IN - (across - 1) * _BETWEEN_IN) / across
    figure = sheet.make(row_in * math.ceil(len(chart.panels) / across))
    for index, (name, points) in enumerate(chart.panels.items()):
        down, right = divmod(index, across)
        left, top = _LEFT_IN + right * (width + _BETWEEN_IN), row_in * down
        axes = sheet.axes(left, top + above, width, height)
        band = sheet.axes(left, top + heading, width, _STRIP_IN) if strip else None
        _Panel(chart, points, looks, shared).draw(axes, band, named=right == 0)
        uppermost = band or axes
        uppermost.set_title(wrap(clean(name), width, TEXT_PT, most=1)[0], loc="left", size=TEXT_PT, pad=6)
    return figure


def _legend(chart: Chart, looks: Mapping[str, Style]) -> tuple[list[Artist], list[str]]:
    references = {point.target for point in chart.points if point.reference}
    handles: list[Artist] = [
        Line2D([], [], color=each.colour, marker=each.marker, linestyle=each.line, markersize=_MARKER_PT, linewidth=1.6)
        for each in looks.values()
    ]
    return handles, [clean(name) + (" (reference)" if name in references else "") for name in looks]


def _notes(chart: Chart) -> list[str]:
    """Which targets have no result, from where on, and why, each said once; and what the lines are."""
    notes = []
    for name, panel in chart.panels.items():
        where = f", {name}" if name and len(chart.panels) > 1 else ""
        for target, point in stops(panel).items():
            why = point.unfinished or "not measured"
            notes.append(f"{target}: {NO_RESULT} from {point.nodes:,} {point.axis} on{where}: {why}")
        for point in panel:
            if point.samples and point.unfinished:
                runs = f"{len(point.samples)} run{'s' if len(point.samples) > 1 else ''} only"
                notes.append(f"{point.target}: {runs} with {point.nodes:,} {point.axis}{where}: {point.unfinished}")
    caption = spread_note(chart.points, "upright")
    if len(chart.targets) > 1:
        caption += f" What was measured with equally many {chart.axis} stands side by side."
    return [*dict.fromkeys(clean(note)[:NOTE] for note in notes), caption]


class _Panel:
    """One pair of axes with its curves, and a strip above it for those that have stopped."""

    def __init__(self, chart: Chart, points: Sequence[Point], looks: Mapping[str, Style], shared: Extent) -> None:
        self._chart, self._looks = chart, looks
        self._points = points
        self._extent = shared
        self._nodes = extent([Chart("", "", "", "curves", {"": list(points)})]).nodes

    def draw(self, axes: Axes, strip: Axes | None, *, named: bool) -> None:
        """Draw into empty axes; ``named``: the vertical axis gets its title."""
        self._vertical(axes)
        if named:
            self._name(axes)
        self._horizontal(axes)
        sideways = self._sideways(axes)
        stopped = stops(self._points)
        for target, look in self._looks.items():
            curve = [point for point in self._points if point.target == target and point.samples]
            if curve:
                self._curve(axes, curve, look, sideways[target], target)
            if strip is not None and target in stopped:
                self._stop(axes, strip, curve, stopped[target], look, sideways[target])
        if strip is not None:
            self._strip(axes, strip)
        axes.grid(color=FAINT, linewidth=0.7)
        axes.set_axisbelow(True)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)

    def _vertical(self, axes: Axes) -> None:
        low, high = self._extent.low, self._extent.high
        if low is None or high is None:  # everything is 0
            axes.set_ylim(-0.1, 1)
            ticks = [0.0, 1.0]
        else:
            middle, half = math.sqrt(low * high), max(math.sqrt(high / low) * 1.4, 3.5)
            bottom, top = middle / half, middle * half
            ticks = log_ticks(bottom, top)
            if self._extent.has_zero:
                axes.set_yscale("symlog", linthresh=bottom, linscale=0.4)
                axes.set_ylim(-bottom / 4, top)
                ticks = [0.0, *ticks]
            else:
                axes.set_yscale("log")
                axes.set_ylim(bottom, top)
        axes.yaxis.set_major_locator(FixedLocator(ticks))
        axes.yaxis.set_major_formatter(FixedFormatter([plain(tick) for tick in ticks]))
        axes.yaxis.set_minor_locator(NullLocator())

    def _name(self, axes: Axes) -> None:
        wide, high_in = size_in(axes)
        text = label(clean(self._chart.title), clean(self._chart.unit))
        axes.set_ylabel("\n".join(wrap(text, high_in, TEXT_PT, most=2)), size=TEXT_PT)
        axes.yaxis.set_label_coords(-_LABEL_IN / wide, 0.5)

    def _horizontal(self, axes: Axes) -> None:
        nodes = [float(count) for count in self._extent.nodes]
        axes.set_xscale("log")
        # a point that has no neighbour still has axes around it
        pad = max((nodes[-1] / nodes[0]) ** 0.06, 1.15)
        axes.set_xlim(nodes[0] / pad, nodes[-1] * pad)
        labels = [plain(count) for count in nodes]
        widest = max(width_in(each, TEXT_PT) for each in labels) + 0.12
        places = [math.log(count) * self._inches_per_log(axes) for count in nodes]
        labels = [each if keep else "" for each, keep in zip(labels, apart(places, widest), strict=True)]
        axes.xaxis.set_major_locator(FixedLocator(nodes))
        axes.xaxis.set_major_formatter(FixedFormatter(labels))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xlabel(self._chart.axis[:1].upper() + self._chart.axis[1:], size=TEXT_PT)

    def _inches_per_log(self, axes: Axes) -> float:
        left, right = axes.get_xlim()
        return size_in(axes)[0] / math.log(right / left)

    def _sideways(self, axes: Axes) -> dict[str, float]:
        """Factors on the nodes that keep equal points visible, all of them far less than the way to the next tick."""
        per_log = self._inches_per_log(axes)
        near = [math.log(high / low) for low, high in itertools.pairwise(self._nodes)]
        most = 0.5 * min(near, default=1.0) / max(len(self._looks), 1)
        step = min(_STEP_PT / 72 / per_log, most)
        middle = (len(self._looks) - 1) / 2
        return {target: math.exp((index - middle) * step) for index, target in enumerate(self._looks)}

    def _curve(self, axes: Axes, curve: Sequence[Point], look: Style, aside: float, target: str) -> None:
        places = [(point.nodes or 0) * aside for point in curve]
        medians = [point.median or 0.0 for point in curve]
        below = [median - min(point.samples) for median, point in zip(medians, curve, strict=True)]
        above = [max(point.samples) - median for median, point in zip(medians, curve, strict=True)]
        axes.errorbar(
            places, medians, yerr=[below, above], label=target, color=look.colour, marker=look.marker,
            linestyle=look.line, linewidth=1.6, markersize=_MARKER_PT, elinewidth=1.1, capsize=2.5,
            clip_on=any(sample < 0 for point in curve for sample in point.samples),
        )  # fmt: skip

    def _stop(self, axes: Axes, strip: Axes, curve: Sequence[Point], stop: Point, look: Style, aside: float) -> None:
        """Draw an open marker in the strip above the nodes without a result, and a thin line that leads there."""
        place = (stop.nodes or 0) * aside
        before = [point for point in curve if (point.nodes or 0) < (stop.nodes or 0)]
        if before:
            last = before[-1]
            axes.plot(
                [(last.nodes or 0) * aside, place], [last.median or 0.0, axes.get_ylim()[1]],
                color=look.colour, linestyle=(0, (1, 2)), linewidth=1.1,
            )  # fmt: skip
        strip.plot(
            [place], [0.5], color=look.colour, marker=look.marker, markersize=_MARKER_PT + 1, linestyle="none",
            markerfacecolor="white", markeredgewidth=1.5, clip_on=False,
        )  # fmt: skip

    def _strip(self, axes: Axes, strip: Axes) -> None:
        strip.set_facecolor("#f1f1f1")
        strip.set_xscale("log")
        strip.set_xlim(axes.get_xlim())
        strip.set_ylim(0, 1)
        strip.xaxis.set_major_locator(NullLocator())
        strip.xaxis.set_minor_locator(NullLocator())
        strip.xaxis.set_major_formatter(NullFormatter())
        strip.yaxis.set_major_locator(FixedLocator([0.5]))
        strip.yaxis.set_major_formatter(FixedFormatter([NO_RESULT]))
        strip.tick_params(axis="y", length=0, labelsize=TEXT_PT, labelcolor=INK)
        for side in ("top", "right", "left"):
            strip.spines[side].set_visible(False)
        strip.spines["bottom"].set(color=GREY, linestyle=(0, (3, 3)), linewidth=0.7)
