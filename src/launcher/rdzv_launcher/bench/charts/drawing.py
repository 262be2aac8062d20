"""From a planned chart to a picture: the sheet's texts, the settings of matplotlib, PNG and SVG."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from rdzv_launcher.bench.charts.bars import draw_bars
from rdzv_launcher.bench.charts.curves import draw_curves
from rdzv_launcher.bench.charts.frame import DPI
from rdzv_launcher.bench.charts.plan import Chart, Extent, extent
from rdzv_launcher.bench.charts.style import RC, clean, styles
from rdzv_launcher.bench.method.results import Result


@contextmanager
def drawn(
    chart: Chart, result: Result, shared: Extent | None = None, targets: Iterable[str] | None = None
) -> Iterator[Figure]:
    """Yield the chart of this result, while the settings are active with which it has to be saved.

    If it appears beside charts of other results, ``shared`` is what the axes of all have to hold, and ``targets`` are
    the targets of all.
    """
    with matplotlib.rc_context(), warnings.catch_warnings():
        # a user's matplotlibrc is ignored: charts of different machines appear side by side
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(RC)
        warnings.filterwarnings("ignore", message="Glyph .* missing from", category=UserWarning)
        draw = draw_curves if chart.kind == "curves" else draw_bars
        yield draw(
            chart,
            f"rdzv bench {clean(result.bench)}: {clean(chart.title)}",
            subtitle(chart, result),
            extent([chart]) if shared is None else shared,
            # of all figures: a target that one of them leaves out does not change how another one looks
            styles(point.target for point in result.points) if targets is None else styles(targets),
        )


def subtitle(chart: Chart, result: Result) -> list[str]:
    """What it was measured on, and how often."""
    about: Mapping[str, Any] = result.manifest
    runs = sorted({len(point.samples) for point in chart.points if point.samples})
    many = f"{runs[0]}" if len(runs) == 1 else f"{runs[0]} to {runs[-1]}"
    versions = [f"{name} {version}" for name, version in dict(about.get("versions") or {}).items()]
    lines = [
        f"{about.get('cpu', 'unknown processor')}, {_cores(about.get('cores'))}, {about.get('memory_gib', '?')} GiB, "
        f"{about.get('kernel', '?')}",
        f"Python {about.get('python', '?')}, {', '.join(versions)}; {str(about.get('started', ''))[:10]}; "
        f"{many} run{'s' if runs[-1] > 1 else ''} of each",
    ]
    if result.end is None:
        lines.append("INTERRUPTED: this run of the benchmark did not come to its end.")
    return [clean(line) for line in lines]


def _cores(count: object) -> str:
    return "1 core" if count == 1 else f"{'?' if count is None else count} cores"


def as_png(figure: Figure) -> bytes:
    """The picture as PNG, with twice as many pixels as it has in a page."""
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=DPI, metadata={"Software": None})
    return stream.getvalue()


def as_svg(figure: Figure) -> bytes:
    """The picture as SVG, with its text as text. The same chart gives the same bytes."""
    stream = io.BytesIO()
    figure.savefig(stream, format="svg", metadata={"Date": None, "Creator": None})
    return stream.getvalue()
