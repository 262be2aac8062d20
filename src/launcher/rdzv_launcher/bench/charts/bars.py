"""Bars: a figure of several cases, with a group of horizontal bars for each case, each bar labelled in place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedFormatter, FixedLocator, MaxNLocator, NullLocator

from rdzv_launcher.bench.charts.frame import NOTE, WIDTH_IN, Sheet, size_in, width_in, wrap
from rdzv_launcher.bench.charts.plan import Chart, Extent, spread_note
from rdzv_launcher.bench.charts.style import (
    FAINT,
    GREY,
    INK,
    SMALL_PT,
    TEXT_PT,
    Style,
    clean,
    label,
    log_ticks,
    number,
    plain,
)
from rdzv_launcher.bench.method.points import Point

_ROW_IN, _HEADING_IN, _BETWEEN_IN, _BELOW_IN = 0.25, 0.3, 0.12, 0.6
_MOST_NAME_IN, _EDGE_IN, _RIGHT_IN = 2.4, 0.32, 0.25
_BAR = 0.66
_BEHIND = {"facecolor": "white", "edgecolor": "none", "pad": 1.0}
"""The background of text, so that no grid line goes through it."""
_PAD_PT = 5.0
_FAR_APART = 200
"""Bars must begin at 0; if figures differ by this factor, points on a logarithmic axis replace them."""


def draw_bars(chart: Chart, title: str, subtitle: Sequence[str], shared: Extent, looks: Mapping[str, Style]) -> Figure:
    """The sheet of one chart. ``shared``: what its axes have to hold. ``looks``: of its targets, perhaps of others."""
    names = {target: wrap(clean(target), _MOST_NAME_IN, TEXT_PT, most=1)[0] for target in chart.targets}
    left = _EDGE_IN + max(width_in(name, TEXT_PT) for name in names.values()) + 0.1
    room = WIDTH_IN - left - _RIGHT_IN - 2 * _PAD_PT / 72
    log = _far_apart(shared)
    sheet = Sheet(title, subtitle, notes=_notes(chart, log, room))
    rows = _Rows(chart)
    sheet.make(rows.height_in + _BELOW_IN)
    axes = sheet.axes(left, 0, WIDTH_IN - left - _RIGHT_IN, rows.height_in)
    axes.set_ylim(rows.height_in, 0)
    _scale(axes, chart, shared)
    for top, case in rows.headings:
        text = wrap(clean(case), room + left - _EDGE_IN, TEXT_PT, "bold", most=1)[0]
        axes.text(
            (_EDGE_IN - left) / size_in(axes)[0], top + _HEADING_IN / 2, text, transform=axes.get_yaxis_transform(),
            va="center", weight="bold", size=TEXT_PT, bbox=_BEHIND,
        )  # fmt: skip
    for middle, point in rows.bars:
        if point.samples:
            _bar(axes, middle, point, looks[point.target], log=log)
        else:
            axes.annotate(
                wrap(_no_result(point), room, SMALL_PT, most=1)[0], (0, middle), xycoords=("axes fraction", "data"),
                xytext=(_PAD_PT, 0), textcoords="offset points", va="center", size=SMALL_PT, style="italic", color=INK,
                bbox=_BEHIND,
            )  # fmt: skip
    axes.yaxis.set_major_locator(FixedLocator([middle for middle, _ in rows.bars]))
    axes.yaxis.set_major_formatter(FixedFormatter([names[point.target] for _, point in rows.bars]))
    axes.tick_params(axis="y", length=0, labelsize=TEXT_PT)
    axes.grid(axis="x", color=FAINT, linewidth=0.7)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    for top, bottom in rows.groups:
        axes.plot([axes.get_xlim()[0]] * 2, [top, bottom], color=GREY, linewidth=1.0, clip_on=False)
    return sheet.figure


class _Rows:
    """Where the headings and the bars stand, in inches from the top of the axes."""

    def __init__(self, chart: Chart) -> None:
        self.headings: list[tuple[float, str]] = []
        self.bars: list[tuple[float, Point]] = []
        self.groups: list[tuple[float, float]] = []
        top = 0.0
        for case, points in chart.panels.items():
            top += _BETWEEN_IN if self.bars else 0
            self.headings.append((top, case))
            top += _HEADING_IN
            for point in points:
                self.bars.append((top + _ROW_IN / 2, point))
                top += _ROW_IN
            self.groups.append((top - len(points) * _ROW_IN, top))
        self.height_in = top + _BETWEEN_IN / 2


def _far_apart(shared: Extent) -> bool:
    """Whether the axis is logarithmic."""
    if shared.low is None or shared.high is None or shared.has_zero:
        return False
    return shared.high / shared.low > _FAR_APART


def _scale(axes: Axes, chart: Chart, shared: Extent) -> None:
    """The horizontal axis, with room on its right for the longest number."""
    wide, _ = size_in(axes)
    room = max((width_in(_text(point), SMALL_PT) for point in chart.points if point.samples), default=0.0)
    share = 1 - min((room + 3 * _PAD_PT / 72) / wide, 0.5)
    low, high = shared.low, shared.high
    if low is not None and high is not None and _far_apart(shared):
        left = low / 1.5
        right = left * (high / left) ** (1 / share)
        ticks = log_ticks(left, right)
        axes.set_xscale("log")
    else:
        left, right = 0.0, (high or 1.0) / share
        ticks = [
            float(tick)
            for tick in MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]).tick_values(left, right)
            if left <= tick <= right
        ]
    axes.set_xlim(left, right)
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_major_formatter(FixedFormatter([plain(tick) for tick in ticks]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel(wrap(label(clean(chart.title), clean(chart.unit)), wide, TEXT_PT, most=1)[0], size=TEXT_PT)


def _text(point: Point) -> str:
    return number(point.median or 0.0) + (" *" if point.unfinished else "")


def _bar(axes: Axes, middle: float, point: Point, look: Style, *, log: bool) -> None:
    """A bar from 0 to the median (a point, on a logarithmic axis), a line over the spread, and the median in digits."""
    median, low, high = point.median or 0.0, min(point.samples), max(point.samples)
    if log:
        axes.plot([median], [middle], marker=look.marker, color=look.colour, markersize=7, linestyle="none")
    else:
        axes.barh(
            middle, median, height=_ROW_IN * _BAR, color=look.colour if not point.reference else "white",
            edgecolor=look.colour, hatch="////" if point.reference else None, linewidth=1.1,
        )  # fmt: skip
    if len(point.samples) > 1:
        axes.errorbar(
            [median], [middle], xerr=[[median - low], [high - median]], fmt="none", ecolor=look.colour if log else INK,
            elinewidth=1.2, capsize=3,
        )  # fmt: skip
    axes.annotate(
        _text(point), (max(high, median), middle), xytext=(_PAD_PT + 2, 0), textcoords="offset points", va="center",
        size=SMALL_PT, color=INK, bbox=_BEHIND,
    )  # fmt: skip


def _no_result(point: Point) -> str:
    return clean(f"no result: {point.unfinished or 'not measured'}")


def _notes(chart: Chart, log: bool, room: float) -> list[str]:
    """What the bars cannot say: what was measured less often than the others and why; reasons too long for a row."""
    reasons: dict[str, list[str]] = {}
    for point in chart.points:
        if not point.samples and width_in(_no_result(point), SMALL_PT) > room:
            reasons.setdefault(_no_result(point), []).append(clean(point.target))
    notes = [f"{', '.join(dict.fromkeys(targets))}: {why}" for why, targets in reasons.items()]
    some = [point for point in chart.points if point.samples and point.unfinished]
    notes += [f"* {clean(point.target)}, {clean(point.case)}: {clean(point.unfinished)}" for point in some]
    caption = spread_note(chart.points, "thin")
    if log:
        caption += " The axis is logarithmic: the figures are far apart."
    elif any(point.reference for point in chart.points):
        caption += " Hatched: references."
    return [*dict.fromkeys(note[:NOTE] for note in notes), caption]
