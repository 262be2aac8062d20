"""The table of a round, logged once by rank 0: which node is which."""

from __future__ import annotations

import logging

from rdzv_plugins.coordination import Session
from rdzv_plugins.elastic import keys
from rdzv_plugins.elastic.insisting import patience
from rdzv_plugins.elastic.keys import Assignment, readable
from rdzv_plugins.errors import ConnectionLost

logger = logging.getLogger(__name__)

_ROWS = 64
_ANSWER_S = 2.0
"""The workers of this node wait for it."""


def log_rank_table(session: Session, place: Assignment) -> None:
    """One request, on one node, once a round. Larger tables are cut: the log is for people.

    The round is complete whether or not the service answers now.
    """
    if place.world == 1 or not logger.isEnabledFor(logging.INFO):
        return
    try:
        held, _ = session.list(keys.NODES, timeout=min(_ANSWER_S, patience(session)))
    except (ConnectionLost, TimeoutError) as error:
        logger.info("round %d, %d nodes (who they are cannot be asked now: %s)", place.round, place.world, error)
        return
    nodes = sorted(readable(Assignment, held), key=lambda each: each.rank)
    rows = [
        f"  {each.rank:>4}  {each.host} (pid {each.pid})  {each.address}"
        + (f"  {each.nproc} worker(s)" if each.nproc else "")
        for each in nodes
        if each.round == place.round
    ]
    more = [f"  ... and {len(rows) - _ROWS} more"] if len(rows) > _ROWS else []
    logger.info("round %d, %d nodes:\n%s", place.round, place.world, "\n".join([*rows[:_ROWS], *more]))
