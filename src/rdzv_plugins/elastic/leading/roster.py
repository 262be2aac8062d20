"""The members of a run, and which of them can take part in a round: no clock, no sockets, no rounds.

Each living member is in one of these states: it works in the complete round, it waits for another, it is *awaited* (the
round is over, and it has not joined again), it is left out for a while, or it is refused for good.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from rdzv_plugins.elastic.keys import Assignment, Member
from rdzv_plugins.elastic.leading.claims import Claims
from rdzv_plugins.elastic.leading.left_out import LeftOut


class Roster:
    """The members of a run, as the leader knows them. Not thread-safe. Times are the leader's own monotonic seconds."""

    def __init__(self, max_nodes: int, duplicate: float, held: Mapping[str, Assignment]) -> None:
        """``duplicate``: seconds for which two nodes may claim one rank.

        ``held``: what earlier leaders have told nodes.
        """
        self._max_nodes = max_nodes
        self.members: dict[str, Member] = {}
        """The living members, in order of arrival."""
        self.waiting: set[str] = set()
        """Members that wait for a round."""
        self.cannot: set[str] = set()
        """Waiting nodes that could not dial the newest store that they tried."""
        self.refused: set[str] = set()
        self.left_out = LeftOut()
        self.claims = Claims(duplicate)
        self._known_late = {n: a.late_for for n, a in held.items() if a.left_out and a.late_for}
        self._words: dict[str, Assignment] = {}
        self._spares: dict[str, str] = {n: a.spare for n, a in held.items() if a.spare}
        """What nodes that wait beside a round have been told."""
        self._notices: list[str] = []

    def take(self, member: Member, now: float, number: int) -> bool:
        """A member has come, or says something new about itself. False: it takes no part, and ``words`` says why.

        ``number`` is that of the newest round that was begun.
        """
        node = member.node_id
        newcomer = node not in self.members
        if newcomer:
            self.claims.add(member, now)
        self.members[node] = member
        if node in self.refused:
            return False
        if node in self.left_out:
            self.left_out.heard(member, now)
            return False
        if not newcomer:
            return True
        if member.after < (late_for := self._known_late.pop(node, 0)):
            self.left_out.add(member, silent_after=late_for)
        elif member.node_rank is not None and not 0 <= member.node_rank < self._max_nodes:
            self.refuse(node, f"node rank {member.node_rank} is out of range for {self._max_nodes} nodes", number)
        elif self.left_out.is_due_later(member, now):
            self.leave_out(node, "it has left several rounds soon after they began, and comes again too soon", number)
        else:
            return True
        return False

    def remove(self, node: str) -> Member | None:
        """Remove a member that is lost or leaves; None if it had already gone."""
        member = self.members.pop(node, None)
        if member is not None:
            self.waiting.discard(node)
            self.cannot.discard(node)
            self.left_out.remove(node)
            self._spares.pop(node, None)
            if node in self.refused:
                self.refused.discard(node)
            else:
                self.claims.remove(member)
        return member

    def wait(self, member: Member) -> None:
        """Note that a member waits for a round."""
        self.waiting.add(member.node_id)
        (self.cannot.add if member.unreachable else self.cannot.discard)(member.node_id)

    def let_in(self, now: float) -> Iterator[Member]:
        """Let in the nodes whose time of being left out is over."""
        for node in self.left_out.due(now):
            self.left_out.remove(node)
            yield self.members[node]

    def is_awaited(self, node: str) -> bool:
        """Whether a node lives and has not joined."""
        return node not in self.waiting and node not in self.refused and node not in self.left_out

    @property
    def all_wait(self) -> bool:
        """Whether nobody is awaited."""
        return len(self.waiting) + len(self.refused) + len(self.left_out) == len(self.members)

    def count(self, without: int = 0) -> int:
        """How many nodes wait, counting each rank once, minus ``without``."""
        return len(self.waiting) - self.claims.surplus() - without

    def leave_out(self, node: str, why: str, number: int, *, late: bool = False, after: int = 0) -> None:
        """The others go on without the node for a while.

        A ``late`` one has to say something first, and to have left round ``after`` behind.
        """
        member = self.members[node]
        self.left_out.add(member, silent_after=after if late else None)
        self.waiting.discard(node)
        self.cannot.discard(node)
        self._spares.pop(node, None)
        self._words[node] = Assignment(number, left_out=why, late_for=after)
        self._notices.append(f"{member.name} is left out for now: {why}")

    def refuse(self, node: str, why: str, number: int) -> None:
        """Refuse a node that cannot take part, now or later."""
        self.claims.remove(self.members[node])
        self.refused.add(node)
        self.waiting.discard(node)
        self.cannot.discard(node)
        self.left_out.remove(node)
        self._words[node] = Assignment(number, refused=why)
        self._notices.append(f"{self.members[node].name} cannot take part: {why}")

    def refuse_duplicates(self, now: float, places: Mapping[str, Assignment], number: int) -> None:
        """Refuse duplicates: the service has heard of both for longer than it takes to notice a lost one.

        So two agents were given one rank.
        """
        for rank, nodes in self.claims.overdue(now):
            holder = next((node for node in nodes if node in places), nodes[0])
            for node in nodes:
                if node != holder:
                    self.refuse(node, f"node rank {rank} is that of {self.members[holder].name}", number)

    def tell_spare(self, node: str, why: str, number: int) -> None:
        """Tell a node why it waits beside round ``number``, unless it has already been told."""
        if self._spares.get(node) != why:
            self._spares[node] = why
            self._words[node] = Assignment(number, spare=why)

    def place(self, nodes: Iterable[str]) -> None:
        """These nodes are to have places: what they were told as spares no longer holds."""
        for node in nodes:
            if self._spares.pop(node, None) is not None:
                self._words.pop(node, None)

    def notice(self, text: str) -> None:
        """Note something about a node that people should know."""
        self._notices.append(text)

    def words(self) -> tuple[dict[str, Assignment], tuple[str, ...]]:
        """What there is to tell nodes, and people, since the last call."""
        words, notices = self._words, tuple(dict.fromkeys(self._notices))
        self._words, self._notices = {}, []
        return words, notices
