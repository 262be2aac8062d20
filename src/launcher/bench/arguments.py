"""``rdzv bench``: its sub-commands, each with a module for its arguments that imports the rest when it runs."""

from __future__ import annotations

import argparse
import signal
import sys
from types import ModuleType
from typing import Any

from launcher.bench import (
    all_arguments,
    faults_arguments,
    launch_arguments,
    rendezvous_arguments,
    report_arguments,
    store_arguments,
    tiered_arguments,
    transport_arguments,
)
from rdzv_plugins.errors import UsageError

_PARTS: dict[str, ModuleType] = {
    "launch": launch_arguments,
    "rendezvous": rendezvous_arguments,
    "faults": faults_arguments,
    "store": store_arguments,
    "tiered": tiered_arguments,
    "transport": transport_arguments,
    "all": all_arguments,
    "report": report_arguments,
}


_DESCRIPTION = """\
How long, how much and at what cost: each benchmark measures in turns what is to be compared, torch's own beside it, and
prints medians with their spread, and ratios where they are larger than that. Progress is on stderr. With --json the
result is printed as JSON lines; with --out=DIR it is also written there, with charts."""
_EXAMPLES = """\
examples:
  rdzv bench rendezvous --quick                 see that it works
  rdzv bench rendezvous --backends=parallel,etcd --nodes=16,64,256 --out=results
  rdzv bench all --out=results                  everything, about 17 minutes on two cores
  rdzv bench report results                     several results side by side, as one page

`rdzv bench WHAT --help` has the flags of each."""
_INTERRUPTED = 128 + signal.SIGINT


def configure(commands: Any) -> None:
    """Add the sub-command's parser."""
    bench = commands.add_parser(
        "bench",
        help="measure, beside torch's own in the same run",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    bench.set_defaults(bench_help=bench.format_help)
    what = bench.add_subparsers(dest="what", metavar="WHAT", title="what to measure")
    for part in _PARTS.values():
        part.configure(what)


def run(args: argparse.Namespace) -> int:
    """Run the benchmark asked for; returns the exit code. Raises what it raises."""
    if args.what is None:
        print(args.bench_help(), end="", file=sys.stderr)
        return UsageError.exit_code
    try:
        code: int = _PARTS[args.what].run(args)
    except KeyboardInterrupt:
        print(f"rdzv bench {args.what}: interrupted; what was measured so far is kept", file=sys.stderr)
        return _INTERRUPTED
    return code
