"""Which node has which rank in a round, logged once by rank 0: a line, and with -v a table."""

from __future__ import annotations

import logging
import re

from rdzv_plugins.coordination import Session
from rdzv_plugins.elastic import keys
from rdzv_plugins.elastic.insisting import patience
from rdzv_plugins.elastic.keys import Assignment, readable
from rdzv_plugins.elastic.leading.choosing import in_words
from rdzv_plugins.errors import ConnectionLost
from rdzv_plugins.plain_text import some

logger = logging.getLogger(__name__)

_ROWS = 64
_RANK = re.compile(rb'"rank":(\d{1,9})[,}]')
"""Matches the rank in an assignment as ``keys.encode`` writes it."""
_ANSWER_S = 2.0
"""Seconds to wait for an answer; this node's workers are kept waiting meanwhile."""


def log_rank_table(session: Session, place: Assignment) -> None:
    """Log the table: one request, on one node, once a round. Larger tables are cut: the log is for people.

    The round is complete whether or not the service answers now.
    """
    if place.world == 1 or not logger.isEnabledFor(logging.INFO):
        return
    try:
        held, _ = session.list(keys.NODES, timeout=min(_ANSWER_S, patience(session)))
    except (ConnectionLost, TimeoutError) as error:
        logger.info("round %d, %d nodes (who they are cannot be asked now: %s)", place.round, place.world, error)
        return
    shown = (kv for kv in held if (found := _RANK.search(kv.value)) and int(found[1]) < _ROWS)  # there may be thousands
    every = [each for each in readable(Assignment, shown) if each.round == place.round and each.is_place]
    nodes = sorted(every, key=lambda each: each.rank)
    several = len({each.domain for each in nodes}) > 1
    rows = [
        f"  {each.rank:>4}  {each.host} (pid {each.pid})  {each.address}"
        + (f"  {each.nproc} worker(s)" if each.nproc else "")
        + (f"  {in_words(each.domain)}" if several else "")
        for each in nodes
    ]
    more = [f"  ... and {place.world - _ROWS} more"] if place.world > _ROWS else []
    hosts = some((f"{each.rank} {each.host}" for each in nodes), of=place.world)
    logger.info("round %d, %d nodes: %s", place.round, place.world, hosts)
    logger.debug("round %d:\n%s", place.round, "\n".join([*rows, *more]))
