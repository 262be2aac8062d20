"""The arguments of ``rdzv bench store``."""

from __future__ import annotations

import argparse
from typing import Any

from launcher.bench import output
from launcher.bench.numbers import positive
from rdzv_plugins.errors import UsageError

_DEFAULTS: dict[str, Any] = {"connections": "1000,4000", "storm": 8000, "hold": 16000, "repeats": 5, "rounds": 10}
_QUICK: dict[str, Any] = {"connections": "100", "storm": 200, "hold": 200, "repeats": 1, "rounds": 2}
_NAMES_CLIENTS = 200
_WORKLOADS = "storm,barrier,mesh,one_key,multi_get,hold,names"
_TARGETS = "ours,libuv,legacy,echo"


def configure(what: Any) -> None:
    """Add the sub-command's parser."""
    store = what.add_parser("store", help="what a request costs the store server, beside torch's servers")
    store.description = "What a request costs our store server, torch's two, and a bare epoll loop, in the same run."
    add = store.add_argument
    add("--connections", metavar="N,N", help=f"clients of the workloads (default {_DEFAULTS['connections']})")
    add("--storm", type=int, metavar="N", help=f"clients that connect at once (default {_DEFAULTS['storm']})")
    add("--hold", type=int, metavar="N", help=f"idle clients (default {_DEFAULTS['hold']})")
    add("--repeats", type=int, metavar="N", help=f"turns of all servers (default {_DEFAULTS['repeats']})")
    add(
        "--rounds", type=int, metavar="N", help=f"how often a client repeats a workload (default {_DEFAULTS['rounds']})"
    )
    add("--gets", type=int, default=8, metavar="K", help="mesh: peers whose blob a client gets (default 8)")
    add("--workloads", default=_WORKLOADS, metavar="A,B", help=f"some of {_WORKLOADS} (default all)")
    add("--targets", default=_TARGETS, metavar="A,B", help=f"some of {_TARGETS}, ours:THREADS (default {_TARGETS})")
    add("--threads", metavar="N,N", default="", help="also ours with so many threads; the same as targets ours:N")
    add("--limit", type=float, default=60.0, metavar="SECONDS", help="of one run; beyond is a result too (default 60)")
    add("--quick", action="store_true", help="few clients and one run: to see that it works, not for figures")
    output.add_flags(store)


def run(args: argparse.Namespace) -> int:
    """Run the benchmark; returns the exit code. Raises ``UsageError``."""
    from launcher.bench.store import Settings
    from launcher.bench.store import run as run_store
    from launcher.bench.store_cases import WORKLOADS
    from launcher.bench.store_targets import parse_target

    presets = _QUICK if args.quick else _DEFAULTS
    asked = {name: preset if getattr(args, name) is None else getattr(args, name) for name, preset in presets.items()}
    connections = tuple(dict.fromkeys(positive("--connections", text) for text in asked.pop("connections").split(",")))
    for name, value in [*asked.items(), ("gets", args.gets)]:
        positive(f"--{name}", value)
    if not args.limit > 0:
        raise UsageError(f"--limit={args.limit:g}: a number of seconds above 0 is needed")
    workloads = tuple(dict.fromkeys(args.workloads.split(",")))
    for workload in workloads:
        if workload not in WORKLOADS:
            raise UsageError(f"--workloads: '{workload}' is none of {', '.join(WORKLOADS)}")
    names = args.targets.split(",")
    if args.threads:
        names = ["ours", *(f"ours:{positive('--threads', text)}" for text in args.threads.split(",")), *names]
    settings = Settings(
        workloads=workloads,
        targets=tuple(parse_target(name) for name in dict.fromkeys(names)),
        connections=connections,
        names=_NAMES_CLIENTS if not args.quick else _NAMES_CLIENTS // 10,
        gets=args.gets,
        limit_s=args.limit,
        **asked,
    )
    return run_store(settings, as_json=args.json, out=args.out)
