"""The arguments of ``rdzv bench transport``."""

from __future__ import annotations

import argparse
from typing import Any

from launcher.bench import output
from launcher.bench.numbers import positive

_DEFAULTS: dict[str, Any] = {"clients": "1,8", "sizes": "1024,8192", "rounds": 400, "repeats": 11}
_QUICK: dict[str, Any] = {"clients": "1,2", "sizes": "1024", "rounds": 10, "repeats": 1}


def configure(what: Any) -> None:
    """Add the sub-command's parser."""
    parser = what.add_parser("transport", help="what a request costs a worker: by loopback, and by a Unix socket")
    parser.description = "What a request costs a worker: by loopback, by a Unix socket, and with a client in Python."
    add = parser.add_argument
    add("--clients", metavar="N,N", help=f"workers at once (default {_DEFAULTS['clients']})")
    add("--sizes", metavar="N,N", help=f"bytes of a value (default {_DEFAULTS['sizes']})")
    add("--rounds", type=int, metavar="N", help=f"of requests of each worker in a run (default {_DEFAULTS['rounds']})")
    add("--repeats", type=int, metavar="N", help=f"runs of each transport (default {_DEFAULTS['repeats']})")
    add("--quick", action="store_true", help="few workers and one run: to see that it works, not for figures")
    output.add_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Run it; returns the exit code. Raises ``UsageError`` for what is no number."""
    from launcher.bench.transport import Settings
    from launcher.bench.transport import run as run_transport

    presets = _QUICK if args.quick else _DEFAULTS
    asked = {name: preset if getattr(args, name) is None else getattr(args, name) for name, preset in presets.items()}
    settings = Settings(
        clients=_numbers("--clients", asked["clients"]),
        sizes=_numbers("--sizes", asked["sizes"]),
        rounds=positive("--rounds", asked["rounds"]),
        repeats=positive("--repeats", asked["repeats"]),
    )
    return run_transport(settings, as_json=args.json, out=args.out)


def _numbers(flag: str, text: str) -> tuple[int, ...]:
    return tuple(dict.fromkeys(positive(flag, part) for part in text.split(",")))
