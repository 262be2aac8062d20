"""The other nodes of a static job: which still work, and which are gone. Asked only at the end and after a failure."""

from __future__ import annotations

from collections.abc import Mapping

from rdzv_plugins.backends.static.arrivals import Arrival
from rdzv_plugins.backends.static.control import ControlStore
from rdzv_plugins.rounds import exit_barrier
from rdzv_plugins.rounds.job_record import JobRecord
from rdzv_plugins.rounds.presence import Presence, ask
from rdzv_plugins.store import Prefixed, Store

_ANSWER_S = 10.0
"""Seconds to wait: a living agent answers at once, or somewhat later if its machine is very busy."""

Nodes = Mapping[int, Arrival]
"""Nodes by rank."""


class Peers:
    """The other nodes of a static job. Use from one thread at a time.

    Every method asks the control store, and raises ``StoreLost`` once that is lost.
    """

    def __init__(self, control: ControlStore, prefix: str, record: JobRecord, me: str) -> None:
        prefix = f"{prefix}/presence"
        self._store = Prefixed(prefix, control.client)
        self._record = record
        self._presence = Presence(control.host, control.port, prefix, me)

    def close(self) -> None:
        """Stop answering for this agent."""
        self._presence.stop()

    def working(self, agents: Store, others: Nodes) -> list[str]:
        """The names of the nodes that live and are not done; ``agents`` is the agents' store of their round."""
        if agents.check([exit_barrier.LAST]):
            return []
        busy = {
            rank: who
            for rank, who in others.items()
            if not (self._record.has_left(who.incarnation) or agents.check([exit_barrier.node_key(rank)]))
        }
        alive = self._alive(busy)
        return [_name(rank, who) for rank, who in busy.items() if who.incarnation in alive]

    def lost(self, others: Nodes) -> list[str]:
        """The nodes that have gone without a word or were stopped, each with what is known about it."""
        going = {rank: self._record.going(who.incarnation) for rank, who in others.items()}
        lost = [f"{_name(rank, others[rank])} was stopped: {why}" for rank, why in going.items() if why is not None]
        quiet = {
            rank: who
            for rank, who in others.items()
            if going[rank] is None and not self._record.has_left(who.incarnation)
        }
        alive = self._alive(quiet)
        return lost + [
            f"{_name(rank, who)} was lost: its agent does not answer"
            for rank, who in quiet.items()
            if who.incarnation not in alive and not self._record.has_left(who.incarnation)
        ]

    def _alive(self, nodes: Nodes) -> set[str]:
        return ask(self._store, [who.incarnation for who in nodes.values()], _ANSWER_S)


def _name(rank: int, who: Arrival) -> str:
    return f"node rank {rank} on {who}"
