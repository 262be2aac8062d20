"""Nodes that the job goes on without for a while: which, why, and until when.

A node that cannot take part costs the others time in every round that is formed with it. So it is left out, and let in
again after a pause that doubles each time (a node is known by its place, so a new process there counts as the same
node). A node that has stayed in a round for a while starts afresh.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from rdzv_plugins.elastic.keys import Member
from rdzv_plugins.elastic.leading.ranks import Place, place_of

_FIRST_PAUSE_S = 2.0
_LONGEST_PAUSE_S = 300.0
SETTLED_S = 30.0
"""A node that has stayed in rounds for this long has shown that it can: what was before is forgotten."""


class LeftOut:
    """The nodes that the job goes on without for a while. No clock, no sockets; not thread-safe.

    Times are the leader's own monotonic seconds.
    """

    def __init__(self) -> None:
        self._records: dict[Place, tuple[int, float]] = {}
        """How often a place has spoilt a round, and until when it has to wait."""
        self._until: dict[str, float] = {}
        self._after: dict[str, int] = {}  # the round that a late node has to leave behind first
        self._entered: dict[str, float] = {}

    def __contains__(self, node: str) -> bool:
        return node in self._until

    def __len__(self) -> int:
        return len(self._until)

    def entered(self, nodes: Iterable[str], now: float) -> None:
        """Note the nodes of a round that is complete; no others are in it."""
        self._entered = {node: self._entered.get(node, now) for node in nodes}

    def failed(self, member: Member, now: float, *, lives: bool = False) -> None:
        """Note who spoilt a round. The first time costs it nothing unless it lives: any node can be lost once."""
        place = place_of(member)
        settled = now - self._entered.pop(member.node_id, now) >= SETTLED_S
        times = 0 if settled else self._records.get(place, (0, now))[0]
        self._records[place] = times + 1, now + _pause(times + int(lives))

    def add(self, member: Member, *, silent_after: int | None = None) -> None:
        """Leave the member out for as long as its place has to wait.

        A node that was silent has to say something first, and to have left round ``silent_after`` behind.
        """
        self._until[member.node_id] = self._wait_of(member)
        if silent_after is not None:
            self._until[member.node_id] = math.inf
            self._after[member.node_id] = silent_after

    def is_due_later(self, member: Member, now: float) -> bool:
        """Whether its place has to wait: a node that comes now is too early."""
        return self._wait_of(member) > now

    def heard(self, member: Member, now: float) -> None:
        """Note that a member has said something: one that was late may have come."""
        after = self._after.get(member.node_id)
        if after is not None and member.after >= after:
            del self._after[member.node_id]
            self._until[member.node_id] = max(now, self._wait_of(member))

    def remove(self, node: str) -> None:
        """Forget a node that is lost or has been let in again."""
        self._until.pop(node, None)
        self._after.pop(node, None)

    def due(self, now: float) -> list[str]:
        """The nodes that may come back in."""
        return [node for node, until in self._until.items() if now >= until]

    def deadline(self) -> float | None:
        """When the next one is due; None while there is none."""
        return min((until for until in self._until.values() if until < math.inf), default=None)

    def _wait_of(self, member: Member) -> float:
        return self._records.get(place_of(member), (0, -math.inf))[1]


def _pause(times: int) -> float:
    return min(_FIRST_PAUSE_S * 2.0 ** (times - 1), _LONGEST_PAUSE_S) if times else 0.0
