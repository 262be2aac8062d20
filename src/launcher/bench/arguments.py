"""The arguments of ``rdzv bench``."""

from __future__ import annotations

import argparse
import os
from typing import Any

from launcher.bench import tiered_arguments, transport_arguments
from launcher.bench.numbers import positive
from rdzv_plugins.errors import UsageError

_DEFAULTS: dict[str, Any] = {"connections": "1000,4000", "storm": 8000, "hold": 16000, "repeats": 5, "rounds": 10}
_QUICK: dict[str, Any] = {"connections": "100", "storm": 200, "hold": 200, "repeats": 1, "rounds": 2}
_NAMES_CLIENTS = 200
_WORKLOADS = "storm,barrier,mesh,one_key,multi_get,hold,names"
_LEAST_NODES = 4
_MOST_SECONDS = 3600
_TARGETS = "ours,libuv,legacy,echo"


def configure(commands: Any) -> None:
    """Add the sub-command's parser."""
    bench = commands.add_parser("bench", help="measure, beside torch's own in the same run")
    what = bench.add_subparsers(dest="what", required=True, metavar="WHAT")
    launch = what.add_parser("launch", help="from the command to the worker's first line, beside torchrun")
    launch.add_argument("--repeats", type=int, default=7, help="runs of each launcher (default 7)")
    launch.add_argument("--json", action="store_true", help="print the figures as JSON")

    store = what.add_parser("store", help="what a request costs the store server, beside torch's servers")
    add = store.add_argument
    add("--connections", metavar="N,N", help=f"clients of the workloads (default {_DEFAULTS['connections']})")
    add("--storm", type=int, metavar="N", help=f"clients that connect at once (default {_DEFAULTS['storm']})")
    add("--hold", type=int, metavar="N", help=f"idle clients (default {_DEFAULTS['hold']})")
    add("--repeats", type=int, metavar="N", help=f"runs against each server (default {_DEFAULTS['repeats']})")
    add(
        "--rounds", type=int, metavar="N", help=f"how often a client repeats a workload (default {_DEFAULTS['rounds']})"
    )
    add("--gets", type=int, default=8, metavar="K", help="mesh: peers whose blob a client gets (default 8)")
    add("--workloads", default=_WORKLOADS, metavar="A,B", help=f"some of {_WORKLOADS} (default all)")
    add("--targets", default=_TARGETS, metavar="A,B", help=f"some of {_TARGETS}, ours:THREADS (default {_TARGETS})")
    add("--threads", metavar="N,N", default="", help="also ours with so many threads; the same as targets ours:N")
    add("--limit", type=float, default=60.0, metavar="SECONDS", help="of one run; beyond is a result too (default 60)")
    add("--quick", action="store_true", help="few clients and one run: to see that it works, not for figures")
    add("--json", action="store_true", help="print the figures as JSON")
    _configure_rendezvous(what)
    tiered_arguments.configure(what)
    transport_arguments.configure(what)


def _configure_rendezvous(what: Any) -> None:
    rendezvous = what.add_parser(
        "rendezvous", help="how long nodes take to join, over parallel and etcd, beside torch's c10d rendezvous"
    )
    add = rendezvous.add_argument
    add("--nodes", metavar="N,N", help="how many (default 16,64,256,1024,4096)")
    add("--repeats", type=int, metavar="N", help="runs of each target (default 3)")
    add("--targets", metavar="A,B", help="some of parallel,etcd,torch (default all that are installed)")
    add("--server", default="agent", metavar="WHERE", help="parallel: part of the first node's process (agent, the "
        "default), or in another one (process), as with rdzv serve")  # fmt: skip
    add("--etcd-data", metavar="DIR", help="where etcd keeps its data while it is measured, which it writes to disk at "
        "each change (default: the system's directory for temporary files)")  # fmt: skip
    add("--ttl", type=float, default=10.0, metavar="SECONDS", help="of a session of parallel or etcd (default 10)")
    add("--limit", type=float, default=60.0, metavar="SECONDS", help="of one round; a target that needs longer is not "
        "asked for more nodes (default 60)")  # fmt: skip
    add("--quick", action="store_true", help="4 and 16 nodes and one run: to see that it works, not for figures")
    add("--json", action="store_true", help="print the figures as JSON")


def run(args: argparse.Namespace) -> int:
    """Run the benchmark asked for; returns the exit code."""
    if args.what == "launch":
        from launcher.bench.launch import run as run_launch

        return run_launch(repeats=args.repeats, as_json=args.json)
    if args.what == "rendezvous":
        return _run_rendezvous(args)
    if args.what == "tiered":
        return tiered_arguments.run(args)
    if args.what == "transport":
        return transport_arguments.run(args)
    return _run_store(args)


def _run_store(args: argparse.Namespace) -> int:
    from launcher.bench.store import Settings
    from launcher.bench.store import run as run_store
    from launcher.bench.store_cases import WORKLOADS
    from launcher.bench.store_targets import parse_target

    presets = _QUICK if args.quick else _DEFAULTS
    asked = {name: preset if getattr(args, name) is None else getattr(args, name) for name, preset in presets.items()}
    connections = tuple(positive("--connections", text) for text in asked.pop("connections").split(","))
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
    return run_store(settings, as_json=args.json)


def _run_rendezvous(args: argparse.Namespace) -> int:
    import tempfile

    from launcher.bench.rendezvous import SERVERS, TARGETS, Settings
    from launcher.bench.rendezvous import run as run_rendezvous

    nodes = args.nodes if args.nodes is not None else "4,16" if args.quick else "16,64,256,1024,4096"
    counts = tuple(dict.fromkeys(positive("--nodes", text) for text in nodes.split(",")))
    if min(counts) < _LEAST_NODES:
        raise UsageError(f"--nodes={min(counts)}: at least {_LEAST_NODES} nodes are needed, one of which is lost")
    targets = () if args.targets is None else tuple(dict.fromkeys(args.targets.split(",")))
    for target in targets:
        if target not in TARGETS:
            raise UsageError(f"--targets: '{target}' is none of {', '.join(TARGETS)}")
    etcd_data = os.path.abspath(args.etcd_data or tempfile.gettempdir())
    if not (os.path.isdir(etcd_data) and os.access(etcd_data, os.W_OK)):
        raise UsageError(f"--etcd-data={args.etcd_data}: not a directory that can be written to")
    if args.server not in SERVERS:
        raise UsageError(f"--server: '{args.server}' is none of {', '.join(SERVERS)}")
    for flag, seconds in (("--limit", args.limit), ("--ttl", args.ttl)):
        if not 1 <= seconds <= _MOST_SECONDS:
            raise UsageError(f"{flag}={seconds:g}: a number of seconds from 1 to {_MOST_SECONDS} is needed")
    repeats = args.repeats if args.repeats is not None else 1 if args.quick else 3
    settings = Settings(
        nodes=counts,
        targets=targets,
        server=args.server,
        etcd_data=etcd_data,
        repeats=positive("--repeats", repeats),
        ttl=args.ttl,
        limit_s=args.limit,
    )
    return run_rendezvous(settings, as_json=args.json)
