"""A round before it is one: who is chosen, who gets which rank, and where the others can dial the first."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from rdzv_plugins.elastic.keys import Assignment, Member
from rdzv_plugins.endpoints import is_loopback_address

Order = Callable[[Sequence[Member]], Sequence[str] | None]
"""Puts nodes into an order of ranks (a topology): their ids, first to last; None: has no opinion."""

Place = tuple[int | None, str, str]


def place_of(node: Member | Assignment) -> Place:
    """What identifies a node that comes back as the same one, though in another process."""
    return (node.node_rank, node.machine, node.host)


class Former:
    """The ranks of the round before, to be given back to the nodes that return."""

    def __init__(self, assignments: Mapping[str, Assignment], known: Former | None = None) -> None:
        """``known`` of that round already, which counts."""
        self._by_id: dict[str, int] = dict(known._by_id) if known is not None else {}
        by_place = known._by_place if known is not None else {}
        self._by_place: dict[Place, list[int]] = {place: list(ranks) for place, ranks in by_place.items()}
        for node_id, each in assignments.items():
            if node_id not in self._by_id:
                self._by_id[node_id] = each.rank
                self._by_place.setdefault(place_of(each), []).append(each.rank)
        for ranks in self._by_place.values():
            ranks.sort()

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


def choose(waiting: Iterable[Member], former: Former, most: int) -> list[Member]:
    """Choose at most ``most`` of those that wait, given in the order of arrival, and one for each given rank.

    Those of the round before come first: a spare does not push out who was there.
    """
    chosen: list[Member] = []
    claimed: set[int] = set()
    for member in sorted(waiting, key=lambda each: former.own(each) is None):  # stable
        if member.node_rank is None or member.node_rank not in claimed:
            chosen.append(member)
            claimed |= {member.node_rank} if member.node_rank is not None else set()
    return chosen[:most]


def plan(round_: int, chosen: list[Member], former: Former, order: Order) -> dict[str, Assignment]:
    """The places of the chosen nodes in round ``round_``, in the order of ranks; nobody serves the store yet."""
    return {
        member.node_id: Assignment(
            round=round_,
            rank=rank,
            world=len(chosen),
            node_id=member.node_id,
            host=member.host,
            machine=member.machine,
            pid=member.pid,
            address=member.address,
            nproc=member.nproc,
            node_rank=member.node_rank,
        )
        for rank, member in enumerate(assign_ranks(chosen, former, order))
    }


def other_address(first: Member, chosen: list[Member], members: Collection[Member]) -> str:
    """Where others can dial ``first``, if it knows only a loopback address of its own and they are elsewhere; or ""."""
    if not is_loopback_address(first.address):
        return ""
    # each may have reached a service on its own machine: an etcd member beside every node
    one_machine = all(each.machine == first.machine for each in chosen)
    if one_machine and all(map(is_loopback_address, {each.address for each in chosen})):
        return ""
    # it has reached the endpoint by loopback: where others have dialled an agent of its machine, they reach it too
    served_there = any(each.serves and each.machine == first.machine for each in members)
    dialled = (each.dialled for each in chosen if served_there and not is_loopback_address(each.dialled))
    return next(dialled, first.public)
