"""A round before it is formed: which of the waiting nodes are in it, who gets which rank, and what may be in its way.

A round has a multiple of ``node_unit`` nodes, and of each domain none or at least ``min_per_domain``. It is the largest
that can be formed from the waiting nodes. Those that were in the last round come first, then those that replace a
missing node of their own domain, then those that arrived first.

The nodes of a domain get their ranks side by side, and where they were before if possible. Domains that were in the
last round keep their order. A new one fills the gap of one that has gone if it fits there; otherwise it comes after the
others.

No clock, no sockets. Choosing among n nodes in d domains takes O(n + d²) steps at most, and O(n) if domains have no
minimum; their ranks take O(d log d), and d² only if new ones fit in no gap.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter

from msgspec import structs

from rdzv_plugins.elastic.keys import Assignment, Member
from rdzv_plugins.endpoints import is_loopback_address


@dataclass(frozen=True)
class Rules:
    """What the job asks for. Times are in seconds."""

    min_nodes: int
    max_nodes: int
    last_call: float = 30.0  # how much longer a first round waits for more nodes once the minimum has joined
    duplicate: float = 11.0
    """How long two nodes may claim the same given rank: one of them may be lost without that being known yet."""
    rejoin: float = 60.0
    """How long the others wait for a living node that does not join again or act on its place."""
    back: float = 11.0
    """How long the nodes of a round that the service has forgotten wait for each other. By then a lost one is known."""
    majority: bool = False
    """Several endpoints: a round needs more than half of the nodes of the last one (``quorum``)."""
    node_unit: int = 1
    """A round has a multiple of this many nodes; ``min_nodes`` and ``max_nodes`` are multiples, too."""
    min_per_domain: int = 1  # a round has no node of a domain, or at least this many
    preflight_factor: float | None = None
    """With --preflight: a node is slow if it is worse than usual by more than this factor."""

    @property
    def any_will_do(self) -> bool:
        """Whether a round may have any number of nodes, from any domains."""
        return self.node_unit == self.min_per_domain == 1


def largest(domains: Iterable[int], rules: Rules) -> int:
    """The size of the largest round that domains with these numbers of nodes can form; 0 if there is none."""
    sizes = sorted((size for size in domains if size >= rules.min_per_domain), reverse=True)
    reach = list(itertools.accumulate(sizes))  # how many nodes the 1, 2, ... largest have
    size = min(reach[-1] if reach else 0, rules.max_nodes)
    size -= size % rules.node_unit
    while size and (bisect.bisect_left(reach, size) + 1) * rules.min_per_domain > size:
        size -= rules.node_unit
    return size


def size_of(waiting: Collection[Member], former: PreviousAssignment, rules: Rules) -> int:
    """How many nodes ``choose`` would return."""
    return largest(Counter(member.domain for member in _by_preference(waiting, former)).values(), rules)


def choose(waiting: Collection[Member], former: PreviousAssignment, rules: Rules) -> list[Member]:
    """Choose the nodes of a round from those that wait, given in order of arrival; one for each given rank.

    Those of the previous round come first: a spare does not push out a node that was there.
    """
    preferred = _by_preference(waiting, former)
    domains = Counter(member.domain for member in preferred)
    size = largest(domains.values(), rules)
    chosen = preferred[:size]
    there = Counter(member.domain for member in chosen)
    if all(count >= rules.min_per_domain for count in there.values()):
        return chosen
    return _of_domains(preferred, _domains(domains, there, size, rules.min_per_domain), size, rules.min_per_domain)


def why_spare(member: Member, domains: Mapping[str, int], working: int, rules: Rules) -> str:
    """Why a round of ``working`` nodes goes on without ``member``. ``domains``: how many nodes live in each."""
    if domains[member.domain] < rules.min_per_domain:
        return f"{in_words(member.domain)} has fewer than {rules.min_per_domain} nodes here (min_per_domain)"
    if working >= rules.max_nodes:
        return f"all {rules.max_nodes} places are taken"
    unit = f"a multiple of {rules.node_unit} nodes (node_unit)" if rules.node_unit > 1 else ""
    least = f"at least {rules.min_per_domain} nodes of a domain (min_per_domain)" if rules.min_per_domain > 1 else ""
    return f"a round needs {' and '.join(filter(None, (unit, least)))}, and too few nodes are here for a larger one"


def in_words(domain: str) -> str:
    """The name used for a domain in messages."""
    return f"domain {domain}" if domain else "no domain"


def _by_preference(waiting: Collection[Member], former: PreviousAssignment) -> list[Member]:
    """Order the waiting nodes by preference, one for each given rank."""
    missing = Counter(former.domains)
    missing.subtract(member.domain for member in waiting if former.own(member) is not None)
    stay: list[Member] = []
    replace: list[Member] = []  # one of their own domain that is missing
    come: list[Member] = []
    claimed: set[int] = set()
    for member in sorted(waiting, key=lambda member: former.own(member) is None):  # sorting is stable
        if member.node_rank is not None:
            if member.node_rank in claimed:
                continue
            claimed.add(member.node_rank)
        if former.own(member) is not None:
            stay.append(member)
        else:
            (replace if missing[member.domain] > 0 else come).append(member)
            missing[member.domain] -= 1
    return [*stay, *replace, *come]


def _domains(sizes: Mapping[str, int], there: Mapping[str, int], size: int, least: int) -> Collection[str]:
    """Domains that make up a round of ``size`` nodes with ``least`` of each: the preferred ones, if possible.

    ``there``: how many of each are among the preferred nodes. Such domains are known to exist.
    """
    preferred = sorted((name for name in sizes if sizes[name] >= least), key=lambda name: -there.get(name, 0))  # stable
    others = sorted(sizes[name] for name in preferred)
    taken: set[str] = set()
    have = 0
    for name in preferred:
        del others[bisect.bisect_left(others, sizes[name])]
        if have >= size and there.get(name, 0) < least:
            break
        reach = [0, *itertools.accumulate(reversed(others))]  # how many nodes the 0, 1, ... largest of them have
        more = bisect.bisect_left(reach, size - have - sizes[name])
        if more < len(reach) and (len(taken) + 1 + more) * least <= size:
            taken.add(name)
            have += sizes[name]
    return taken


def _of_domains(preferred: Sequence[Member], domains: Collection[str], size: int, least: int) -> list[Member]:
    """The preferred nodes, with ``least`` of each of the ``domains``, and none of any other."""
    seen: Counter[str] = Counter()
    needed: list[str] = []
    others: list[str] = []
    for member in preferred:
        if member.domain in domains:
            seen[member.domain] += 1
            (needed if seen[member.domain] <= least else others).append(member.node_id)
    kept = {*needed, *others[: size - len(needed)]}
    return [member for member in preferred if member.node_id in kept]


Order = Callable[[Sequence[Member]], Sequence[str] | None]
"""Puts nodes into an order of ranks (a topology): returns their ids, first to last, or None for no opinion."""

Place = tuple[int | None, str, str]


def place_of(node: Member | Assignment) -> Place:
    """What identifies a node that comes back as the same one, even in another process."""
    return (node.node_rank, node.machine, node.host)


class PreviousAssignment:
    """The ranks of the previous round, to be given back to the nodes that return.

    ``places``: those of its nodes, by id. ``domains``: how many each domain had. ``starts``: the first rank of each.
    """

    def __init__(self, places: Mapping[str, Assignment]) -> None:
        self.places = places
        self.domains = Counter(each.domain for each in places.values())
        self.starts: dict[str, int] = {}
        self._by_place: dict[Place, list[int]] = {}
        for each in sorted(places.values(), key=lambda place: place.rank):
            self.starts.setdefault(each.domain, each.rank)
            self._by_place.setdefault(place_of(each), []).append(each.rank)

    def own(self, member: Member, free: Collection[int] | None = None) -> int | None:
        """The rank that this very process had, if it is ``free``."""
        place = self.places.get(member.node_id)
        return None if place is None or (free is not None and place.rank not in free) else place.rank

    def of_place(self, member: Member, free: Collection[int]) -> int | None:
        """A free rank that another process in the same place had."""
        return next((rank for rank in self._by_place.get(place_of(member), ()) if rank in free), None)


def assign_ranks(members: Sequence[Member], former: PreviousAssignment, order: Order) -> list[Member]:
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
    for rank, member in sorted(given, key=itemgetter(0), reverse=True):
        above = min(rank, above - 1)
        places[above] = member
    rest = [member for member in members if member.firm_rank is None]
    free = [rank for rank in range(world) if rank not in places]
    wishes = _wishes(rest, former, set(free), order)
    for block, ranks in _blocks(rest, former, places, free, wishes):
        left_over = set(ranks)
        back, others = _returning(block, former, left_over)
        others.sort(key=lambda member: wishes[member.node_id])
        places |= back | dict(zip(sorted(left_over), others, strict=True))
    return [places[rank] for rank in range(world)]


Wish = tuple[int, int, int]
"""The lowest comes first: by the topology that a plug-in knows, then by the scheduler, then by arrival."""


def _wishes(members: Sequence[Member], former: PreviousAssignment, free: set[int], order: Order) -> dict[str, Wish]:
    """The wish of each of ``members`` for a rank that nobody returns to."""
    by_arrival = sorted(members, key=lambda member: not member.serves)  # sorting is stable
    _, left = _returning(members, former, free)
    ids = {member.node_id for member in left}
    unplaced = [member for member in by_arrival if member.node_id in ids and member.node_rank is None]
    wanted = (order(unplaced) or ()) if len(unplaced) > 1 else ()
    positions = {node_id: position for position, node_id in enumerate(wanted)}
    last = len(members)
    wishes: dict[str, Wish] = {}
    for arrival, member in enumerate(by_arrival):
        of_scheduler = last if member.node_rank is None else member.node_rank
        wishes[member.node_id] = positions.get(member.node_id, last), of_scheduler, arrival
    return wishes


def _returning(
    members: Sequence[Member], former: PreviousAssignment, free: set[int]
) -> tuple[dict[int, Member], list[Member]]:
    """The nodes that get back an old rank of theirs that is free, and the others. Takes those ranks out of ``free``."""
    places: dict[int, Member] = {}
    left = members
    # by id before by place: a node that has stayed is not pushed aside by one that comes to the same machine
    for old_rank in (former.own, former.of_place):
        others: list[Member] = []
        for member in left:
            rank = old_rank(member, free)
            if rank is None:
                others.append(member)
            else:
                free.discard(rank)
                places[rank] = member
        left = others
    return places, list(left)


def _blocks(
    members: Sequence[Member],
    former: PreviousAssignment,
    given: Mapping[int, Member],
    free: Sequence[int],
    wishes: Mapping[str, Wish],
) -> Iterator[tuple[list[Member], Sequence[int]]]:
    """The nodes of each domain, with their ranks.

    ``given``: nodes that have a rank already. ``free``: the other ranks in ascending order, as many as are needed.
    """
    domains: dict[str, list[Member]] = {}
    for member in members:
        domains.setdefault(member.domain, []).append(member)
    starts = former.starts | {given[rank].domain: rank for rank in sorted(given, reverse=True)}
    held = sorted((name for name in domains if name in starts), key=lambda name: -starts[name])  # the next one last
    new = [name for name in domains if name not in starts]
    new.sort(key=lambda name: min(wishes[member.node_id] for member in domains[name]))
    at = 0
    while held or new:
        begins = starts[held[-1]] if held else math.inf
        gap = bisect.bisect_left(free, begins, at) - at
        fits = next((each for each, name in enumerate(new) if len(domains[name]) <= gap), None) if gap else None
        nodes = domains[held.pop() if fits is None else new.pop(fits)]
        yield nodes, free[at : at + len(nodes)]
        at += len(nodes)


def plan(
    round_: int, begun: str, chosen: list[Member], former: PreviousAssignment, order: Order
) -> dict[str, Assignment]:
    """The places of the chosen nodes in round ``round_``, in the order of ranks; nobody serves the store yet."""
    return {
        member.node_id: structs.replace(member.place_in(round_, rank, len(chosen)), epoch=begun)
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
