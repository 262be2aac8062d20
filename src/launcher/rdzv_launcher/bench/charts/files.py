"""Charts of one result, as PNG and SVG. What can be checked without matplotlib is here, to be reported early."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from rdzv_launcher.bench.method.results import Result
from rdzv_plugins.errors import MissingDependency, UsageError


def require_matplotlib() -> None:
    """Raise ``MissingDependency`` if there is no matplotlib to draw charts with."""
    if importlib.util.find_spec("matplotlib") is None:
        raise MissingDependency(
            "charts need module 'matplotlib', which is not installed",
            remedy="Install it: pip install 'rdzv-plugins[bench]'",
        )


def draw(result: Result, directory: Path) -> list[Path]:
    """Write the charts that the points make; returns their files, ``NAME-FIGURE.png`` and ``.svg``.

    Existing files are replaced. Raises ``MissingDependency``, and ``UsageError`` if a file cannot be written.
    """
    require_matplotlib()
    from rdzv_launcher.bench.charts.drawing import as_png, as_svg, drawn
    from rdzv_launcher.bench.charts.plan import plan

    files = []
    for chart in plan(result.points):
        with drawn(chart, result) as figure:
            for suffix, data in ((".png", as_png(figure)), (".svg", as_svg(figure))):
                file = directory / f"{result.name}-{chart.name}{suffix}"
                try:
                    file.write_bytes(data)
                except OSError as error:
                    raise UsageError(f"cannot write the chart {file}: {error.strerror}") from None
                files.append(file)
    return files
