"""Who gets which rank: the same in every elastic backend."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from rdzv_plugins.elastic.keys import Assignment, Member

Order = Callable[[Sequence[Member]], Sequence[str] | None]
"""Puts nodes into an order of ranks (a topology): their ids, first to last; None: has no opinion."""

Place = tuple[int | None, str, str]


def place_of(node: Member | Assignment) -> Place:
    """What makes a node that comes back the same one, though its process is another."""
    return (node.node_rank, node.machine, node.host)


class Former:
    """The ranks of the round before, to be given back to the nodes that return."""

    def __init__(self, assignments: Mapping[str, Assignment]) -> None:
        self._by_id = {node_id: each.rank for node_id, each in assignments.items()}
        self._by_place: dict[Place, list[int]] = {}
        for each in sorted(assignments.values(), key=lambda a: a.rank):
            self._by_place.setdefault(place_of(each), []).append(each.rank)

    def own(self, member: Member) -> int | None:
        """The rank that this very process had."""
        return self._by_id.get(member.node_id)

    def of_place(self, member: Member, free: set[int]) -> int | None:
        """A free rank of another process in the same place."""
        return next((rank for rank in self._by_place.get(place_of(member), ()) if rank in free), None)


def assign_ranks(members: Sequence[Member], former: Former, order: Order) -> list[Member]:
    """``members``, in order of arrival, in the order of their ranks.

    A given node rank comes first; where one is beyond the size of the round, the given ones move down and keep
    their order. Then comes the old rank of a node that returns, then the order that ``order`` knows, then
    arrival, in which the node that serves the endpoint is first.
    """
    world = len(members)
    places: dict[int, Member] = {}
    free = set(range(world))

    def take(rank: int | None, member: Member) -> bool:
        if rank is None or rank not in free:
            return False
        free.discard(rank)
        places[rank] = member
        return True

    above = world
    for rank, member in sorted(((m.node_rank, m) for m in members if m.node_rank is not None), key=_rank, reverse=True):
        above = min(rank, above - 1)
        take(above, member)
    unplaced = [member for member in members if member.node_rank is None]
    # by id before by place: a node that has stayed is not pushed aside by one that comes to the same machine
    unplaced = [member for member in unplaced if not take(former.own(member), member)]
    unplaced = [member for member in unplaced if not take(former.of_place(member, free), member)]
    places |= dict(zip(sorted(free), _ordered(unplaced, order), strict=True))
    return [places[rank] for rank in range(world)]


def _rank(given: tuple[int, Member]) -> int:
    return given[0]


def _ordered(members: list[Member], order: Order) -> list[Member]:
    by_arrival = sorted(members, key=lambda member: not member.serves)  # stable
    if len(by_arrival) < 2:
        return by_arrival
    wanted = {node_id: position for position, node_id in enumerate(order(by_arrival) or ())}
    return sorted(by_arrival, key=lambda member: wanted.get(member.node_id, len(wanted)))
