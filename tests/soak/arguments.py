"""The command line of ``make soak``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from soak.schedule import KINDS, MEMBER_KINDS, NODE_KINDS, SERVER_KINDS

_DESCRIPTION = """Runs an elastic job, does things to it at random, and checks what must hold all the same. One line of
JSON at the end, progress on stderr. Exit code 0: nothing was violated; 1: something was; 130: interrupted."""


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Raises ``SystemExit`` for what cannot be run."""
    parser = argparse.ArgumentParser(prog="make soak", description=_DESCRIPTION)
    parser.add_argument("--backend", choices=("parallel", "tiered", "etcd"), default="parallel")
    parser.add_argument(
        "--serving-node", action="store_true", help="the first node serves the endpoint, and not `rdzv serve` elsewhere"
    )
    parser.add_argument(
        "--places", type=int, default=0, help="the endpoint names so many of the first nodes: whichever lives serves it"
    )
    parser.add_argument("--token", action="store_true", help="nodes and service prove a token of the job")
    parser.add_argument("--tls", action="store_true", help="nodes and service have certificates, and speak TLS")
    parser.add_argument("--seed", type=int, default=1, help="the same seed does the same faults (1)")
    parser.add_argument("--minutes", type=float, default=10, help="no burst of faults begins after that (10)")
    parser.add_argument("--bursts", type=int, default=0, help="at most so many bursts of faults; 0: any number")
    parser.add_argument("--nodes", type=int, default=4, help="hosts with an agent; the job's maximum (4)")
    parser.add_argument("--min-nodes", type=int, default=2, help="the job's minimum (2)")
    parser.add_argument("--nproc", type=int, default=1, help="workers of each node (1)")
    parser.add_argument("--torch", action="store_true", help="workers train over gloo; else they have no torch")
    parser.add_argument("--ttl", type=float, default=5, help="seconds (5)")
    parser.add_argument("--reach-timeout", type=float, default=15, help="as the job has it, in seconds (15)")
    parser.add_argument(
        "--outage",
        type=float,
        default=60,
        help="so many seconds the job goes on without its service; 0: only the time to live (60)",
    )
    parser.add_argument("--conf", default="", help="more of --rdzv-conf, for example worker_ports=29501-29510")
    parser.add_argument("--faults", default="", help=f"only these kinds, of {', '.join(KINDS)}")
    parser.add_argument("--without", default="", help="all but these kinds")
    parser.add_argument(
        "--slow-starts", type=float, default=0.15, help="how often the workers of a node take 1 to 6 s to start (0.15)"
    )
    parser.add_argument(
        "--slack", type=float, default=1.5, help="times to come back are this many times as long as they need be (1.5)"
    )
    parser.add_argument(
        "--out", default="", help="the folder for all that is kept (a new one in the temporary directory)"
    )
    parser.add_argument("--show", action="store_true", help="only say what the first bursts are (--bursts, else 20)")
    arguments = parser.parse_args(argv)
    if arguments.serving_node and arguments.backend == "etcd":
        parser.error("no node serves etcd")
    if arguments.places and (arguments.serving_node or arguments.backend == "etcd"):
        parser.error("--places goes neither with --serving-node nor with etcd")
    if arguments.places == 1 or arguments.places > arguments.nodes:
        parser.error("--places is from 2 to --nodes")
    if arguments.backend == "etcd" and (arguments.token or arguments.tls):
        parser.error("--token and --tls are for what a node or `rdzv serve` serves")
    if not 1 <= arguments.min_nodes <= arguments.nodes:
        parser.error("--min-nodes is from 1 to --nodes")
    arguments.kinds = _kinds(parser, arguments)
    return arguments


def _kinds(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> tuple[str, ...]:
    if arguments.backend == "etcd":
        possible = [*NODE_KINDS, *MEMBER_KINDS]
    else:
        possible = [*NODE_KINDS, *(() if arguments.serving_node or arguments.places else SERVER_KINDS)]
    only = [kind for kind in arguments.faults.split(",") if kind]
    without = [kind for kind in arguments.without.split(",") if kind]
    for kind in (*only, *without):
        if kind not in KINDS:
            parser.error(f"there is no fault {kind!r}: it is one of {', '.join(KINDS)}")
    if arguments.torch:  # gloo connects every rank with every other
        possible.remove("blind")
    kinds = tuple(kind for kind in possible if (not only or kind in only) and kind not in without)
    if not kinds:
        parser.error("none of these faults is possible here")
    return kinds
