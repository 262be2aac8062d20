"""How static nodes agree on a round: the keys in the control store, and who writes which.

torch's static agents agree on nothing: each restarts by itself, into a store that still holds the old
round's keys. Here a round is a number that all nodes count up together::

    round              the newest round that any node has asked for
    over/<r>           round r is over: who was first to ask for r+1
    node/<r>/<rank>    node <rank> has arrived in round r: who it is (JSON)
    go/<r>             written by node rank 0 when all have arrived: the members and the workers'
                       store of round r; or by a failing node, instead: how the job ended

Every node writes its own arrival and waits for ``go``; node rank 0 waits for the arrivals. So a round
costs each node a constant number of requests, and nobody polls: waits are answered by the server.
A write carries its round in its key, so a late one changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import timedelta

from msgspec import to_builtins

from rdzv_plugins.backends.static.arrivals import Arrival, Go, parse_go
from rdzv_plugins.errors import StoreTimeout
from rdzv_plugins.store import Store


class Rounds:
    """The keys above, in a store that already has the run's prefix. As thread-safe as the store."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def latest(self) -> int:
        """The newest round asked for; 0 before the first."""
        return self.store.add("round", 0)

    def is_settled(self, round_: int) -> bool:
        """True once ``go`` of that round is written: then nobody can join it any more."""
        return self.store.check([f"go/{round_}"])

    def open(self, round_: int, by: str) -> int:
        """Ask for ``round_``, tell those still in the previous one ``by`` whom, and return the newest round."""
        newest = int(self.store.compare_set("round", str(round_ - 1), str(round_)))
        self.store.compare_set(f"over/{round_ - 1}", "", by)
        return newest

    def arrive(self, round_: int, rank: int, arrival: Arrival) -> Arrival | None:
        """Enter the round; returns an earlier entry of the same rank by another process, which is replaced."""
        key, text = f"node/{round_}/{rank}", json.dumps(to_builtins(arrival))
        held = json.loads(self.store.compare_set(key, "", text))
        if held["incarnation"] == arrival.incarnation:
            return None
        self.store.set(key, text)
        return Arrival(**held)

    def wait_arrivals(self, round_: int, nodes: int, timeout: float) -> list[Arrival] | None:
        """All arrivals in order of rank; None if some are missing after ``timeout`` seconds."""
        keys = [f"node/{round_}/{rank}" for rank in range(nodes)]
        try:
            self.store.wait(keys, timedelta(seconds=timeout))
        except StoreTimeout:
            return None
        return [Arrival(**json.loads(text)) for text in self.store.multi_get(keys)]

    def missing(self, round_: int, nodes: int) -> list[int]:
        """Ranks that have not arrived. One request per node: for use in messages and at the end only."""
        return [rank for rank in range(nodes) if not self.store.check([f"node/{round_}/{rank}"])]

    def arrived(self, round_: int, ranks: Iterable[int]) -> dict[int, Arrival]:
        """Who these ranks of a complete round are. For use in messages and at the end only."""
        each = list(ranks)
        texts = self.store.multi_get([f"node/{round_}/{rank}" for rank in each]) if each else []
        return {rank: Arrival(**json.loads(text)) for rank, text in zip(each, texts, strict=True)}

    def present(self, round_: int, nodes: int) -> dict[int, str]:
        """Incarnations of the ranks that have arrived. Makes requests for every node: for use at the end only."""
        there = set(range(nodes)) - set(self.missing(round_, nodes))
        return {rank: who.incarnation for rank, who in self.arrived(round_, sorted(there)).items()}

    def settle(self, round_: int, go: Go) -> Go:
        """Write ``go`` unless there is one; returns the one that holds."""
        return parse_go(self.store.compare_set(f"go/{round_}", "", json.dumps(to_builtins(go))))
