"""The arguments of ``rdzv bench rendezvous``."""

from __future__ import annotations

import argparse
import math
import os
from typing import Any

from launcher.bench.numbers import positive
from rdzv_plugins.errors import UsageError

_LEAST_NODES = 4
_LEAST_TTL_S, _MOST_SECONDS = 2, 3600
_MOST_DELAY_MS = 1000
_SERVERS = ("agent", "process")


def configure(what: Any) -> None:
    """Add the sub-command's parser."""
    from launcher.bench.backends import add_flags as add_backends
    from launcher.bench.output import add_flags

    rendezvous = what.add_parser(
        "rendezvous", help="how long nodes take to join, and again after a loss, over any backends, beside torch's own"
    )
    add = rendezvous.add_argument
    add_backends(rendezvous, "static,c10d,parallel,tiered,etcd")
    add("--nodes", metavar="N,N", help="how many (default 4,16,64)")
    add("--references", default="torch-c10d,torch-static", metavar="A,B", help="torch's own to measure beside, or none "
        "(default both)")  # fmt: skip
    add("--simulate", action="store_true", help="thousands of nodes: as threads of few processes; without it each node "
        "is a process")  # fmt: skip
    add("--processes", type=int, metavar="P", help="with --simulate: how many (default: one for each core)")
    add("--delay", type=float, default=0.0, metavar="MS", help="a relay holds up what goes between a node and the "
        "endpoint: a round trip takes so much longer (default 0)")  # fmt: skip
    add("--hosts", metavar="HOW", help="each process is a network namespace (namespaces; needs root and ip), or on "
        "loopback; auto: namespaces where that is allowed (default: auto with --simulate, else loopback)")  # fmt: skip
    add("--server", default="agent", metavar="WHERE", help="of parallel and tiered: part of the first node's process "
        "(agent, the default), or of another one (process), as with rdzv serve")  # fmt: skip
    add("--etcd-data", metavar="DIR", help="where etcd keeps its data while it is measured, which it writes to disk at "
        "each change (default: the system's directory for temporary files)")  # fmt: skip
    add("--ttl", type=float, default=10.0, metavar="SECONDS", help="of a session, where a backend has any (default 10)")
    add("--repeats", type=int, metavar="N", help="runs of each target, after one that does not count (default 3)")
    add("--limit", type=float, default=60.0, metavar="SECONDS", help="of one round; a target that needs longer is not "
        "asked for more nodes (default 60)")  # fmt: skip
    add("--quick", action="store_true", help="4 and 16 nodes and one run: to see that it works, not for figures")
    add_flags(rendezvous)


def run(args: argparse.Namespace) -> int:
    """Run the benchmark; returns the exit code. Raises ``UsageError``."""
    import tempfile

    from launcher.bench.rendezvous import measure
    from launcher.bench.rendezvous_run import Settings
    from launcher.bench.tiered_network import KINDS, may_have_namespaces

    nodes = args.nodes if args.nodes is not None else "4,16" if args.quick else "4,16,64"
    counts = tuple(dict.fromkeys(positive("--nodes", text) for text in nodes.split(",")))
    if min(counts) < _LEAST_NODES:
        raise UsageError(f"--nodes={min(counts)}: at least {_LEAST_NODES} nodes are needed, one of which is lost")
    if args.processes is not None and not args.simulate:
        raise UsageError("--processes is for --simulate: without it each node is a process")
    etcd_data = os.path.abspath(args.etcd_data or tempfile.gettempdir())
    if not (os.path.isdir(etcd_data) and os.access(etcd_data, os.W_OK)):
        raise UsageError(f"--etcd-data={args.etcd_data}: not a directory that can be written to")
    hosts = args.hosts if args.hosts is not None else "auto" if args.simulate else "loopback"
    for flag, text, known in (("--server", args.server, _SERVERS), ("--hosts", hosts, KINDS)):
        if text not in known:
            raise UsageError(f"{flag}: '{text}' is none of {', '.join(known)}")
    for flag, seconds, least in (("--limit", args.limit, 1), ("--ttl", args.ttl, _LEAST_TTL_S)):
        if not least <= seconds <= _MOST_SECONDS:
            raise UsageError(f"{flag}={seconds:g}: a number of seconds from {least} to {_MOST_SECONDS} is needed")
    if not (math.isfinite(args.delay) and 0 <= args.delay <= _MOST_DELAY_MS):
        raise UsageError(f"--delay={args.delay:g}: milliseconds from 0 to {_MOST_DELAY_MS} are needed")
    cores = len(os.sched_getaffinity(0))
    settings = Settings(
        nodes=counts,
        simulate=args.simulate,
        processes=positive("--processes", args.processes if args.processes is not None else cores),
        delay_ms=args.delay,
        hosts="namespaces" if may_have_namespaces(hosts) else "loopback",
        server=args.server,
        etcd_data=etcd_data,
        references=args.references,
        ttl=args.ttl,
        limit_s=args.limit,
        repeats=positive("--repeats", args.repeats if args.repeats is not None else 1 if args.quick else 3),
        quick=args.quick,
    )
    return measure(settings, args)
