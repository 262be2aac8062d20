"""The settings of ``rdzv bench launch``."""

from __future__ import annotations

from dataclasses import dataclass

from rdzv_launcher.bench.backends import reference_names
from rdzv_launcher.bench.jobs.settings import references
from rdzv_launcher.bench.method.settings import setting
from rdzv_plugins.errors import UsageError

CASES = ("one-node", "nodes", "preload")


@dataclass(frozen=True)
class LaunchSettings:
    """Which jobs are started, and how often."""

    cases: tuple[str, ...] = setting(
        CASES,
        metavar="A,B",
        choices=CASES,
        help="some of one-node (the launchers without a flag of a rendezvous), nodes (every backend) and preload (one "
        "node whose workers import torch, with --preload=torch and without) (default all)",
    )
    nodes: int = setting(2, metavar="N", minimum=1, help="agents of a job, all on this machine (default {default})")
    workers: int = setting(1, metavar="N", minimum=1, help="workers of each of these nodes (default {default})")
    full_node: int = setting(
        8,
        quick=4,
        metavar="N",
        minimum=2,
        help="workers of the larger node of the case preload; of the smaller one 2 (default {default})",
    )
    references: str = references()
    repeats: int = setting(
        5,
        quick=1,
        metavar="N",
        minimum=1,
        help="runs of each target (default {default}), after one that does not count",
    )
    collectives: int = setting(
        3,
        quick=1,
        metavar="N",
        minimum=0,
        help="further runs with workers that import torch, up to their first collective (default {default}; 0: none)",
    )
    limit_s: float = setting(
        120.0,
        metavar="SECONDS",
        minimum=1,
        maximum=3600,
        help="of one start, and of one end; beyond is a result too (default {default})",
    )
    warm_up: bool = setting(True, quick=False)
    """Whether one run goes first that does not count."""

    def __post_init__(self) -> None:
        if self.nodes < 2:
            raise UsageError(
                "--nodes=1: at least 2 are needed", remedy="One node is the case one-node: --cases=one-node"
            )
        reference_names(self.references)
