"""The other nodes of a static job: which still work, and which are gone. Asked only at the end and after a failure.

Of all nodes that ask at the same time, one looks, and the others read what it has found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from rdzv_plugins.backends.static.arrivals import Arrival
from rdzv_plugins.backends.static.control import ControlStore
from rdzv_plugins.backends.static.presence import Presence, ask
from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.rounds import exit_barrier
from rdzv_plugins.rounds.ends import JobRecord
from rdzv_plugins.rounds.exit_barrier import looked_once
from rdzv_plugins.runtime import Runtime
from rdzv_plugins.store import Prefixed, Store

_ANSWER_S = 10.0
"""Seconds to wait: a living agent answers at once, or somewhat later if its machine is very busy."""
_LOOK_S = _ANSWER_S + 5
"""Seconds that the node that looks for all may take."""
_NAMED = 16
"""The most nodes that are named with host and pid."""

Nodes = Mapping[int, Arrival]
"""Nodes by rank."""
Who = Callable[[Iterable[int]], Nodes]
"""Returns who these ranks of the round are."""


class Peers:
    """The other nodes of a static job. Use from one thread at a time.

    Every method asks the control store, and raises ``StoreLost`` once that is lost.
    """

    def __init__(
        self,
        control: ControlStore,
        prefix: str,
        record: JobRecord,
        me: str,
        rank: int,
        on_lost: Callable[[Exception], None],
        runtime: Runtime,
    ) -> None:
        """``me`` is this agent, of node ``rank``. ``on_lost`` is that of ``Presence``."""
        prefix = f"{prefix}/presence"
        self._store = Prefixed(prefix, control.client)
        self._record, self._rank, self._runtime = record, rank, runtime
        self._seen: tuple[int, int] | None = None
        """A round, and the number of the newest look at who works in it that this node knows."""
        self._presence = Presence(self._store, Endpoint(control.host, control.port), prefix, me, on_lost, runtime)

    def close(self) -> None:
        """Stop answering for this agent."""
        self._presence.stop()

    def lives(self, agent: Arrival) -> bool:
        """Whether an agent answers, which may take some seconds."""
        return not self._record.has_left(agent.incarnation) and bool(self._alive({0: agent}))

    def working(self, agents: Store, round_: int, nodes: int, who: Who) -> list[str]:
        """The names of the nodes that live and are not done; ``agents`` is the agents' store of their round."""
        busy = exit_barrier.missing(agents, nodes)
        if not any(rank != self._rank for rank in busy):
            return []
        counter = f"working/{round_}"
        if self._seen is None or self._seen[0] != round_:
            self._seen = round_, self._store.add(counter, 0)
        before = self._seen[1]  # whoever is first to look again writes the next number
        number = int(self._store.compare_set(counter, str(before), str(before + 1)))
        self._seen = round_, number

        def look() -> list[int]:
            for key in (f"{counter}/{number - 2}", f"{counter}/{number - 2}/looks"):  # older than anybody waits
                self._store.delete_key(key)
            return self._alive(who(busy))

        alive = looked_once(self._store, f"{counter}/{number}", look, _LOOK_S)
        ranks = [rank for rank in alive if rank in busy and rank != self._rank]
        names = who(ranks[:_NAMED])
        return [_name(rank, names.get(rank)) for rank in ranks]

    def lost(self, round_: int, nodes: int, who: Who) -> list[str]:
        """The nodes that have gone without a word, each with what is known about it.

        Whoever asks first in a round looks for all: what goes later is not why its workers failed.
        """

        def silent() -> list[int]:
            all_ = who(range(nodes))
            alive = self._alive(all_)
            return [
                rank
                for rank, agent in all_.items()
                if rank not in alive and not self._record.has_left(agent.incarnation)
            ]

        ranks = [rank for rank in looked_once(self._store, f"lost/{round_}", silent, _LOOK_S) if rank != self._rank]
        names = who(ranks)
        return [f"{_name(rank, names.get(rank))} was lost: its agent does not answer" for rank in ranks]

    def _alive(self, nodes: Nodes) -> list[int]:
        alive = ask(self._store, [who.incarnation for who in nodes.values()], _ANSWER_S, self._runtime)
        return [rank for rank, who in nodes.items() if who.incarnation in alive]


def _name(rank: int, who: Arrival | None) -> str:
    return f"node rank {rank} on {who}" if who is not None else f"node rank {rank}"
