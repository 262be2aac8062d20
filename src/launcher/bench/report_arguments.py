"""The arguments of ``rdzv bench report``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any


def configure(what: Any) -> None:
    """Add the sub-command's parser."""
    report = what.add_parser("report", help="several results side by side, as one HTML page that needs nothing else")
    report.add_argument("directory", metavar="DIR", help="where rdzv bench wrote the results, with --out=DIR")
    report.add_argument("--to", metavar="FILE", help="the page (default DIR/report.html)")


def run(args: argparse.Namespace) -> int:
    """Write the page; returns the exit code. Raises ``UsageError`` and ``MissingDependency``."""
    from launcher.bench.report import write_report

    directory = Path(args.directory)
    print(f"wrote {write_report(directory, Path(args.to) if args.to else directory / 'report.html')}", flush=True)
    return 0
