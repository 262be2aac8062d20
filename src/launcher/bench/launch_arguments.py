"""The arguments of ``rdzv bench launch``."""

from __future__ import annotations

import argparse
from typing import Any

from launcher.bench import backends, output
from launcher.bench.numbers import positive
from rdzv_plugins.errors import UsageError

_DEFAULTS = {"repeats": 5, "collectives": 3}
_QUICK = {"repeats": 1, "collectives": 1}
_BACKENDS = "static,c10d,parallel,tiered,etcd"
_CASES = "one-node,nodes"
_MOST_SECONDS = 3600


def configure(what: Any) -> None:
    """Add the sub-command's parser."""
    launch = what.add_parser(
        "launch", help="from the command to the workers' first line and their first collective, beside torchrun"
    )
    add = launch.add_argument
    backends.add_flags(launch, _BACKENDS)
    add("--cases", default=_CASES, metavar="A,B", help="some of one-node (the launchers without a flag of a "
        "rendezvous) and nodes (every backend) (default both)")  # fmt: skip
    add("--nodes", type=int, default=2, metavar="N", help="agents of a job, all on this machine (default 2)")
    add("--workers", type=int, default=1, metavar="N", help="workers of each of these nodes (default 1)")
    add("--references", default="torch-static,torch-c10d", metavar="A,B", help="torchrun's own backends to measure "
        "beside, or none (default both)")  # fmt: skip
    add("--repeats", type=int, metavar="N", help=f"runs of each target (default {_DEFAULTS['repeats']}), after one "
        "that does not count")  # fmt: skip
    add("--collectives", type=int, metavar="N", help="further runs with workers that import torch, up to their first "
        f"collective (default {_DEFAULTS['collectives']}; 0: none)")  # fmt: skip
    add("--limit", type=float, default=120.0, metavar="SECONDS", help="of one start, and of one end; beyond is a "
        "result too (default 120)")  # fmt: skip
    add("--quick", action="store_true", help="one run of each: to see that it works, not for figures")
    output.add_flags(launch)


def run(args: argparse.Namespace) -> int:
    """Run the benchmark; returns the exit code. Raises ``UsageError``."""
    from launcher.bench.launch import Settings
    from launcher.bench.launch import run as run_launch
    from launcher.bench.launch_targets import references

    presets = _QUICK if args.quick else _DEFAULTS
    asked = {name: preset if getattr(args, name) is None else getattr(args, name) for name, preset in presets.items()}
    cases = tuple(dict.fromkeys(args.cases.split(",")))
    for case in cases:
        if case not in _CASES.split(","):
            raise UsageError(f"--cases: '{case}' is none of {_CASES.replace(',', ', ')}")
    if asked["collectives"] < 0:
        raise UsageError(f"--collectives={asked['collectives']}: a whole number, at least 0, is needed")
    if positive("--nodes", args.nodes) < 2:
        raise UsageError("--nodes=1: at least 2 are needed", remedy="One node is the case one-node: --cases=one-node")
    if not 1 <= args.limit <= _MOST_SECONDS:
        raise UsageError(f"--limit={args.limit:g}: a number of seconds from 1 to {_MOST_SECONDS} is needed")
    references(args.references)
    settings = Settings(
        cases=cases,
        nodes=args.nodes,
        workers=positive("--workers", args.workers),
        references=args.references,
        repeats=positive("--repeats", asked["repeats"]),
        collectives=asked["collectives"],
        limit_s=args.limit,
        warm_up=not args.quick,
    )
    found = backends.candidates(args, _BACKENDS, own_times=True) if "nodes" in cases else []
    options = {
        "backends": {each.name: dict(each.harness.conf) for each in found},
        "cases": list(cases),
        "nodes": args.nodes,
        "workers": args.workers,
        "references": args.references,
        "limit_s": args.limit,
        "warm_up": settings.warm_up,
        **asked,
    }
    results = output.Output(
        "launch", options, as_json=args.json, out=args.out, plugins=dict(each.version for each in found)
    )
    return run_launch(settings, found, results, asked_for=args.backends is not None)
