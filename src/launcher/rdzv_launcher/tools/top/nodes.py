"""The nodes of a job, from the keys of its run: their ranks and what each of them does. No I/O."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rdzv_plugins.coordination import KeyValue
from rdzv_plugins.elastic.keys import NODES, Assignment, Member, readable
from rdzv_plugins.interfaces import RunStatus

WELL = ("works", "done", "spare")
"""The states of a node that need nobody's attention."""


@dataclass(frozen=True)
class NodeSeen:
    """A node, as the others are told about it."""

    node_id: str
    rank: int | None
    """Its rank in the newest round; None: it has no place there."""
    host: str
    pid: int
    state: str
    """One of ``WELL``, or ``joins``, ``waits``, ``leaves``, ``cut off``, ``left out``, ``refused``, ``gone``."""
    round: int
    """The newest round in which it has a place; 0: none."""
    domain: str = ""
    """What it shares with the nodes near it; empty if nothing is known about that."""


def nodes_of(status: RunStatus, told: Iterable[KeyValue], members: Iterable[KeyValue]) -> list[NodeSeen]:
    """The nodes by rank, those without one at the end. ``told`` and ``members`` are the keys of that name."""
    # by key: a notice of having no place, such as that of a node that is left out, does not repeat whose it is
    places = {kv.key.removeprefix(NODES): each for kv in told for each in readable(Assignment, (kv,))}
    there = {each.node_id: each for each in readable(Member, members)}
    found = []
    for node_id in places.keys() | there.keys():
        place, member = places.get(node_id), there.get(node_id)
        if place is not None and (not place.is_place or place.round < status.number):
            place = None if place.is_place else place
        has = place is not None and place.is_place
        if member is None and not has:
            continue
        who: Member | Assignment | None = member or place
        assert who is not None
        rank, number = (place.rank, place.round) if place is not None and has else (None, 0)
        found.append(NodeSeen(node_id, rank, who.host, who.pid, _state(status, place, member), number, who.domain))
    return sorted(found, key=lambda each: (each.rank is None, each.rank or 0, each.host, each.pid))


def _state(status: RunStatus, place: Assignment | None, member: Member | None) -> str:
    if member is None:
        return "gone"
    if member.leaving:
        return "leaves"
    if place is not None and place.refused:
        return "refused"
    if place is not None and place.left_out:
        return "left out"
    if place is None or place.spare:
        return "spare" if status.state == "complete" else "waits"
    if member.after >= place.round:
        return "waits"
    if member.cut_off == place.round:
        return "cut off"
    if member.done == place.round:
        return "done"
    return "works" if status.state == "complete" and status.number == place.round else "joins"
