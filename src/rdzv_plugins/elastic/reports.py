"""What people are told about rounds: whom a node waits for, and once it is complete, which node has which rank.

Waiting is one live line on a terminal, or a line every ten seconds in a log.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable

from rdzv_plugins.coordination import Session
from rdzv_plugins.elastic import keys
from rdzv_plugins.elastic.insisting import patience
from rdzv_plugins.elastic.keys import Assignment, readable
from rdzv_plugins.elastic.leading.placement import in_words
from rdzv_plugins.elastic.view import View
from rdzv_plugins.endpoints import is_only_local
from rdzv_plugins.errors import ConnectionLost
from rdzv_plugins.interfaces import Request
from rdzv_plugins.plain_text import printable, some
from rdzv_plugins.rounds.settings_check import wanted
from rdzv_plugins.runtime import Runtime
from rdzv_plugins.timing import EVERY_S

logger = logging.getLogger(__name__)


_NEW_KIND_S = 1.0
_LIVE_AFTER_S = 1.0
_LIVE_EVERY_S = 0.5
_WIDTH = 160


class Reports:
    """Reports for one wait. Used by one thread; ``facts`` is called when something is to be reported."""

    def __init__(self, facts: Callable[[], str], *, live: bool, runtime: Runtime) -> None:
        self._facts, self._runtime = facts, runtime
        self._start = self._runtime.monotonic()
        self._live = live and sys.stderr is not None and sys.stderr.isatty()
        self._shown = 0
        self._kinds = {""}
        self._next = self._start + (_LIVE_AFTER_S if self._live else EVERY_S)

    @property
    def next_at(self) -> float:
        """When ``say`` next has something to do, in the monotonic clock's seconds."""
        return self._next

    def say(self, kind: str = "") -> None:
        """Report if it is time to. A new kind of waiting is also reported, once it has lasted for a second."""
        now = self._runtime.monotonic()
        if kind not in self._kinds:
            self._kinds.add(kind)
            self._next = min(self._next, now + _NEW_KIND_S)
        if now < self._next:
            return
        text = f"waiting: {self._facts()} ({now - self._start:.0f} s)"
        if not self._live:
            self._next = now + EVERY_S
            logger.info("%s", text)
            return
        self._next = now + _LIVE_EVERY_S
        text = printable(text)[:_WIDTH]
        self._write("\r" + text.ljust(self._shown))
        self._shown = len(text)

    def end(self) -> None:
        """Remove the live line from the screen."""
        if self._shown:
            self._write("\r" + " " * self._shown + "\r")
            self._shown = 0

    def _write(self, text: str) -> None:
        try:
            sys.stderr.write(text)
            sys.stderr.flush()
        except (OSError, ValueError):  # whoever was looking at it is gone
            self._live = False


def remedy_for_timeout(request: Request) -> str:
    """What to look at when not all nodes have come."""
    remedy = (
        "Look at the output of the missing nodes, or start them with the same --rdzv-endpoint, --rdzv-id and --nnodes. "
        "--rdzv-conf timeout=SECONDS waits longer."
    )
    if is_only_local(request.endpoint):
        remedy += (
            f" Nodes on other machines cannot reach {request.endpoint}: give an address of this one, on all nodes."
        )
    return remedy


def kind_of_waiting(view: View, round_: int) -> str:
    """How a node waits whose last round was ``round_``: ``left out``, ``spare`` or ``joined``; empty if it does not."""
    if view.assignment is not None and view.assignment.left_out:
        return "left out"
    if view.round.state == "complete" and view.round.number > round_:
        return "spare"
    return "joined" if view.progress else ""


def what_is_waited_for(view: View, request: Request, round_: int) -> str:
    """Who is there, as far as a node whose last round was ``round_`` has been told."""
    declared, where = view.round, f"run {request.run_id!r}{request.at_endpoint}"
    kind = kind_of_waiting(view, round_)
    if kind == "left out" and view.assignment is not None:
        return f"{where}: this node is left out for now: {view.assignment.left_out}"
    if kind == "spare":
        place = view.assignment
        why = f": {place.spare}" if place is not None and place.spare else ""
        works = f"round {declared.number} is complete with its {declared.world} nodes"
        return f"{where}: {works}; this node is a spare{why}"
    needed = wanted(request.min_nodes, request.max_nodes)
    return f"{where}: {view.progress or f'this node has joined, {needed} nodes are wanted'}"


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
