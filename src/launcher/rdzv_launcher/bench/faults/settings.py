"""The settings of ``rdzv bench faults``."""

from __future__ import annotations

from dataclasses import dataclass

from rdzv_launcher.bench.backends import reference_names
from rdzv_launcher.bench.jobs.settings import references
from rdzv_launcher.bench.method.settings import setting
from rdzv_plugins.errors import UsageError

FAULTS = ("worker", "agent", "frozen", "host", "place", "place-frozen")
ALL_FAULTS = (*FAULTS, "host-again")
_LEAST_NODES = 3
"""One node serves, one is lost, and there has to be one that is neither."""


@dataclass(frozen=True)
class FaultsSettings:
    """What happens to which jobs, and how often."""

    faults: tuple[str, ...] = setting(
        FAULTS, metavar="A,B", choices=ALL_FAULTS, help=f"some of {','.join(ALL_FAULTS)} (default {{default}})"
    )
    nodes: int = setting(
        _LEAST_NODES,
        metavar="N",
        minimum=1,
        help="agents of a job, all on this machine, of one worker each (default {default})",
    )
    references: str = references()
    preload: str = setting(
        "",
        metavar="MODULE",
        help="measure each backend also with rdzv-run --preload=MODULE, beside itself without (torch, for example)",
    )
    repeats: int = setting(3, quick=1, metavar="N", minimum=1, help="runs of each target (default {default})")
    ttl: int = setting(
        3,
        metavar="SECONDS",
        minimum=1,
        help="after which a silent node is lost, with backends that can tell and with torch's c10d (default {default})",
    )
    collective_timeout_s: float = setting(
        20.0,
        metavar="SECONDS",
        minimum=1,
        maximum=3600,
        help="gloo's, after which a worker gives a silent peer up by itself (default {default})",
    )
    limit_s: float = setting(
        60.0,
        metavar="SECONDS",
        minimum=1,
        maximum=3600,
        help="from the fault on; a job that needs longer, or ends, is a result too (default {default})",
    )

    def __post_init__(self) -> None:
        if self.nodes < _LEAST_NODES:
            raise UsageError(f"--nodes={self.nodes}: at least {_LEAST_NODES} are needed, so that two go on")
        reference_names(self.references)
