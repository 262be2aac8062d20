"""Does the job hang, and which worker is different? Judged from what its nodes say, which is checked. No I/O, no clock.

It hangs if all nodes of the round have answered and none of their workers has made progress for the time-out. A node
that says otherwise, or cannot tell, prevents this verdict: a needless restart is worse than a late one. Only a node
that has been silent, or has answered nonsense, for twice the time-out counts as standing still itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence, Set
from dataclasses import dataclass

from msgspec import Struct, to_builtins

from rdzv_launcher.run.hangs.standstill import Kind, Standing
from rdzv_launcher.run.stacks.reports import Group, Silent, WorkerReport, doing, grouped, headline
from rdzv_plugins.errors import JobHung
from rdzv_plugins.interfaces import Failure
from rdzv_plugins.plain_text import printable
from rdzv_plugins.questions import NodeAnswer, checked

_MOST_WORKERS = 4096
SUSPECTED = 0.5
"""After this part of the time-out a hang is suspected, and what can only be known from samples becomes known."""


class NodeStanding(Struct, frozen=True):
    """What one node says about its workers' progress, as JSON to the node that asks."""

    node_rank: int
    """The node's rank, as its agent knows it; -1 before its first round."""
    works: bool
    """Its workers are running, or have finished; False: it is starting or stopping them."""
    watches: bool
    """It was started with a time-out for hangs; otherwise it cannot tell."""
    workers: Sequence[tuple[int, Kind, float]] = ()
    """The global rank of each worker, and its ``Standing``: others may say anything."""

    @property
    def by_rank(self) -> dict[int, Standing]:
        """How the workers stand, by global rank."""
        return {
            rank: Standing(kind, seconds if math.isfinite(seconds) else 0.0)
            for rank, kind, seconds in self.workers[:_MOST_WORKERS]
        }


UNWATCHED = to_builtins(NodeStanding(-1, works=True, watches=False))
"""What a node says that does not watch for hangs."""


@dataclass(frozen=True)
class Verdict:
    """What follows from the answers."""

    hangs: bool
    in_s: float
    """In how many seconds it may be so, if nothing changes; infinite while somebody makes progress."""
    silent: tuple[NodeAnswer, ...] = ()
    """Nodes that count as standing still, because nothing arrives from them."""
    loops: frozenset[int] = frozenset()
    """The global ranks of workers that are in a loop of Python, without anything new."""
    unknown: str = ""
    """Why it cannot be known, in a sentence; empty if it can."""


class Judge:
    """One asker's view of the nodes of one round. For one thread at a time."""

    def __init__(self, timeout: float, nodes: int) -> None:
        """``timeout`` is in seconds; ``nodes`` is the number of nodes in the round."""
        self._timeout, self._nodes = timeout, nodes
        self._silent_since: dict[int, float] = {}

    def judge(self, answers: Sequence[NodeAnswer], now: float) -> Verdict:
        """What the nodes' newest answers mean; ``now``, in seconds, may count from any starting point."""
        found: dict[int, NodeAnswer] = {}
        for each in answers:
            if each.node_rank is not None and each.node_rank < self._nodes:
                found[each.node_rank] = each
        if len(found) < self._nodes:  # a node is lost, or the round is about to change
            return Verdict(False, math.inf)
        missing, silent, standings = 0.0, [], []
        for rank, each in found.items():
            standing, problem = _read(each, rank)
            if standing is not None:
                self._silent_since.pop(rank, None)
                standings.append(standing)
            elif problem:
                return Verdict(False, math.inf, unknown=f"node {rank} on {printable(each.host)} {problem}")
            else:
                since = self._silent_since.setdefault(rank, now)
                missing = max(missing, since + 2 * self._timeout - now)
                silent.append(each)
        if any(not each.works for each in standings):
            return Verdict(False, math.inf)
        workers = [worker for each in standings for worker in each.by_rank.values()]
        if any(worker.kind == "moves" for worker in workers) or not any(worker.is_still for worker in workers):
            return Verdict(False, math.inf)
        missing = max(missing, *(self._missing(worker) for worker in workers))
        loops = frozenset(rank for each in standings for rank, kind, _ in each.workers if kind == "loops")
        return Verdict(missing <= 0, max(0.0, missing), tuple(silent), loops)

    def _missing(self, worker: Standing) -> float:
        """How many seconds are missing until it has stood still for long enough."""
        if not worker.is_still:
            return 0.0
        return self._timeout * (1 - SUSPECTED if worker.kind in ("loops", "spins") else 1.0) - worker.seconds


def _read(answer: NodeAnswer, rank: int) -> tuple[NodeStanding | None, str]:
    """What a node says, or why it cannot tell; neither if nothing readable arrives from it."""
    if answer.problem:
        return None, "" if answer.is_silent else answer.problem
    try:
        standing = checked(answer.answer, NodeStanding)
    except ValueError:
        return None, ""
    if not standing.watches:
        return None, "was started without --hang-timeout"
    return (standing, "") if standing.node_rank == rank or not standing.works else (None, "")


_FIRST = ("stopped", "stuck", "running")
"""States that by themselves single out a worker."""


def find(
    workers: Sequence[WorkerReport],
    silent: Sequence[NodeAnswer],
    unread: Sequence[Silent],
    loops: Set[int],
    timeout: float,
) -> Failure:
    """The odd one of a job without progress for ``timeout`` seconds, in place of a worker that has failed.

    Its cause says in one sentence where all workers are. ``silent`` and ``loops`` are as in ``Verdict``; ``unread`` are
    the nodes whose stacks did not arrive. ``workers`` or ``silent`` is not empty.
    """
    groups = grouped(workers)
    text = headline(groups, unread)
    since = f"no worker of the job has made progress for {timeout:g} s"
    code = JobHung.exit_code
    if silent or not groups:
        node = silent[0]
        what = f"{'does not answer' if node.is_silent else 'answers nonsense'}, and {since}"
        rank = -1 if node.node_rank is None else node.node_rank
        return Failure(rank, node.host, -1, -1, node.pid, code, cause=text, hang=what)
    group = min(groups, key=lambda each: _oddness(each, loops))
    worker = group.workers[0]
    alone = Group(group.kind, (worker,))
    return Failure(
        -1 if worker.node_rank is None else worker.node_rank,
        worker.host,
        worker.rank,
        worker.local_rank,
        worker.process.pid,
        code,
        cause=text,
        hang=f"{doing(alone)}, and {since}",
    )


def _oddness(group: Group, loops: Set[int]) -> tuple[int, int, bool, int]:
    """A sort key, least for the odd one: state, then the smaller group, then one that does not wait for the others."""
    is_loop = not loops.isdisjoint(group.ranks)
    kind = "running" if is_loop else group.kind
    first = _FIRST.index(kind) if kind in _FIRST and (is_loop or kind != "running") else len(_FIRST)
    return first, len(group.workers), group.meets, group.ranks[0]
