"""The sheet of a chart: title and what it was measured on above, legend and notes below, the axes between them.

Everything has its own band of the sheet, as high as its text, so that nothing can overlap.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg, RendererAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties

from rdzv_launcher.bench.charts.style import GREY, INK, SMALL_PT, TEXT_PT, TITLE_PT

WIDTH_IN = 8.0
DPI = 144
_MARGIN_IN = 0.2
_LEADING = 1.35
_GAP_IN = 0.14
_HANDLE_PT = 34.0
_HANDLE_GAP_PT = 8.0
_COLUMN_GAP_PT = 22.0
NOTE = 500
"""The most characters of a note: all of it is in the data."""

Number = TypeVar("Number", int, float)


@dataclass
class Sheet:
    """What is around the axes; ``make`` gives the figure, in which ``axes`` makes the axes."""

    title: str
    subtitle: Sequence[str] = ()
    handles: Sequence[Artist] = ()
    """The entries of the legend."""
    labels: Sequence[str] = ()
    notes: Sequence[str] = ()
    figure: Figure = field(init=False)
    _axes_top_in: float = field(init=False, default=0.0)

    def make(self, axes_in: float) -> Figure:
        """The sheet, with ``axes_in`` inches of height for the axes, their titles and their labels."""
        self.figure = Figure(figsize=(WIDTH_IN, 4), dpi=DPI, facecolor="white")
        FigureCanvasAgg(self.figure)
        room = WIDTH_IN - 2 * _MARGIN_IN
        above = [(line, TITLE_PT, "bold", INK) for line in wrap(self.title, room, TITLE_PT, "bold")]
        above += [(line, SMALL_PT, "normal", GREY) for part in self.subtitle for line in wrap(part, room, SMALL_PT)]
        below = [(line, SMALL_PT, "normal", INK) for note in self.notes for line in wrap(note, room, SMALL_PT)]
        labels = ["\n".join(wrap(label, room - 0.8, TEXT_PT)) for label in self.labels]
        columns, legend_in = _legend_size(labels, room)
        above_in, below_in = (sum(size for _, size, *_ in lines) * _LEADING / 72 for lines in (above, below))
        parts = [above_in, _GAP_IN, axes_in, _GAP_IN, legend_in, _GAP_IN if labels else 0, below_in]
        self._axes_top_in = _MARGIN_IN + above_in + _GAP_IN
        self.figure.set_size_inches(WIDTH_IN, sum(parts) + 2 * _MARGIN_IN)
        self._write(above, _MARGIN_IN)
        legend_top_in = self._axes_top_in + axes_in + _GAP_IN
        if labels:
            self.figure.legend(
                self.handles, labels, loc="upper left", bbox_to_anchor=self._place(_MARGIN_IN, legend_top_in),
                ncols=columns, frameon=False, fontsize=TEXT_PT, borderaxespad=0, borderpad=0, labelspacing=0.5,
                handlelength=_HANDLE_PT / TEXT_PT, handletextpad=_HANDLE_GAP_PT / TEXT_PT,
                columnspacing=_COLUMN_GAP_PT / TEXT_PT,
            )  # fmt: skip
            legend_top_in += legend_in + _GAP_IN
        self._write(below, legend_top_in)
        return self.figure

    def axes(self, left_in: float, top_in: float, width_in: float, height_in: float, **options: Any) -> Axes:
        """Axes at a position in inches: from the left edge of the sheet, and from the top of the band of the axes."""
        across, high = self.figure.get_size_inches()
        bottom_in = high - self._axes_top_in - top_in - height_in
        rectangle = (left_in / across, bottom_in / high, width_in / across, height_in / high)
        return self.figure.add_axes(rectangle, **options)

    def _place(self, left_in: float, top_in: float) -> tuple[float, float]:
        across, high = self.figure.get_size_inches()
        return left_in / across, 1 - top_in / high

    def _write(self, lines: Iterable[tuple[str, float, str, str]], top_in: float) -> None:
        for text, size, weight, colour in lines:
            left, top = self._place(_MARGIN_IN, top_in)
            self.figure.text(left, top, text, size=size, weight=weight, color=colour, va="top", ha="left")
            top_in += size * _LEADING / 72


def _legend_size(labels: Sequence[str], room_in: float) -> tuple[int, float]:
    """Number of columns and height in inches, which is shared by the lines of all rows."""
    widths = [max(width_in(line, TEXT_PT) for line in label.split("\n")) for label in labels]
    for columns in range(len(labels), 0, -1):
        filled = _split(widths, columns)
        around = columns * (_HANDLE_PT + _HANDLE_GAP_PT) + (columns - 1) * _COLUMN_GAP_PT
        if sum(max(column) for column in filled) + around / 72 <= room_in:
            break
    else:
        columns = 1
    lines = [label.count("\n") + 1 for label in labels]
    high = max((sum(1.25 * each + 0.4 for each in column) for column in _split(lines, columns)), default=0.0)
    return columns, high * TEXT_PT / 72


def _split(items: Sequence[Number], columns: int) -> list[Sequence[Number]]:
    """The order in which a legend fills its columns: one after another, the first ones longer by one if need be."""
    each, more = divmod(len(items), columns)
    ends = [0]
    for column in range(columns):
        ends.append(ends[-1] + each + (1 if column < more else 0))
    return [items[start:end] for start, end in itertools.pairwise(ends)]


def size_in(axes: Axes) -> tuple[float, float]:
    """Width and height in inches of axes that ``Sheet.axes`` has made."""
    return float(axes.bbox.width) / DPI, float(axes.bbox.height) / DPI


@functools.cache
def _renderer() -> RendererAgg:
    return FigureCanvasAgg(Figure(dpi=72)).get_renderer()


@functools.lru_cache(4096)
def width_in(text: str, size: float, weight: str = "normal") -> float:
    """The length of a line of text in inches."""
    font = FontProperties(family=["DejaVu Sans"], size=size, weight=weight)
    width, _, _ = _renderer().get_text_width_height_descent(text, font, ismath=False)
    return float(width) / 72


def wrap(text: str, room_in: float, size: float, weight: str = "normal", most: int = 0) -> list[str]:
    """Lines no longer than ``room_in``; if ``most`` is given, at most that many, the last one cut short."""
    lines: list[str] = []
    line = ""
    for word in text.split(" "):
        for piece in _pieces(word, room_in, size, weight):
            longer = f"{line} {piece}" if line else piece
            if line and width_in(longer, size, weight) > room_in:
                lines.append(line)
                line = piece
            else:
                line = longer
    lines.append(line)
    if most and len(lines) > most:
        last = lines[most - 1] + " ..."
        while width_in(last, size, weight) > room_in and len(last) > 4:
            last = last[:-5] + " ..."
        lines = [*lines[: most - 1], last]
    return lines


def _pieces(word: str, room_in: float, size: float, weight: str) -> list[str]:
    """Cut a word that is longer than a line."""
    pieces = []
    while width_in(word, size, weight) > room_in and len(word) > 1:
        fits = max(1, int(len(word) * room_in / width_in(word, size, weight)))
        while fits > 1 and width_in(word[:fits], size, weight) > room_in:
            fits -= 1
        pieces.append(word[:fits])
        word = word[fits:]
    return [*pieces, word]
