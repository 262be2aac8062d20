"""Where the figures of one run go: a table or JSON lines on stdout, and with ``--out`` a file and charts."""

from __future__ import annotations

import argparse
import datetime
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, TextIO

from rdzv_launcher.bench.method.manifest import as_text as manifest_as_text
from rdzv_launcher.bench.method.manifest import manifest
from rdzv_launcher.bench.method.points import Point, compare
from rdzv_launcher.bench.method.progress import Progress
from rdzv_launcher.bench.method.results import SUFFIX, Writer, read_result
from rdzv_launcher.bench.report.text import as_text
from rdzv_plugins.errors import UsageError

_NONE: Mapping[str, str] = MappingProxyType({})


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags that every benchmark has: ``--json`` and ``--out``."""
    parser.add_argument("--json", action="store_true", help="print JSON lines: manifest, points, ratios, details, end")
    parser.add_argument("--out", metavar="DIR", help="also write the JSON lines and charts into this directory")


class Output:
    """One run's output. A context manager; for one thread. After an error inside, what was measured is kept."""

    def __init__(
        self,
        bench: str,
        options: Mapping[str, Any],
        *,
        as_json: bool,
        out: str | None,
        plugins: Mapping[str, str] = _NONE,
    ) -> None:
        """Raises ``UsageError`` if ``out`` cannot be written to, before anything is measured."""
        self.progress = Progress(bench)
        self._bench, self._as_json = bench, as_json
        self._about = manifest(bench, options, plugins)
        self._open = ExitStack()
        self.file: Path | None = None
        self._streams: list[TextIO] = [sys.stdout] if as_json else []
        if out is not None:
            _require_charts()
            now = datetime.datetime.now(datetime.timezone.utc)
            self.file = Path(out) / f"{bench}-{now:%Y%m%d-%H%M%S}{SUFFIX}"
            _require_writable(self.file.parent)
        self._writer = Writer(self._streams)

    def __enter__(self) -> Output:
        if self.file is not None:  # here, so that no empty file is left if something necessary is missing
            self._streams.append(self._open.enter_context(self.file.open("x")))
        self._writer.manifest(self._about)
        if not self._as_json:
            print(manifest_as_text(self._about), end="\n\n", flush=True)
        return self

    def case(
        self,
        name: str,
        points: Sequence[Point],
        *,
        details: Mapping[str, Any] | None = None,
        text: str | None = None,
        notes: Sequence[str] = (),
    ) -> None:
        """Write one case as soon as it is measured.

        ``text``: its table, if the common one is not suitable; ``notes``: lines under the common one.
        """
        self.progress.done()
        ratios = compare(points)
        self._writer.points(points)
        self._writer.ratios(ratios)
        if details is not None:
            self._writer.details({"case": name, **details})
        if not self._as_json:
            print(as_text(name, points, ratios, notes) if text is None else text, flush=True)

    def end(self, caption: str) -> None:
        """Everything was measured; ``caption`` says what the figures are, for the terminal."""
        self._writer.end()
        if not self._as_json:
            print(caption, flush=True)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.progress.done()
        self._open.close()
        if error is None and self.file is not None:
            from rdzv_launcher.bench.charts.files import draw

            for path in [self.file, *draw(read_result(self.file), self.file.parent)]:
                self.progress.say(f"wrote {path}")


def _require_writable(directory: Path) -> None:
    """Check the directory: if it cannot be written to, that is better reported now than after minutes."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as error:
        raise UsageError(f"--out: cannot write into {directory}: {error.strerror}") from None


def _require_charts() -> None:
    """Check for matplotlib: if it is missing, that is better reported now than after minutes."""
    from rdzv_launcher.bench.charts.files import require_matplotlib

    require_matplotlib()
