"""The settings of ``rdzv bench tiered``."""

from __future__ import annotations

from dataclasses import dataclass

from rdzv_launcher.bench.method.settings import setting
from rdzv_launcher.bench.processes.closed import closed_setting
from rdzv_launcher.bench.processes.hosts import KINDS
from rdzv_launcher.bench.tiered.cases import ROUTES, Way
from rdzv_plugins.errors import UsageError

_MOST_RANKS = 18_000
"""The most connections that this process may have, with room for other files."""
_MOST_MESH_RANKS = 4_096
_CLOSED_ROUTE = "tiered"
"""The route on which only our own protocol crosses machines."""


@dataclass(frozen=True)
class TieredSettings:
    """Which ranks go which ways, and how often."""

    nodes: tuple[int, ...] = setting(
        (4, 16, 32, 128),
        quick=(8,),
        metavar="M,M",
        minimum=1,
        none=(),
        help="gloo's start on so many nodes, or none (default {default})",
    )
    per_node: int = setting(8, quick=4, metavar="N", minimum=1, help="ranks on each of these nodes (default {default})")
    routes: tuple[str, ...] = setting(ROUTES, metavar="A,B", choices=ROUTES, help="some of {default} (default all)")
    delay_ms: float = setting(
        2.0,
        metavar="MS",
        minimum=0,
        maximum=3_600_000,
        help="of a round trip between a node and the root: all is measured with it and without (default {default}; "
        "0: only without)",
    )
    many: tuple[int, int] | None = setting(
        (1024, 16),
        quick=(8, 8),
        metavar="MxN",
        minimum=1,
        none=None,
        help="NCCL's start and a barrier on M nodes, N ranks on each, or none (default 1024x16; more than 1000 nodes "
        "are on loopback)",
    )
    fanout: int = setting(
        32,
        quick=2,
        metavar="K",
        minimum=0,
        help="the same, and the tree, with a second tier: K proxies at the root (default {default}; 0: without)",
    )
    tree: tuple[int, int] | None = setting(
        (2048, 8),
        quick=(16, 4),
        metavar="MxN",
        minimum=1,
        none=None,
        help="connects and barriers over M simulated proxies, N ranks behind each, below the root and below K real "
        "proxies, or none (default 2048x8)",
    )
    workers: tuple[int, int] | None = setting(
        (2, 4),
        quick=None,
        metavar="MxN",
        minimum=1,
        none=None,
        help="real workers of torch on M nodes, N on each, or none (default 2x4)",
    )
    closed: tuple[str, ...] = closed_setting("gloo's start by tiered, without the delay,")
    hosts: str = setting(
        "auto",
        metavar="HOW",
        choices=KINDS,
        help="the nodes are network namespaces, which needs root and ip, or on loopback: namespaces, loopback, auto "
        "(default auto: namespaces where that is allowed)",
    )
    repeats: int = setting(3, quick=1, metavar="N", minimum=1, help="runs of each way (default {default})")
    limit_s: float = setting(
        180.0,
        metavar="SECONDS",
        minimum=1,
        maximum=3600,
        help="of one phase of a run (default {default})",
    )

    def __post_init__(self) -> None:
        if self.closed and _CLOSED_ROUTE not in self.routes:
            raise UsageError(f"--closed is about the route {_CLOSED_ROUTE}", remedy="Add it to --routes.")
        if self.nodes and max(self.nodes) * self.per_node > _MOST_MESH_RANKS:
            raise UsageError(
                f"--nodes={max(self.nodes)} with --per-node={self.per_node}: at most {_MOST_MESH_RANKS} ranks"
            )
        if self.tree is not None and self.tree[0] > _MOST_RANKS:
            raise UsageError(f"--tree={self.tree[0]}x{self.tree[1]}: at most {_MOST_RANKS} proxies")
        if self.tree is not None and self.fanout >= self.tree[0]:
            raise UsageError(f"--fanout={self.fanout}: fewer than the {self.tree[0]} proxies are needed")
        if self.many is None:
            return
        nodes, each = self.many
        if nodes * each > _MOST_RANKS:
            raise UsageError(f"--many={nodes}x{each}: at most {_MOST_RANKS} ranks")
        if self.fanout >= nodes:
            raise UsageError(f"--fanout={self.fanout}: fewer than the {nodes} nodes are needed")

    def ways(self) -> list[Way]:
        """The ways of gloo's start, those without a delay first. An echo has none: it asks nobody."""
        delays = [0.0, self.delay_ms / 1000] if self.delay_ms else [0.0]
        ways = [Way(route, delay) for delay in delays for route in self.routes if not (delay and route == "echo")]
        return [*ways, *(Way(_CLOSED_ROUTE, closed=way) for way in self.closed)]

    def ways_of_many(self) -> list[Way]:
        """The ways of NCCL's start: without a delay, and with a second tier."""
        more = [Way("tiered", fanout=self.fanout)] if self.fanout and "tiered" in self.routes else []
        return [*(Way(route) for route in self.routes if route != "echo"), *more]
