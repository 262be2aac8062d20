"""Which worker of a hanging job is different, as far as stacks and states tell. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rdzv_launcher.run.hangs.standstill import Standing
from rdzv_launcher.run.stacks.grouping import Group, grouped
from rdzv_launcher.run.stacks.reports import WorkerReport
from rdzv_launcher.run.stacks.text import Silent, doing, headline
from rdzv_plugins.errors import JobHung
from rdzv_plugins.interfaces import Failure
from rdzv_plugins.questions import NodeAnswer

_FIRST = ("stopped", "stuck", "running")
"""States that by themselves single out a worker."""


@dataclass(frozen=True)
class Hang:
    """A job that hangs, and because of which worker."""

    failure: Failure
    """The worker that is different, in place of one that has failed."""
    headline: str
    """Where all the workers are, in one sentence."""


def find(
    workers: Sequence[WorkerReport],
    silent: Sequence[NodeAnswer],
    unread: Sequence[Silent],
    standings: Mapping[int, Standing],
    timeout: float,
) -> Hang:
    """The odd one of a job without progress for ``timeout`` seconds; ``workers`` or ``silent`` is not empty.

    ``silent`` are nodes that count as standing still; ``unread`` those whose stacks did not arrive. ``standings`` are
    by global rank.
    """
    groups = grouped(workers)
    text = headline(groups, unread)
    since = f"no worker of the job has made progress for {timeout:g} s"
    code = JobHung.exit_code
    if silent or not groups:
        node = silent[0]
        what = f"{'does not answer' if node.is_silent else 'answers nonsense'}, and {since}"
        rank = -1 if node.node_rank is None else node.node_rank
        return Hang(Failure(rank, node.host, -1, -1, node.pid, code, cause=text, hang=what), text)
    group = min(groups, key=lambda each: _oddness(each, standings))
    worker = group.workers[0]
    alone = Group(group.kind, (worker,))
    failure = Failure(
        -1 if worker.node_rank is None else worker.node_rank,
        worker.host,
        worker.rank,
        worker.local_rank,
        worker.process.pid,
        code,
        cause=text,
        hang=f"{doing(alone)}, and {since}",
    )
    return Hang(failure, text)


def _oddness(group: Group, standings: Mapping[int, Standing]) -> tuple[int, int, bool, int]:
    """A sort key, least for the odd one: state, then the smaller group, then one that does not wait for the others."""
    loops = any(standings.get(rank, Standing("waits")).kind == "loops" for rank in group.ranks)
    kind = "running" if loops else group.kind
    first = _FIRST.index(kind) if kind in _FIRST and (loops or kind != "running") else len(_FIRST)
    return first, len(group.workers), group.meets, group.ranks[0]
