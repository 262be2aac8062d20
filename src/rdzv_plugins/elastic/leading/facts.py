"""Who is there and who is missing, in words: the same for waiting lines, time-outs and the end of a job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from rdzv_plugins.elastic.keys import Assignment, Member
from rdzv_plugins.elastic.leading.placement import Shape, in_words
from rdzv_plugins.elastic.leading.roster import Claims
from rdzv_plugins.plain_text import some
from rdzv_plugins.rounds.settings_check import wanted


def ranks(numbers: Iterable[int]) -> str:
    """Ranks in short form: ``1, 3-5, 9``."""
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
    shape: Shape | None = None,
) -> str:
    """Returns, for example, ``1 of 2 nodes have joined (host a (pid 7)); missing: node rank 1``.

    ``late``: nodes that are still stopping their workers; ``left_out``: nodes that are not waited for; ``lost``: the
    places in the last round whose nodes have gone. ``few``: why there are too few, if the minimum number is not the
    reason. ``shape``: what a round may look like. Domains are named if there is more than one.
    """
    domains = {each.domain for members in (there, late, left_out) for each in members} | {each.domain for each in lost}
    several = len(domains) > 1
    text = f"{len(there)} of {wanted(*needed)} nodes have joined ({_names(there) or 'nobody'})"
    if late:
        text += f"; missing: {some(each.name + (_of(each) if several else '') for each in late)}"
    elif len(there) < needed[1]:
        if unclaimed := claims.missing(needed[1]):
            text += f"; missing: node rank {ranks(unclaimed)}"
        elif lost:
            places = (f"{each.host} (was node {each.rank}){_of(each) if several else ''}" for each in lost)
            text += f"; missing: {some(places)}"
    text += "".join(f"; {each}" for each in _of_domains(there, several, shape or Shape(needed[1])))
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


def in_the_way(cannot: Sequence[Member], places: Sequence[Assignment]) -> dict[str, str]:
    """Which nodes keep the others from work, and why: those that ``cannot`` dial the workers' store, or its node.

    ``places`` are those of the round; the first one's node serves the store.
    """
    first, others = places[0], len(places) - 1
    if len(cannot) > 1 and 2 * len(cannot) > others:
        who = f"{len(cannot)} of {others} other nodes cannot reach {_store_of(first)}"
        return {first.node_id: f"{who}, as {cannot[0].name}: {cannot[0].unreachable}"}
    return {member.node_id: f"it {unreachable(member, first)}" for member in cannot}


def unreachable(member: Member, first: Assignment) -> str:
    """Why it cannot dial the workers' store that the node of ``first`` serves."""
    return f"cannot reach {_store_of(first)}: {member.unreachable}"


def _store_of(first: Assignment) -> str:
    return f"the workers' store of {first.host} (node 0) at {first.master_addr} port {first.master_port}"


def _of_domains(there: Sequence[Member], several: bool, shape: Shape) -> Iterator[str]:
    """How many nodes of which domains are there, and what keeps them out of a round."""
    domains = Counter(member.domain for member in there)
    if several and domains:
        yield f"here: {some(f'{count} of {in_words(name)}' for name, count in domains.items())}"
    if small := [name for name, count in domains.items() if count < shape.per_domain]:
        yield (
            f"left out until {shape.per_domain} of its nodes are here (min_per_domain): {some(map(in_words, small))}"
        )
    if len(there) % shape.unit:
        yield f"a round has a multiple of {shape.unit} nodes (node_unit)"


def _of(node: Member | Assignment) -> str:
    return f" of {in_words(node.domain)}"


def _names(members: Sequence[Member]) -> str:
    return some(member.name for member in members)
