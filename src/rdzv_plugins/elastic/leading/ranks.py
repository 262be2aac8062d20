"""A round before it is formed: who gets which rank, and where the others can dial the first node."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from rdzv_plugins.elastic.keys import Assignment, Member
from rdzv_plugins.elastic.leading.blocks import lay_out
from rdzv_plugins.endpoints import is_loopback_address

Order = Callable[[Sequence[Member]], Sequence[str] | None]
"""Puts nodes into an order of ranks (a topology): returns their ids, first to last, or None for no opinion."""

Place = tuple[int | None, str, str]


def place_of(node: Member | Assignment) -> Place:
    """What identifies a node that comes back as the same one, even in another process."""
    return (node.node_rank, node.machine, node.host)


class Former:
    """The ranks of the previous round, to be given back to the nodes that return.

    ``domains``: how many nodes each domain had in it. ``starts``: the first rank of each.
    """

    def __init__(self, assignments: Mapping[str, Assignment], known: Former | None = None) -> None:
        """``known``: what is already known of that round; it takes precedence."""
        self._by_id: dict[str, int] = dict(known._by_id) if known is not None else {}
        by_place = known._by_place if known is not None else {}
        self._by_place: dict[Place, list[int]] = {place: list(ranks) for place, ranks in by_place.items()}
        self.domains: dict[str, int] = dict(known.domains) if known is not None else {}
        self.starts: dict[str, int] = dict(known.starts) if known is not None else {}
        for node_id, each in assignments.items():
            if node_id not in self._by_id:
                self._by_id[node_id] = each.rank
                self.domains[each.domain] = self.domains.get(each.domain, 0) + 1
                self.starts[each.domain] = min(each.rank, self.starts.get(each.domain, each.rank))
                self._by_place.setdefault(place_of(each), []).append(each.rank)
        for ranks in self._by_place.values():
            ranks.sort()

    def own(self, member: Member) -> int | None:
        """The rank that this very process had."""
        return self._by_id.get(member.node_id)

    def of_place(self, member: Member, free: set[int]) -> int | None:
        """A free rank that another process in the same place had."""
        return next((rank for rank in self._by_place.get(place_of(member), ()) if rank in free), None)


def assign_ranks(members: Sequence[Member], former: Former, order: Order) -> list[Member]:
    """Return ``members``, given in order of arrival, in the order of their ranks.

    A given node rank comes first; if one is beyond the size of the round, the given ones move down and keep their
    order. The nodes of a domain are side by side in the remaining ranks. Within a domain, the old rank of a returning
    node comes first, then the order that ``order`` knows, then that of a scheduler, then arrival, with the node that
    serves the endpoint first.
    """
    world = len(members)
    places: dict[int, Member] = {}
    above = world
    given = ((member.firm_rank, member) for member in members if member.firm_rank is not None)
    for rank, member in sorted(given, key=_rank, reverse=True):
        above = min(rank, above - 1)
        places[above] = member
    rest = [member for member in members if member.firm_rank is None]
    free = [rank for rank in range(world) if rank not in places]
    wishes = _wishes(rest, former, set(free), order)
    for block, ranks in _blocks(rest, former, places, free, wishes):
        places |= _within(block, former, ranks, wishes)
    return [places[rank] for rank in range(world)]


def _rank(given: tuple[int, Member]) -> int:
    return given[0]


Wish = tuple[int, int, int]
"""The lowest comes first: by the topology that a plug-in knows, then by the scheduler, then by arrival."""


def _wishes(members: Sequence[Member], former: Former, free: set[int], order: Order) -> dict[str, Wish]:
    """The wish of each of ``members`` for a rank that nobody returns to."""
    by_arrival = sorted(members, key=lambda member: not member.serves)  # sorting is stable
    _, left = _returning(members, former, free)
    ids = {member.node_id for member in left}
    unplaced = [member for member in by_arrival if member.node_id in ids and member.node_rank is None]
    wanted = (order(unplaced) or ()) if len(unplaced) > 1 else ()
    positions = {node_id: position for position, node_id in enumerate(wanted)}
    none = len(members)
    return {
        member.node_id: (
            positions.get(member.node_id, none),
            none if member.node_rank is None else member.node_rank,
            arrival,
        )
        for arrival, member in enumerate(by_arrival)
    }


def _returning(members: Sequence[Member], former: Former, free: set[int]) -> tuple[dict[int, Member], list[Member]]:
    """The nodes that get back an old rank of theirs that is free, and the others. Takes those ranks out of ``free``."""
    places: dict[int, Member] = {}

    def take(rank: int | None, member: Member) -> bool:
        if rank is None or rank not in free:
            return False
        free.discard(rank)
        places[rank] = member
        return True

    # by id before by place: a node that has stayed is not pushed aside by one that comes to the same machine
    left = [member for member in members if not take(former.own(member), member)]
    return places, [member for member in left if not take(former.of_place(member, free), member)]


def _within(
    members: Sequence[Member], former: Former, ranks: Sequence[int], wishes: Mapping[str, Wish]
) -> dict[int, Member]:
    """Distribute these ranks among the nodes that share them."""
    free = set(ranks)
    places, left = _returning(members, former, free)
    left.sort(key=lambda member: wishes[member.node_id])
    return places | dict(zip(sorted(free), left, strict=True))


def _blocks(
    members: Sequence[Member],
    former: Former,
    given: Mapping[int, Member],
    free: Sequence[int],
    wishes: Mapping[str, Wish],
) -> Iterator[tuple[list[Member], Sequence[int]]]:
    """The nodes of each domain, with their ranks; ``given``: nodes that have a rank already."""
    domains: dict[str, list[Member]] = {}
    for member in members:
        domains.setdefault(member.domain, []).append(member)
    if len(domains) == 1:
        yield domains.popitem()[1], free
        return
    starts = former.starts | {given[rank].domain: rank for rank in sorted(given, reverse=True)}
    coming = [name for name in domains if name not in starts]
    coming.sort(key=lambda name: min(wishes[member.node_id] for member in domains[name]))
    ranks = lay_out({name: len(nodes) for name, nodes in domains.items()}, starts, coming, free)
    for name, nodes in domains.items():
        yield nodes, ranks[name]


def plan(round_: int, chosen: list[Member], former: Former, order: Order) -> dict[str, Assignment]:
    """The places of the chosen nodes in round ``round_``, in the order of ranks; nobody serves the store yet."""
    return {
        member.node_id: member.place_in(round_, rank, len(chosen))
        for rank, member in enumerate(assign_ranks(chosen, former, order))
    }


def other_address(first: Member, chosen: list[Member], members: Collection[Member]) -> str:
    """Where others can dial ``first`` if it knows only its own loopback address and they are elsewhere; else ""."""
    if not is_loopback_address(first.address):
        return ""
    # each may have reached a service on its own machine, such as an etcd member beside every node
    one_machine = all(each.machine == first.machine for each in chosen)
    if one_machine and all(is_loopback_address(address) for address in {each.address for each in chosen}):
        return ""
    # it has reached the endpoint by loopback: where others have dialled an agent of its machine, they can reach it, too
    served_there = any(each.serves and each.machine == first.machine for each in members)
    dialled = (each.dialled for each in chosen if served_there and not is_loopback_address(each.dialled))
    return next(dialled, first.public)
