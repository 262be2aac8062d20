"""``rdzv bench``: its sub-commands. The code of a benchmark is imported when it runs."""

from __future__ import annotations

import argparse
import importlib
import signal
import sys
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from rdzv_launcher.bench import all as all_benchmarks
from rdzv_launcher.bench import backends
from rdzv_launcher.bench.faults.settings import FaultsSettings
from rdzv_launcher.bench.launch.settings import LaunchSettings
from rdzv_launcher.bench.method import settings
from rdzv_launcher.bench.rendezvous.settings import RendezvousSettings
from rdzv_launcher.bench.report import output, page
from rdzv_launcher.bench.store.settings import StoreSettings
from rdzv_launcher.bench.tiered.settings import TieredSettings
from rdzv_launcher.bench.transport.settings import TransportSettings
from rdzv_plugins.errors import UsageError


@dataclass(frozen=True)
class Benchmark:
    """A sub-command that measures, by ``run(settings, args)`` in the module ``bench`` of its folder."""

    name: str
    settings: type
    help: str
    quick: str
    """What ``--quick`` does."""
    description: str | None = None
    any_backends: bool = False
    """It measures installed backends, by their names."""

    def configure(self, what: Any) -> None:
        """Add the sub-command's parser."""
        parser = what.add_parser(self.name, help=self.help, description=self.description)
        if self.any_backends:
            backends.add_flags(parser)
        settings.add_flags(parser, self.settings, self.quick, {"native": backends.Names(backends.at_native_store)})
        output.add_flags(parser)

    def run(self, args: argparse.Namespace) -> int:
        """Run the benchmark; returns the exit code. Raises ``UsageError`` for invalid settings, and its own errors."""
        asked: Any = settings.read(self.settings, args)
        code: int = importlib.import_module(f"rdzv_launcher.bench.{self.name}.bench").run(asked, args)
        return code


_BENCHMARKS = (
    Benchmark(
        "launch",
        LaunchSettings,
        "from the command to the workers' first line and their first collective, beside torchrun",
        "one run of each",
        any_backends=True,
    ),
    Benchmark(
        "rendezvous",
        RendezvousSettings,
        "how long nodes take to join, and again after a loss, over any backends, beside torch's own",
        "4 and 16 nodes and one run",
        any_backends=True,
    ),
    Benchmark(
        "faults",
        FaultsSettings,
        "how long a job needs to go on after a worker, an agent or the store's host was lost",
        "one run of each",
        any_backends=True,
    ),
    Benchmark(
        "store",
        StoreSettings,
        "what a request costs the store server, beside torch's servers",
        "few clients and one run",
        "What a request costs our store server, torch's two, and a bare epoll loop, in the same run.",
    ),
    Benchmark(
        "tiered",
        TieredSettings,
        "what a job's start asks of the workers' store, with proxies and without",
        "few nodes and one run",
        "What the start of a job asks of the workers' store, through the proxies of its nodes and without them.",
    ),
    Benchmark(
        "transport",
        TransportSettings,
        "what a request costs a worker: by loopback, and by a Unix socket",
        "few workers and one run",
        "What a request costs a worker: by loopback, by a Unix socket, and with a client in Python.",
    ),
)
_COMMANDS: dict[str, Benchmark | ModuleType] = {
    **{each.name: each for each in _BENCHMARKS},
    "all": all_benchmarks,
    "report": page,
}

_DESCRIPTION = """\
How long, how much and at what cost: each benchmark measures in turns what is to be compared, torch's own beside it, and
prints medians with their spread, and ratios where they are larger than that. Progress is on stderr. With --json the
result is printed as JSON lines; with --out=DIR it is also written there, with charts."""
_EXAMPLES = """\
examples:
  rdzv bench rendezvous --quick                 see that it works
  rdzv bench rendezvous --backends=parallel,etcd --nodes=16,64,256 --out=results
  rdzv bench all --out=results                  everything, about 20 minutes on two cores
  rdzv bench report results                     several results side by side, as one page

`rdzv bench WHAT --help` has the flags of each."""
_INTERRUPTED = 128 + signal.SIGINT


def configure(commands: Any) -> None:
    """Add the sub-command's parser."""
    bench = commands.add_parser(
        "bench",
        help="run benchmarks, with torch's own in the same run",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    bench.set_defaults(bench_help=bench.format_help)
    what = bench.add_subparsers(dest="what", metavar="WHAT", title="what to measure")
    for command in _COMMANDS.values():
        command.configure(what)


def run(args: argparse.Namespace) -> int:
    """Run the requested benchmark; returns the exit code. Raises whatever that raises."""
    if args.what is None:
        print(args.bench_help(), end="", file=sys.stderr)
        return UsageError.exit_code
    try:
        code: int = _COMMANDS[args.what].run(args)
    except KeyboardInterrupt:
        print(f"rdzv bench {args.what}: interrupted; what was measured so far is kept", file=sys.stderr)
        return _INTERRUPTED
    return code
