"""The arguments of ``rdzv bench tiered``."""

from __future__ import annotations

import argparse
from typing import Any

from launcher.bench import output
from launcher.bench.numbers import positive
from rdzv_plugins.errors import UsageError

_DEFAULTS: dict[str, Any] = {
    "nodes": "4,16,32,128",
    "per_node": 8,
    "many": "1024x16",
    "fanout": 32,
    "workers": "2x4",
    "repeats": 3,
}
_QUICK: dict[str, Any] = {"nodes": "8", "per_node": 4, "many": "8x8", "fanout": 2, "workers": "none", "repeats": 1}
_ROUTES = "direct,tiered,tiered-unix"
_MOST_RANKS = 18_000
"""Connections that this process may have, with room for other files."""
_MOST_MESH_RANKS = 4_096
_MOST_S = 3600


def configure(what: Any) -> None:
    """Add the sub-command's parser."""
    tiered = what.add_parser("tiered", help="what a job's start asks of the workers' store, with proxies and without")
    tiered.description = (
        "What the start of a job asks of the workers' store, through the proxies of its nodes and without them."
    )
    add = tiered.add_argument
    add("--nodes", metavar="M,M", help=f"gloo's start on so many nodes, or none (default {_DEFAULTS['nodes']})")
    add("--per-node", type=int, metavar="N", help=f"ranks on each of these nodes (default {_DEFAULTS['per_node']})")
    add("--routes", default=_ROUTES, metavar="A,B", help=f"some of {_ROUTES} (default all)")
    add("--delay", type=float, default=2.0, metavar="MS", help="of a round trip between a node and the root: all is "
        "measured with it and without (default 2; 0: only without)")  # fmt: skip
    add("--many", metavar="MxN", help="NCCL's start and a barrier on M nodes, N ranks on each, or none (default "
        f"{_DEFAULTS['many']}; more than 1000 nodes are on loopback)")  # fmt: skip
    add("--fanout", type=int, metavar="K", help="the same with a second tier: K proxies at the root (default "
        f"{_DEFAULTS['fanout']}; 0: without)")  # fmt: skip
    add("--workers", metavar="MxN", help="real workers of torch on M nodes, N on each, or none (default "
        f"{_DEFAULTS['workers']})")  # fmt: skip
    add("--hosts", default="auto", metavar="HOW", help="the nodes are network namespaces, which needs root and ip, or "
        "on loopback: namespaces, loopback, auto (default auto: namespaces where that is allowed)")  # fmt: skip
    add("--repeats", type=int, metavar="N", help=f"runs of each way (default {_DEFAULTS['repeats']})")
    add("--limit", type=float, default=180.0, metavar="SECONDS", help="of one phase of a run (default 180)")
    add("--quick", action="store_true", help="few nodes and one run: to see that it works, not for figures")
    output.add_flags(tiered)


def run(args: argparse.Namespace) -> int:
    """Run the benchmark; returns the exit code. Raises ``UsageError``."""
    from launcher.bench.tiered import Settings
    from launcher.bench.tiered import run as run_tiered
    from launcher.bench.tiered_cases import ROUTES
    from launcher.bench.tiered_network import KINDS

    presets = _QUICK if args.quick else _DEFAULTS
    asked = {name: preset if getattr(args, name) is None else getattr(args, name) for name, preset in presets.items()}
    nodes = () if asked["nodes"] == "none" else tuple(positive("--nodes", text) for text in asked["nodes"].split(","))
    per_node = positive("--per-node", asked["per_node"])
    if nodes and max(nodes) * per_node > _MOST_MESH_RANKS:
        raise UsageError(f"--nodes={max(nodes)} with --per-node={per_node}: at most {_MOST_MESH_RANKS} ranks")
    many, workers = (_pair(f"--{flag}", asked[flag]) for flag in ("many", "workers"))
    if many and many[0] * many[1] > _MOST_RANKS:
        raise UsageError(f"--many={asked['many']}: at most {_MOST_RANKS} ranks")
    routes = tuple(dict.fromkeys(args.routes.split(",")))
    for route in routes:
        if route not in ROUTES:
            raise UsageError(f"--routes: '{route}' is none of {', '.join(ROUTES)}")
    if args.hosts not in KINDS:
        raise UsageError(f"--hosts: '{args.hosts}' is none of {', '.join(KINDS)}")
    if not 0 <= args.delay <= 1000 * _MOST_S:
        raise UsageError(f"--delay={args.delay:g}: a number of milliseconds is needed")
    if not 1 <= args.limit <= _MOST_S:
        raise UsageError(f"--limit={args.limit:g}: a number of seconds from 1 to {_MOST_S} is needed")
    if many and not 0 <= asked["fanout"] < many[0]:
        raise UsageError(f"--fanout={asked['fanout']}: fewer than the {many[0]} nodes are needed")
    settings = Settings(
        nodes=tuple(dict.fromkeys(nodes)),
        per_node=per_node,
        routes=routes,
        delay_s=args.delay / 1000,
        many_nodes=many[0] if many else 0,
        many_per_node=many[1] if many else 0,
        fanout=asked["fanout"] if many else 0,
        workers=workers,
        hosts=args.hosts,
        repeats=positive("--repeats", asked["repeats"]),
        limit_s=args.limit,
    )
    return run_tiered(settings, as_json=args.json, out=args.out)


def _pair(flag: str, text: str) -> tuple[int, int] | None:
    """ "4x8" as two numbers; None for "none"."""
    if text == "none":
        return None
    nodes, _, each = text.partition("x")
    if not (nodes.isdecimal() and each.isdecimal()):
        raise UsageError(f"{flag}={text}: two whole numbers, as in 4x8, or none")
    return positive(flag, nodes), positive(flag, each)
