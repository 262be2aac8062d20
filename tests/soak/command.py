"""The command line of ``make soak``, what it puts together, and its end: the line of JSON and the exit code."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import time
import uuid
from collections.abc import Sequence
from contextlib import ExitStack, closing
from itertools import islice
from pathlib import Path

from kits.etcd.etcd_kit import etcd
from kits.etcd.etcd_processes import Member
from kits.hosts.hosts import Host, Lan, why_not
from kits.wire.tls_kit import Issued

from soak.job import BIN, Job, Node, Server
from soak.schedule import KINDS, faults
from soak.soak import Soak

_DESCRIPTION = """Runs an elastic job, does things to it at random, and checks what must hold all the same. One line of
JSON at the end, progress on stderr. Exit code 0: nothing was violated; 1: something was; 130: interrupted."""
_PORT = 29500


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Raises ``SystemExit`` for what cannot be run."""
    parser = argparse.ArgumentParser(prog="make soak", description=_DESCRIPTION)
    add = parser.add_argument
    add("--backend", choices=("parallel", "tiered", "etcd"), default="parallel")
    add("--places", type=int, default=0, help="so many of the first nodes are endpoints, and no `rdzv serve`")
    add("--token", action="store_true", help="nodes and service prove a token of the job")
    add("--tls", action="store_true", help="nodes and service have certificates, and speak TLS")
    add("--seed", type=int, default=1, help="the same seed does the same faults (1)")
    add("--minutes", type=float, default=10, help="no fault happens after that (10)")
    add("--count", type=int, default=None, help="at most so many faults")
    add("--nodes", type=int, default=4, help="hosts with an agent; the job's maximum (4)")
    add("--min-nodes", type=int, default=2, help="the job's minimum (2)")
    add("--ttl", type=float, default=5, help="seconds (5)")
    add("--conf", default="", help="more of --rdzv-conf, for example worker_ports=29501-29510")
    add("--faults", default="", help=f"only these kinds, of {', '.join(KINDS)}")
    add("--slack", type=float, default=1.5, help="times to come back are this many times as long as need be (1.5)")
    add("--out", default="", help="the folder for all that is kept (a new one in the temporary directory)")
    args = parser.parse_args(argv)
    if args.backend == "etcd" and (args.places or args.token or args.tls):
        parser.error("--places, --token and --tls are for what a node or `rdzv serve` serves")
    if args.places == 1 or args.places > args.nodes:
        parser.error("--places is from 2 to --nodes")
    if args.places:  # a round goes on with more than half of the last one's nodes
        args.min_nodes = max(args.min_nodes, args.nodes // 2 + 1)
    if not 1 <= args.min_nodes < args.nodes:
        parser.error("--min-nodes is from 1 on, and some nodes may be lost")
    args.kinds = args.faults.split(",") if args.faults else list(KINDS)
    if wrong := [kind for kind in args.kinds if kind not in KINDS]:
        parser.error(f"there is no fault {wrong[0]!r}: it is one of {', '.join(KINDS)}")
    if args.places:
        args.kinds = [kind for kind in args.kinds if not kind.endswith("_service")]
    return args


def main(argv: Sequence[str]) -> int:
    """The whole command; returns its exit code."""
    args = parse(argv)
    directory = Path(args.out or tempfile.mkdtemp(prefix="rdzv-soak-"))
    for name in ("etc", "probe"):
        (directory / name).mkdir(parents=True)
    if reason := why_not(directory / "probe"):
        sys.exit(f"make soak: this machine cannot have hosts: {reason}")
    began = time.monotonic()
    with ExitStack() as ends:
        lan = ends.enter_context(closing(Lan(directory / "etc")))
        hosts = lan.add(*(f"node{number}" for number in range(args.nodes)))
        secrets, parts = _service(args, lan, hosts, directory, ends)
        endpoint = ",".join(str(part.endpoint) for part in parts.values())
        endpoint = endpoint or ",".join(f"{host.address}:{_PORT}" for host in hosts[: args.places])
        job = Job(directory, [Node(host) for host in hosts], _command(args, endpoint, secrets, directory))
        soak = Soak(directory, lan, job, parts, ttl=args.ttl, slack=args.slack, min_nodes=args.min_nodes)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: setattr(soak, "interrupted", True))
        plan = islice(faults(args.seed, args.ttl, args.kinds, [*job.nodes], [*parts]), args.count)
        with closing(soak):
            soak.run(plan, began + 60 * args.minutes)
            found = len(soak.diary.violations)
            soak.diary.note(f"{found} violation(s); everything is in {directory}")
    told = ("backend", "places", "token", "tls", "seed", "nodes", "min_nodes", "ttl", "conf")
    line = soak.diary.line(
        **{name: getattr(args, name) for name in told},
        minutes=round((time.monotonic() - began) / 60, 1),
        folder=str(directory),
        interrupted=soak.interrupted,
    )
    text = json.dumps(line)
    (directory / "result.json").write_text(text + "\n")
    print(text, flush=True)
    return 1 if found else 130 if soak.interrupted else 0


def _service(
    args: argparse.Namespace, lan: Lan, hosts: Sequence[Host], directory: Path, ends: ExitStack
) -> tuple[list[str], dict[str, Server | Member]]:
    """The token and the certificates of all, as ``--rdzv-conf`` names them; and what is apart from the nodes."""
    if args.backend == "etcd":
        cluster = ends.enter_context(etcd(directory, hosts=lan.add("etcd0", "etcd1", "etcd2")))
        return [], {member.name: member for member in cluster.members}
    apart = [] if args.places else lan.add("server")
    secrets = []
    if args.token:
        file = directory / "token"
        file.touch(0o600)
        file.write_text(f"{uuid.uuid4().hex}\n")
        secrets.append(f"token_file={file}")
    if args.tls:
        names = [name for host in (*hosts, *apart) for name in (host.name, host.address)]
        secrets.append(Issued(directory / "tls", hosts=("127.0.0.1", "localhost", *names)).conf)
    servers: dict[str, Server | Member] = {host.name: Server(host, directory, secrets) for host in apart}
    for server in servers.values():
        ends.callback(server.kill)
    return secrets, servers


def _command(args: argparse.Namespace, endpoint: str, secrets: Sequence[str], directory: Path) -> list[str]:
    # without a delay that grows with each fault: how soon a job is back is what is looked at
    conf = [*secrets, f"ttl={args.ttl:g}", "reach_timeout=15", "last_call_timeout=5", "restart_delay=0", args.conf]
    return [
        str(BIN / "rdzv-run"),
        f"--nnodes={args.min_nodes}:{args.nodes}",
        "--nproc-per-node=1",
        f"--rdzv-backend={args.backend}",
        f"--rdzv-endpoint={endpoint}",
        f"--rdzv-conf={','.join(filter(None, conf))}",
        "--max-restarts=1000000",
        "--rdzv-id=soak",
        f"--timeline={directory}/timeline",
    ]
