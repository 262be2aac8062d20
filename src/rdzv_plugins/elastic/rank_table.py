"""The table of a round, logged once by rank 0: which node is which."""

from __future__ import annotations

import logging

from rdzv_plugins.coordination import Session
from rdzv_plugins.elastic import keys
from rdzv_plugins.elastic.insisting import patience
from rdzv_plugins.elastic.keys import Assignment, decode

logger = logging.getLogger(__name__)

_ROWS = 64


def log_rank_table(session: Session, place: Assignment) -> None:
    """One request, on one node, once a round. Larger tables are cut: the log is for people."""
    if place.world == 1 or not logger.isEnabledFor(logging.INFO):
        return
    held, _ = session.list(keys.NODES, timeout=patience(session))
    nodes = sorted((decode(Assignment, kv.value) for kv in held), key=lambda each: each.rank)
    rows = [
        f"  {each.rank:>4}  {each.host} (pid {each.pid})  {each.address}"
        + (f"  {each.nproc} worker(s)" if each.nproc else "")
        for each in nodes
        if each.round == place.round
    ]
    more = [f"  ... and {len(rows) - _ROWS} more"] if len(rows) > _ROWS else []
    logger.info("round %d, %d nodes:\n%s", place.round, place.world, "\n".join([*rows[:_ROWS], *more]))
