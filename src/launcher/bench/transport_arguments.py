"""The arguments of ``rdzv bench transport``."""

from __future__ import annotations

import argparse
from typing import Any

from launcher.bench.numbers import positive

_CLIENTS, _SIZES = "1,8", "1024,8192"
_ROUNDS, _REPEATS = 400, 11
_QUICK_ROUNDS = 10


def configure(what: Any) -> None:
    """Add the sub-command's parser."""
    parser = what.add_parser("transport", help="what a request costs a worker: by loopback, and by a Unix socket")
    add = parser.add_argument
    add("--clients", default=_CLIENTS, metavar="N,N", help=f"workers at once (default {_CLIENTS})")
    add("--sizes", default=_SIZES, metavar="N,N", help=f"bytes of a value (default {_SIZES})")
    add("--rounds", type=int, metavar="N", help=f"of requests of each worker in a run (default {_ROUNDS})")
    add("--repeats", type=int, metavar="N", help=f"runs of each transport (default {_REPEATS})")
    add("--quick", action="store_true", help="few requests and one run: to see that it works, not for figures")
    add("--json", action="store_true", help="print the figures as JSON")


def run(args: argparse.Namespace) -> int:
    """Run it; returns the exit code. Raises ``UsageError`` for what is no number."""
    from launcher.bench.transport import Settings
    from launcher.bench.transport import run as run_transport

    rounds = args.rounds if args.rounds is not None else _QUICK_ROUNDS if args.quick else _ROUNDS
    repeats = args.repeats if args.repeats is not None else 1 if args.quick else _REPEATS
    settings = Settings(
        clients=_numbers("--clients", args.clients),
        sizes=_numbers("--sizes", args.sizes),
        rounds=positive("--rounds", rounds),
        repeats=positive("--repeats", repeats),
    )
    return run_transport(settings, as_json=args.json)


def _numbers(flag: str, text: str) -> tuple[int, ...]:
    return tuple(dict.fromkeys(positive(flag, part) for part in text.split(",")))
