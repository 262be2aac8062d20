"""How targets look in every chart, and how numbers and texts are written there."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

Line: TypeAlias = str | tuple[float, tuple[float, ...]]

INK, GREY, FAINT = "#1a1a1a", "#555555", "#d9d9d9"
TITLE_PT, TEXT_PT, SMALL_PT = 13.0, 10.0, 9.5

RC: dict[str, Any] = {
    "font.family": ["DejaVu Sans"],  # comes with matplotlib
    "font.size": TEXT_PT,
    "text.color": INK,
    "text.parse_math": False,  # a name may contain dollars
    "axes.edgecolor": GREY,
    "axes.labelcolor": INK,
    "axes.unicode_minus": False,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "hatch.linewidth": 0.6,
    "path.simplify": False,
    "svg.fonttype": "none",  # text stays text: it can be found, copied and read aloud
    "svg.hashsalt": "rdzv bench",  # the same chart has the same bytes
}

# Okabe and Ito's colours, which colour-blind people can tell apart, too; without yellow, which is invisible on white.
# The numbers of colours, markers and line styles have no common divisor: targets that share one differ in another.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#7a7a7a")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", "p", ">")
_LINES: tuple[Line, ...] = ("-", (0, (6, 2)), (0, (1.5, 1.5)), (0, (6, 2, 1.5, 2)), (0, (3, 1.5)))
# the same name looks the same in every chart if possible
_PLACES = {
    "parallel": 0, "ours": 0, "tiered": 1, "etcd": 2, "c10d": 3, "static": 4, "tiered-unix": 5, "torch-c10d": 6,
    "libuv": 6, "torchrun": 6, "direct": 6, "loopback": 6, "torch-static": 7, "legacy": 7, "echo": 4,
}  # fmt: skip

_UNITS = {
    "s": "seconds",
    "ms": "milliseconds",
    "us": "microseconds",
}


@dataclass(frozen=True)
class Style:
    """How one target is drawn. Up to eight differ in colour and in marker; more differ in at least one of them."""

    colour: str
    marker: str
    line: Line


def styles(targets: Iterable[str]) -> dict[str, Style]:
    """Choose a colour and a marker for each target, the same in all charts of a run."""
    found: dict[str, int] = {}
    targets = list(dict.fromkeys(targets))
    for target in targets:  # known names first: a third-party one does not change how they look
        place = _PLACES.get(target)
        if place is not None and place not in found.values():
            found[target] = place
    for target in targets:
        if target not in found:
            found[target] = next(place for place in range(len(targets)) if place not in found.values())
    return {
        target: Style(
            _COLOURS[found[target] % len(_COLOURS)],
            _MARKERS[found[target] % len(_MARKERS)],
            _LINES[found[target] % len(_LINES)],
        )
        for target in targets
    }


def printable(text: str) -> str:
    """The text with spaces for what an SVG or a page cannot hold: control characters and halves of characters."""
    return text if text.isprintable() else "".join(each if each.isprintable() else " " for each in text)


def clean(text: str) -> str:
    """The text in one printable line, with single spaces."""
    return " ".join(printable(text).split())


def label(title: str, unit: str) -> str:
    """The text beside an axis."""
    unit = _UNITS.get(unit, unit)
    title = title[:1].upper() + title[1:]
    return f"{title} [{unit}]" if unit and unit.lower() not in title.lower() else title


_SMALL = 0.01


def number(value: float) -> str:
    """A figure with three significant digits; whole numbers from a hundred on."""
    if value == 0:
        return "0"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:#.3g}".rstrip(".")


def share(ratio: float, reference: str, *spread: float) -> str:
    """A ratio and its spread in words; where it is very small, the reciprocals: easier to imagine than 0.000833."""
    small = 0 < ratio < _SMALL and all(spread)
    most = sorted(1 / each if small else each for each in spread)
    between = f" ({number(most[0])} .. {number(most[-1])})" if most else ""
    if small:
        return f"{reference} has {number(1 / ratio)} times as much{between}"
    return f"{number(ratio)} of {reference}{between}"


def plain(value: float) -> str:
    """A tick label: 0.01, 0.5, 4, 1,024, 300,000, 20M (millions)."""
    return f"{value:,.10g}" if abs(value) < 1e6 else f"{value / 1e6:,.10g}M"


def log_ticks(low: float, high: float) -> list[float]:
    """Round numbers from ``low`` to ``high``, about 3 to 9 of them, far apart on a logarithmic axis."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    for steps in ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 5, 7), (1, 1.5, 2, 2.5, 3, 4, 5, 6, 7, 8, 9)):
        ticks = [
            float(f"{step}e{power}")
            for power in range(first, last + 1)
            for step in steps
            if low <= float(f"{step}e{power}") <= high
        ]
        if len(ticks) >= (4 if len(steps) > 1 else 5):
            return ticks[:: math.ceil(len(ticks) / 9)]
    return ticks


def apart(places: Sequence[float], least: float) -> list[bool]:
    """Which of the places get a label, so that labels are ``least`` apart; the last one always does."""
    kept = [False] * len(places)
    after = math.inf
    for index in reversed(range(len(places))):
        if after - places[index] >= least:
            kept[index], after = True, places[index]
    return kept
