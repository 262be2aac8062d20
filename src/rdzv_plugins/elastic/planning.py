"""A round before it is one: who is chosen, in which place, and where the others can dial the first."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from rdzv_plugins.elastic.keys import Assignment, Member
from rdzv_plugins.elastic.ranks import Former, Order, assign_ranks
from rdzv_plugins.endpoints import is_loopback_address


def choose(waiting: Iterable[Member], former: Former, most: int) -> list[Member]:
    """At most ``most`` of those that wait, given in the order of arrival: one for each given rank.

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
    """Their places in round ``round_``, in the order of ranks; nobody serves the store yet."""
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
    if all(is_loopback_address(each.address) for each in chosen) and len({each.machine for each in chosen}) == 1:
        return ""
    # it has reached the endpoint by loopback: where others have dialled an agent of its machine, they reach it too
    served_there = any(each.serves and each.machine == first.machine for each in members)
    dialled = (each.dialled for each in chosen if served_there and not is_loopback_address(each.dialled))
    return next(dialled, first.public)
