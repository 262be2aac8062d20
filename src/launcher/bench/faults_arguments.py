"""The arguments of ``rdzv bench faults``."""

from __future__ import annotations

import argparse
from typing import Any

from launcher.bench import backends, output
from launcher.bench.numbers import positive
from rdzv_plugins.errors import UsageError

_BACKENDS = "static,c10d,parallel,tiered,etcd"
_FAULTS = "worker,agent,frozen,host"
_ALL_FAULTS = f"{_FAULTS},host-again"
_REPEATS = 3
_LEAST_NODES = 3
"""One serves, one is lost, and there has to be one that is neither."""
_MOST_SECONDS = 3600


def configure(what: Any) -> None:
    """Add the sub-command's parser."""
    faults = what.add_parser(
        "faults", help="how long a job needs to go on after a worker, an agent or the store's host was lost"
    )
    add = faults.add_argument
    backends.add_flags(faults, _BACKENDS)
    add("--faults", default=_FAULTS, metavar="A,B", help=f"some of {_ALL_FAULTS} (default {_FAULTS})")
    add("--nodes", type=int, default=_LEAST_NODES, metavar="N", help="agents of a job, all on this machine, of one "
        f"worker each (default {_LEAST_NODES})")  # fmt: skip
    add("--references", default="torch-static,torch-c10d", metavar="A,B", help="torchrun's own backends to measure "
        "beside, or none (default both)")  # fmt: skip
    add("--ttl", type=int, default=3, metavar="SECONDS", help="after which a silent node is lost, with backends that "
        "can tell and with torch's c10d (default 3)")  # fmt: skip
    add("--collective-timeout", type=float, default=20.0, metavar="SECONDS", help="gloo's, after which a worker gives "
        "a silent peer up by itself (default 20)")  # fmt: skip
    add("--repeats", type=int, metavar="N", help=f"runs of each target (default {_REPEATS})")
    add("--limit", type=float, default=60.0, metavar="SECONDS", help="from the fault on; a job that needs longer, or "
        "ends, is a result too (default 60)")  # fmt: skip
    add("--quick", action="store_true", help="one run of each: to see that it works, not for figures")
    output.add_flags(faults)


def run(args: argparse.Namespace) -> int:
    """Run the benchmark; returns the exit code. Raises ``UsageError``."""
    from launcher.bench.faults import Settings, wanted_conf
    from launcher.bench.faults import run as run_faults
    from launcher.bench.launch_targets import references

    faults = tuple(dict.fromkeys(args.faults.split(",")))
    for fault in faults:
        if fault not in _ALL_FAULTS.split(","):
            raise UsageError(f"--faults: '{fault}' is none of {_ALL_FAULTS.replace(',', ', ')}")
    if args.nodes < _LEAST_NODES:
        raise UsageError(f"--nodes={args.nodes}: at least {_LEAST_NODES} are needed, so that two go on")
    for flag, seconds in (("--limit", args.limit), ("--collective-timeout", args.collective_timeout)):
        if not 1 <= seconds <= _MOST_SECONDS:
            raise UsageError(f"{flag}={seconds:g}: a number of seconds from 1 to {_MOST_SECONDS} is needed")
    references(args.references)
    repeats = args.repeats if args.repeats is not None else 1 if args.quick else _REPEATS
    settings = Settings(
        faults=faults,
        nodes=args.nodes,
        references=args.references,
        repeats=positive("--repeats", repeats),
        ttl=positive("--ttl", args.ttl),
        collective_timeout_s=args.collective_timeout,
        limit_s=args.limit,
    )
    found = backends.candidates(args, _BACKENDS, wanted_conf(settings.ttl))
    options = {
        "backends": {each.name: dict(each.harness.conf) for each in found},
        "faults": list(faults),
        "nodes": args.nodes,
        "references": args.references,
        "repeats": settings.repeats,
        "ttl": settings.ttl,
        "collective_timeout_s": args.collective_timeout,
        "limit_s": args.limit,
    }
    results = output.Output(
        "faults", options, as_json=args.json, out=args.out, plugins=dict(each.version for each in found)
    )
    return run_faults(settings, found, results, asked_for=args.backends is not None)
