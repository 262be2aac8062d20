"""Given node ranks, and what happens when two nodes claim the same one."""

from __future__ import annotations

from collections.abc import Iterator

from rdzv_plugins.elastic.keys import Member


class Claims:
    """Which living nodes were given which rank. A rank may be claimed twice for ``patience`` seconds.

    One of the two may be lost without that being known yet, for example when an agent was restarted at once.
    """

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._nodes: dict[int, list[str]] = {}
        self._until: dict[int, float] = {}

    def add(self, member: Member, now: float) -> None:
        """Take in the claim of a newcomer."""
        if member.node_rank is None:
            return
        nodes = self._nodes.setdefault(member.node_rank, [])
        nodes.append(member.node_id)
        if len(nodes) > 1:
            self._until.setdefault(member.node_rank, now + self._patience)

    def remove(self, member: Member) -> None:
        """Forget the claim of a member that has gone or was refused."""
        if member.node_rank is None:
            return
        nodes = self._nodes[member.node_rank]
        nodes.remove(member.node_id)
        if len(nodes) < 2:
            self._until.pop(member.node_rank, None)
        if not nodes:
            del self._nodes[member.node_rank]

    def doubled(self, rank: int | None) -> bool:
        """Whether two nodes claim that rank."""
        return rank in self._until

    def surplus(self) -> int:
        """How many nodes have to wait for another node of the same rank."""
        return sum(len(self._nodes[rank]) - 1 for rank in self._until)

    def twice(self) -> Iterator[list[str]]:
        """The nodes of each rank that is claimed twice, in order of arrival."""
        for rank in self._until:
            yield self._nodes[rank]

    def overdue(self, now: float) -> list[tuple[int, list[str]]]:
        """The ranks that have been claimed twice for too long, with their nodes."""
        return [(rank, list(self._nodes[rank])) for rank, until in self._until.items() if now >= until]

    def deadline(self) -> float | None:
        """When the next double claim is overdue; None while there is none."""
        return min(self._until.values(), default=None)

    def missing(self, count: int) -> list[int]:
        """Which of the ranks below ``count`` nobody claims; empty if no node was given a rank."""
        return [rank for rank in range(count) if rank not in self._nodes] if self._nodes else []
