"""Two agents of one job on one machine: this is rarely intended, so it is reported unless the user has asked for it."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from rdzv_plugins.elastic.keys import Assignment

logger = logging.getLogger(__name__)


class Neighbours:
    """Warns once for each machine. Use from one thread at a time."""

    def __init__(self, *, allowed: bool) -> None:
        self._allowed = allowed
        self._told: set[str] = set()

    def check(self, assignments: Mapping[str, Assignment]) -> None:
        """Look at the nodes of a round that is being formed."""
        if self._allowed or len(assignments) < 2:
            return
        machines: dict[str, list[Assignment]] = {}
        for each in assignments.values():
            machines.setdefault(each.machine, []).append(each)
        for machine, nodes in machines.items():
            if len(nodes) > 1 and machine not in self._told and any(each.node_rank is None for each in nodes):
                self._told.add(machine)
                logger.warning(
                    "nodes %s are agents on the same machine (%s). If that is meant, say so: "
                    "--rdzv-conf allow_same_host=true, or give each its own --node-rank",
                    " and ".join(f"{each.rank} (pid {each.pid})" for each in nodes),
                    ", ".join(sorted({each.host for each in nodes})),
                )
