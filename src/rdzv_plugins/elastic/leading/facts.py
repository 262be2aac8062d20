"""Who is there and who is missing, in words: the same in waiting lines, time-outs and ends."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rdzv_plugins.elastic.keys import Assignment, Member
from rdzv_plugins.elastic.leading.claims import Claims
from rdzv_plugins.rounds.settings_check import wanted

_NAMED = 8


def some(names: Iterable[str], most: int = _NAMED) -> str:
    """The first few, and how many more."""
    listed = list(names)
    more = len(listed) - most
    return ", ".join(listed[:most]) + (f" and {more} more" if more > 0 else "")


def ranks(numbers: Iterable[int]) -> str:
    """Ranks in short: ``1, 3-5, 9``."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return some(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def joined(
    there: Sequence[Member],
    *,
    late: Sequence[Member],
    left_out: Sequence[Member] = (),
    lost: Sequence[Assignment],
    claims: Claims,
    needed: tuple[int, int],
    few: str = "",
) -> str:
    """``1 of 2 nodes have joined (host a (pid 7)); missing: node rank 1``.

    ``late`` still stop their workers, ``left_out`` are not waited for, ``lost`` are the places of the last round whose
    nodes have gone. ``few``: why they are too few, where that is not for want of the least number.
    """
    text = f"{len(there)} of {wanted(*needed)} nodes have joined ({_names(there) or 'nobody'})"
    if late:
        text += f"; missing: {_names(late)}"
    elif len(there) < needed[1]:
        if unclaimed := claims.missing(needed[1]):
            text += f"; missing: node rank {ranks(unclaimed)}"
        elif lost:
            text += f"; missing: {some(f'{place.host} (was node {place.rank})' for place in lost)}"
    if few:
        text += f"; {few}"
    if left_out:
        text += f"; left out for now: {_names(left_out)}"
    members = {member.node_id: member for member in (*there, *late, *left_out)}
    for nodes in claims.twice():
        text += f"; the same node rank is claimed by {' and '.join(members[node].name for node in nodes)}"
    return text


def to_reach(members: Sequence[Member], world: int) -> str:
    """Who has not dialled the workers' store yet."""
    return f"{len(members)} of {world} nodes have still to reach the workers' store: {_names(members)}"


def _names(members: Sequence[Member]) -> str:
    return some(member.name for member in members)
