"""The members of a run, and which of them can take part in a round: no clock, no sockets, no rounds.

Who is there and who is missing is said in the same words in waiting lines, time-outs and at the end of a job.

Each living member is in one of these states: it works in the complete round, it waits for another, it is *awaited* (the
round is over, and it has not joined again), it is left out for a while, or it is refused for good.

A node that cannot take part costs the others time in every round that is formed with it. So it is left out, and let in
again after a pause that doubles each time (a node is known by its place, so a new process there counts as the same
node). A node that has stayed in a round for a while starts afresh.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from msgspec import structs

from rdzv_plugins.elastic.coordinator.placement import Place, PreviousAssignment, Rules, in_words, place_of, size_of
from rdzv_plugins.elastic.keys import Assignment, Member
from rdzv_plugins.plain_text import some
from rdzv_plugins.rounds.settings_check import wanted

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 2.0, 300.0
SETTLED_S = 30.0
"""A node that has stayed in rounds for this long has shown that it can: what was before is forgotten."""


class MemberTable:
    """The members of a run, as the leader knows them. Not thread-safe. Times are the leader's own monotonic seconds."""

    def __init__(self, rules: Rules, held: Mapping[str, Assignment]) -> None:
        """``held``: what earlier coordinators have told nodes."""
        self._rules = rules
        self.members: dict[str, Member] = {}  # the living members, in order of arrival
        self.waiting: set[str] = set()  # members that wait for a round
        self.refused: set[str] = set()
        self.left_out: dict[str, float] = {}  # until when; of one that has to say something first, without an end
        self._late = {n: a.late_for for n, a in held.items() if a.left_out and a.late_for}
        """The rounds that late nodes have to leave behind first."""
        self.quarantine = Quarantine()
        self._claims: dict[int, list[str]] = {}  # the nodes that were given a rank, in order of arrival
        self.disputed: dict[int, float] = {}
        """The ranks that are claimed twice, and for how long that is not overdue.

        One of the two may be lost without that being known yet, for example when an agent was restarted at once.
        """
        self._words: dict[str, Assignment] = {}
        self._spares: dict[str, str] = {n: a.spare for n, a in held.items() if a.spare}
        """What nodes that wait beside a round have been told."""
        self.notices: list[str] = []  # what people should know about nodes, since the last call of ``words``

    def take(self, member: Member, now: float) -> bool:
        """A member has come, or says something new about itself. False: it takes no part, and ``words`` says why."""
        node, most = member.node_id, self._rules.max_nodes
        newcomer = node not in self.members
        if newcomer:
            self._claim(member, now)
        self.members[node] = member
        if node in self.refused:
            return False
        if node in self.left_out:
            if member.last_round >= self._late.get(node, math.inf):  # it was late, and has come
                del self._late[node]
                self.left_out[node] = max(now, self.quarantine.until(member))
            return False
        if not newcomer:
            return True
        if member.last_round < self._late.get(node, 0):
            self.left_out[node] = math.inf
            return False
        self._late.pop(node, None)
        if member.node_rank is not None and not 0 <= member.node_rank < most:
            self._refuse(node, f"node rank {member.node_rank} is out of range for {most} nodes")
        elif self.quarantine.until(member) > now:
            self.leave_out(node, "it has left several rounds soon after they began, and is back too soon")
        else:
            return True
        return False

    def remove(self, node: str) -> Member | None:
        """Remove a member that is lost or leaves; None if it had already gone."""
        member = self.members.pop(node, None)
        if member is not None:
            self._takes_no_part(node)
            if node in self.refused:
                self.refused.discard(node)
            else:
                self._release(member)
        return member

    def _claim(self, member: Member, now: float) -> None:
        if member.node_rank is None:
            return
        nodes = self._claims.setdefault(member.node_rank, [])
        nodes.append(member.node_id)
        if len(nodes) > 1:
            self.disputed.setdefault(member.node_rank, now + self._rules.duplicate)

    def _release(self, member: Member) -> None:
        if member.node_rank is None:
            return
        nodes = self._claims[member.node_rank]
        nodes.remove(member.node_id)
        if len(nodes) < 2:
            self.disputed.pop(member.node_rank, None)
        if not nodes:
            del self._claims[member.node_rank]

    def _takes_no_part(self, node: str) -> None:
        self.waiting.discard(node)
        self.left_out.pop(node, None)
        self._late.pop(node, None)
        self._spares.pop(node, None)

    def let_in(self, now: float) -> Iterator[Member]:
        """Let in the nodes whose time of being left out is over."""
        for node in [node for node, until in self.left_out.items() if now >= until]:
            del self.left_out[node]
            yield self.members[node]

    def deadline(self) -> float | None:
        """When the next node may be let in, or the next double claim is overdue; None while there is neither."""
        times = (*self.left_out.values(), *self.disputed.values())
        return min((at for at in times if at < math.inf), default=None)

    def is_awaited(self, node: str) -> bool:
        """Whether it has not joined again; who is kept out need not."""
        return node not in self.waiting and node not in self.refused and node not in self.left_out

    @property
    def all_wait(self) -> bool:
        return len(self.waiting) + len(self.refused) + len(self.left_out) == len(self.members)

    def count(self) -> int:
        """How many nodes wait, counting each rank once."""
        return len(self.waiting) - sum(len(self._claims[rank]) - 1 for rank in self.disputed)

    def candidates(self, without: Collection[str] = ()) -> list[Member]:
        """Those that wait, in order of arrival."""
        willing = self.waiting.difference(without)
        return [member for node, member in self.members.items() if node in willing]

    def could_be(self, former: PreviousAssignment, without: Collection[str] = ()) -> int:
        """How many nodes a round could have, from those that wait."""
        rules, count = self._rules, self.count() - len(without)
        most = min(count - count % rules.node_unit, rules.max_nodes)
        if rules.min_per_domain == 1 or most < rules.min_nodes:
            return most
        return min(most, size_of(self.candidates(without), former, rules))

    def leave_out(self, node: str, why: str, *, silent_after: int | None = None) -> None:
        """The others go on without the node for as long as its place has to wait.

        A node that was silent has to say something first, and to have left round ``silent_after`` behind.
        """
        member = self.members[node]
        self._takes_no_part(node)
        self.left_out[node] = self.quarantine.until(member)
        if silent_after is not None:
            self.left_out[node], self._late[node] = math.inf, silent_after
        self._words[node] = Assignment(0, left_out=why, late_for=silent_after or 0)
        self.notices.append(f"{member.name} is left out for now: {why}")

    def _refuse(self, node: str, why: str) -> None:
        """Refuse a node that cannot take part, now or later."""
        self._release(self.members[node])
        self._takes_no_part(node)
        self.refused.add(node)
        self._words[node] = Assignment(0, refused=why)
        self.notices.append(f"{self.members[node].name} cannot take part: {why}")

    def refuse_duplicates(self, now: float, places: Mapping[str, Assignment]) -> None:
        """Refuse the second of two agents given one rank: both are heard of for longer than a loss takes to notice."""
        for rank in [rank for rank, until in self.disputed.items() if now >= until]:
            nodes = list(self._claims[rank])
            holder = next((node for node in nodes if node in places), nodes[0])
            for node in nodes:
                if node != holder:
                    self._refuse(node, f"node rank {rank} belongs to {self.members[holder].name}")

    def tell_spare(self, node: str, why: str) -> None:
        """Tell a node why it waits beside a round, unless it has already been told."""
        if self._spares.get(node) != why:
            self._spares[node] = why
            self._words[node] = Assignment(0, spare=why)

    def place(self, nodes: Iterable[str]) -> None:
        """These nodes are to have places: what they were told as spares no longer holds."""
        for node in nodes:
            if self._spares.pop(node, None) is not None:
                self._words.pop(node, None)

    def words(self, number: int) -> tuple[dict[str, Assignment], tuple[str, ...]]:
        """What there is to tell nodes, and people, since the last call; the newest round begun is ``number``."""
        words = {node: structs.replace(word, round=number) for node, word in self._words.items()}
        notices = tuple(dict.fromkeys(self.notices))
        self._words, self.notices = {}, []
        return words, notices

    def facts(self, places: Mapping[str, Assignment], few: str) -> str:
        """Returns, for example, ``1 of 2 nodes have joined (host a (pid 7)); missing: node rank 1``.

        ``places``: those of the last round. ``few``: why there are too few, if the minimum number is not the reason.
        Domains are named if there is more than one.
        """
        members, most = self.members, self._rules.max_nodes
        there = [member for node, member in members.items() if node in self.waiting]
        late = [member for node, member in members.items() if self.is_awaited(node)]  # still stopping their workers
        left_out = [member for node, member in members.items() if node in self.left_out]  # not waited for
        lost = [place for node, place in places.items() if node not in members]
        domains = {each.domain for nodes in (there, late, left_out) for each in nodes} | {each.domain for each in lost}
        several = len(domains) > 1
        text = f"{len(there)} of {wanted(self._rules.min_nodes, most)} nodes have joined ({_names(there) or 'nobody'})"
        if late:
            text += f"; missing: {some(each.name + (_of(each) if several else '') for each in late)}"
        elif len(there) < most:
            unclaimed = [rank for rank in range(most) if rank not in self._claims]
            if unclaimed and self._claims:  # otherwise no node was given a rank
                text += f"; missing: node rank {ranks(unclaimed)}"
            elif lost:
                was = (f"{each.host} (was node {each.rank}){_of(each) if several else ''}" for each in lost)
                text += f"; missing: {some(was)}"
        for each in _of_domains(there, several, self._rules):
            text += f"; {each}"
        if few:
            text += f"; {few}"
        if left_out:
            text += f"; left out for now: {_names(left_out)}"
        for rank in self.disputed:
            names = " and ".join(members[node].name for node in self._claims[rank])
            text += f"; the same node rank is claimed by {names}"
        return text


class Quarantine:
    """How long a place has to wait whose nodes have spoilt rounds. Times are as in ``MemberTable``."""

    def __init__(self) -> None:
        self._records: dict[Place, tuple[int, float]] = {}
        """How often a place has spoilt a round, and until when it has to wait."""
        self._entered: dict[str, float] = {}

    def entered(self, nodes: Iterable[str], now: float) -> None:
        """Note the nodes of a round that is complete; no others are in it."""
        self._entered = {node: self._entered.get(node, now) for node in nodes}

    def failed(self, member: Member, now: float, *, lives: bool = False) -> None:
        """Note who spoilt a round. The first time costs it nothing unless it lives: any node can be lost once."""
        place = place_of(member)
        settled = now - self._entered.pop(member.node_id, now) >= SETTLED_S
        times = 0 if settled else self._records.get(place, (0, now))[0]
        steps = times + int(lives)
        pause = min(_FIRST_PAUSE_S * 2.0 ** (steps - 1), _LONGEST_PAUSE_S) if steps else 0.0
        self._records[place] = times + 1, now + pause

    def until(self, member: Member) -> float:
        """When its place may take part again."""
        return self._records.get(place_of(member), (0, -math.inf))[1]


def ranks(numbers: Iterable[int]) -> str:
    """Ranks in short form: ``1, 3-5, 9``."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return some(str(first) if first == last else f"{first}-{last}" for first, last in runs)


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


def _of_domains(there: Sequence[Member], several: bool, rules: Rules) -> Iterator[str]:
    """How many nodes of which domains are there, and what keeps them out of a round."""
    domains = Counter(member.domain for member in there)
    if several and domains:
        yield f"here: {some(f'{count} of {in_words(name)}' for name, count in domains.items())}"
    least = rules.min_per_domain
    if small := [name for name, count in domains.items() if count < least]:
        yield f"left out until {least} of its nodes are here (min_per_domain): {some(map(in_words, small))}"
    if len(there) % rules.node_unit:
        yield f"a round needs a multiple of {rules.node_unit} nodes (node_unit)"


def _of(node: Member | Assignment) -> str:
    return f" of {in_words(node.domain)}"


def _names(members: Sequence[Member]) -> str:
    return some(member.name for member in members)
