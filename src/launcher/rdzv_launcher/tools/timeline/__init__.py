"""``rdzv timeline``: what has happened in a job, on all nodes, and what each interruption has cost.

It reads what agents wrote with ``--timeline``; for a job that is still running, as much as there is.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from rdzv_plugins.errors import UsageError
from rdzv_plugins.plain_text import printable

_COMPLAINTS_SHOWN = 20


def configure(commands: Any) -> None:
    """Add the sub-command's parser."""
    parser = commands.add_parser(
        "timeline", help="show what happened in a job and what each interruption cost, from its --timeline files"
    )
    parser.add_argument("files", nargs="+", metavar="FILE", help="files of all nodes, or directories with them")
    parser.add_argument("--run", metavar="ID", help="choose this run (default: the latest)")
    parser.add_argument("--chrome", metavar="OUT.json", help="write a trace for Perfetto or chrome://tracing")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")


def run(args: argparse.Namespace) -> int:
    """Read, merge and print; returns the exit code. Raises ``UsageError`` if there is nothing to read."""
    from rdzv_launcher.tools.timeline.interruptions import interruptions
    from rdzv_launcher.tools.timeline.job import newest_launch, read
    from rdzv_launcher.tools.timeline.output import as_data, as_text, as_trace
    from rdzv_plugins.plain_text import printable_data

    agents, unread = read(args.files)
    job, others = newest_launch(agents, args.run)
    complaints = [*unread, *others]
    found = interruptions(job)
    if args.chrome:
        _write(args.chrome, as_trace(job, found))
    data = as_data(job, found, complaints)
    for each in complaints[:_COMPLAINTS_SHOWN]:
        print(printable(each), file=sys.stderr)
    if len(complaints) > _COMPLAINTS_SHOWN:
        print(f"and {len(complaints) - _COMPLAINTS_SHOWN} more (all of them: --json)", file=sys.stderr)
    sys.stderr.flush()
    print(json.dumps(data, indent=2) if args.json else as_text(printable_data(data)), flush=True)
    return 0


def _write(path: str, trace: dict[str, Any]) -> None:
    try:
        with open(path, "w") as file:
            json.dump(trace, file)
    except OSError as error:
        raise UsageError(f"--chrome={path}: {error.strerror}", remedy="Name a file that you may write to.") from None
