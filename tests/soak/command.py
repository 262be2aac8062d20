"""Putting a soak together from its arguments, and its end: the line of JSON and the exit code."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path

from kits.hosts.hosts import Lan, why_not

from soak import arguments, service
from soak.expectations import Promises
from soak.job import Job, Node
from soak.schedule import Terms, bursts
from soak.soak import Soak

_MEMBERS = ("etcd0", "etcd1", "etcd2")
_SOME = 20
_PORT = 29500


def main(argv: Sequence[str]) -> int:
    """The whole command; returns its exit code."""
    args = arguments.parse(argv)
    nodes = [f"node{number}" for number in range(args.nodes)]
    serving = nodes[0] if args.serving_node else ""
    members = _MEMBERS if args.backend == "etcd" else ()
    terms = Terms(
        nodes=nodes,
        # with several endpoints a round goes on with more than half of the last one's nodes
        min_nodes=max(args.min_nodes, args.nodes // 2 + 1) if args.places else args.min_nodes,
        ttl=args.ttl,
        reach=args.reach_timeout,
        outage=args.outage,
        kinds=args.kinds,
        slow_starts=args.slow_starts,
        members=members,
        serving=serving,
    )
    plan = bursts(args.seed, terms)
    if args.show:
        for burst in islice(plan, args.bursts or _SOME):
            print(f"{burst.number}: after {burst.pause} s: {burst}")
        return 0
    directory = Path(args.out or tempfile.mkdtemp(prefix="rdzv-soak-"))
    directory.mkdir(parents=True, exist_ok=True)
    for name in ("etc", "probe"):
        (directory / name).mkdir()
    if reason := why_not(directory / "probe"):
        sys.exit(f"make soak: this machine cannot have hosts: {reason}")
    lan = Lan(directory / "etc")
    began = time.monotonic()
    try:
        soak = _soak(args, directory, lan, nodes)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: setattr(soak, "interrupted", True))
        limited = islice(plan, args.bursts) if args.bursts else plan
        with closing(soak):
            soak.run(limited, nodes, began + 60 * args.minutes)
            found = len(soak.tally.violations)
            soak.note(f"{found} violation(s); everything is in {directory}")
    finally:
        lan.close()
    line = soak.tally.line(
        backend=args.backend,
        served_by=_served_by(args),
        token=args.token,
        tls=args.tls,
        seed=args.seed,
        minutes=round((time.monotonic() - began) / 60, 1),
        nnodes=f"{args.min_nodes}:{args.nodes}",
        ttl=args.ttl,
        torch=args.torch,
        conf=args.conf,
        folder=str(directory),
        rounds=soak.checker.worked,
        steps=soak.checker.steps,
        ended_by_nodes_cut_off=len(soak.checker.excused),
        interrupted=soak.interrupted,
    )
    text = json.dumps(line)
    (directory / "result.json").write_text(text + "\n")
    print(text, flush=True)
    return 1 if found else 130 if soak.interrupted else 0


def _served_by(args: argparse.Namespace) -> str:
    if args.backend == "etcd":
        return "etcd"
    if args.places:
        return f"one of {args.places} nodes"
    return "the first node" if args.serving_node else "rdzv serve"


def _soak(args: argparse.Namespace, directory: Path, lan: Lan, nodes: Sequence[str]) -> Soak:
    hosts = lan.add(*nodes)
    job = Job(directory, [Node(host) for host in hosts], torch=args.torch)
    apart = lan.add("server") if args.backend != "etcd" and not (args.serving_node or args.places) else []
    secrets = service.secrets([*hosts, *apart], directory, token=args.token, tls=args.tls)
    if args.backend == "etcd":
        where = service.Etcd(lan.add(*_MEMBERS), directory)
    elif apart:
        where = service.Serve(apart[0], directory, secrets)
    else:
        places = hosts[: args.places or 1]
        where = service.Service(",".join(f"{host.address}:{_PORT}" for host in places))
    conf = [*secrets, f"ttl={args.ttl:g}", f"reach_timeout={args.reach_timeout:g}", "last_call_timeout=5"]
    # without a delay that grows with each fault: how soon a job is back is what is looked at
    conf += ["restart_delay=0", *args.conf.split(",")]
    job.command = [
        "rdzv-run",
        f"--nnodes={args.min_nodes}:{args.nodes}",
        f"--nproc-per-node={args.nproc}",
        f"--rdzv-backend={args.backend}",
        f"--rdzv-endpoint={where.endpoint}",
        f"--rdzv-conf={','.join(filter(None, conf))}",
        "--max-restarts=1000000",
    ]
    serving = nodes[0] if args.serving_node else ""
    promises = Promises(
        ttl=args.ttl,
        reach_timeout=args.reach_timeout,
        outage=args.outage,
        slack=args.slack,
        torch=args.torch,
        serving=serving,
    )
    return Soak(directory, lan, job, where, promises, args.min_nodes)
