"""The settings of ``rdzv bench transport``."""

from __future__ import annotations

from dataclasses import dataclass

from rdzv_launcher.bench.method.settings import setting


@dataclass(frozen=True)
class TransportSettings:
    """How many workers, what they ask, and how often."""

    clients: tuple[int, ...] = setting(
        (1, 8), quick=(1, 2), metavar="N,N", minimum=1, help="workers at once (default {default})"
    )
    sizes: tuple[int, ...] = setting(
        (1024, 8192), quick=(1024,), metavar="N,N", minimum=1, help="bytes of a value (default {default})"
    )
    rounds: int = setting(
        400, quick=10, metavar="N", minimum=1, help="of requests of each worker in a run (default {default})"
    )
    repeats: int = setting(11, quick=1, metavar="N", minimum=1, help="runs of each transport (default {default})")
