"""May these nodes form a round? If several endpoints can serve, others may be forming one elsewhere.

The rounds are the electorates (dynamic voting). A node is a member at one endpoint at a time, and carries its *votes*:
its place in the last round that it knows to have been complete, and in each that it has reached since, which may have
been complete. It carries a round's vote before it says that it has reached it.

**The rule.** A leader forms a round of the nodes S only if, for the newest complete round that any of its members
knows, and for each that may have been complete since, S has more than half of its nodes; or exactly half, and among
them the one with the highest rank. The new number is higher than all of these. More than the number tells which round a
vote belongs to: its size, its store, and a name of the leader that began it. A node takes a round for complete only
when that very round is declared complete; the vote in one that is over stays as it was. It goes on in no round after
which it has reached another: it has been elsewhere and come back, and keeps the vote of the other one, too.

The rule is applied to what the nodes of S carry when the round is begun, and has to hold until it is complete: the
leader gives it up when one of them turns out to have reached a round of another leader since, and counts as reached
only rounds whose vote the node carries. Rounds that were begun here (``place/id`` is part of the leader's name) and not
declared do not bind: nobody else can declare them. Nor do those of which the node that began them elsewhere says that
it has not declared them (``Member.led``). The last one that was declared here always binds, even if all its places were
overwritten by those of a round that came to nothing.

Nodes that know of no complete round form none where there was one: newcomers may be all that is left on one side of a
cut. Before there was one they begin it only at the place where the first is claimed (``place/born``), also if they have
reached a round: it may have been given up, and others may be complete in another, of which none of them has heard.

**Why there are never two worlds.** Let A be a complete round, and let B and C be formed from it at two places, both by
the rule. They have a node x in common that was in A: two parts of one set overlap if each is more than half, or half
with the highest rank. A round is complete only when all its nodes have reached it, so x has reached both, say B first.
Either x carried the vote of B when C was begun: then C has more than half of B, too. Or C was begun with it earlier, x
went to where B was formed, and came back: then it brings the vote of B at the latest when it says that it has reached
C, and C is given up. (That works even if nobody has heard that its old session ended: the new one writes the same key.)
So complete rounds form one chain, whatever is late, lost or repeated, and whatever clocks say: so many nodes have left
any round but the newest that the rest can form nothing. B can still be *declared* by a leader that has not heard that x
left; but x no longer works in it, its collectives cannot complete, and it is over as soon as the end of x's session is
heard. tests/unit/test_quorum_model.py tries every order of such steps for few nodes.

**Who is gone for good.** A node that has said here that it leaves, or that is proved gone while it was a member here,
takes part nowhere else any more: its voice stays here, and counts. So that there can only be a proof against a node
that has stayed, one that goes to another place first says a last word to all that watch it, opens another port, and
answers there by another name, as the port's number may be reused; and a node that watches it forgets what it has seen
when it goes elsewhere itself, and a proof under way then counts nowhere. A node that has said at a place that it leaves
says nothing more if it comes to another: its voice would count at both. Other dead nodes count as absent. Leaving them
out of the count is not safe: they may have formed a newer round before they died. If three of four are lost without a
trace, the last one does not go on; if they are lost one after the other, each round is the measure for the next.

Why it is done this way: docs/decisions/0049-several-endpoints.md. Moving between places, the first round, and what is
assumed: docs/internals/rendezvous.md. No clock, no sockets.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from rdzv_plugins.elastic.coordinator import gates
from rdzv_plugins.elastic.coordinator.gates import Gate, Places, Proposal, Wait
from rdzv_plugins.elastic.coordinator.placement import PreviousAssignment
from rdzv_plugins.elastic.keys import EpochVote, Member, Round, Which, vote_of


def begun_at(mark: str) -> str:
    """At which place, in which life of its service, the rounds with that mark (``Assignment.epoch``) were begun."""
    return mark.partition(".")[0]


class Quorum(Gate):
    """What one leader knows of the rounds that bind it."""

    def __init__(
        self,
        declared: Round,
        places: Places,
        here: str,
        *,
        window: float,
        has_begun: bool = False,
        first_here: bool = True,
    ) -> None:
        """``declared``: the newest round that was complete here.

        ``places``: those of its places that are still known, by node; the next round overwrites them, even if it was
        never complete. ``here``: this place (``begun_at``).

        ``window``: how long the nodes of a round that was declared elsewhere wait for each other. ``has_begun``: it is
        remembered here that there was a round. ``first_here``: it is here that the first one is begun.
        """
        self._at, self._first_here = here, first_here
        self._begun = has_begun
        """There was a round: this leader has heard of one from a member, which may have gone since."""
        self._declared: EpochVote | None = None
        self._heard: dict[str, tuple[EpochVote, ...]] = {}
        self._stay: dict[str, None] = {}
        """The nodes that no longer take part anywhere, and were members here when they went."""
        self._led: dict[str, int] = {}
        """What those who began rounds elsewhere say of them: by mark, the newest that may have been complete."""
        self._served: dict[Which, set[int]] = {}
        """Who served the endpoint that others of the round have left: frozen, cut off or gone."""
        self._here: dict[str, EpochVote] = {}
        self._brought: dict[str, frozenset[Which]] = {}
        """The rounds that the nodes of the one being formed had reached before it was begun."""
        self._window = window
        self._newest = self._gathered = declared.number  # declared here; and for whose nodes there is no more waiting
        self._gather_by: float | None = None
        self._bind(declared, places)

    def observe(self, event: gates.GateEvent, now: float) -> bool:
        match event:
            case gates.MemberHeard(member, takes_part):
                self._hear(member, now)
                return takes_part and self._spoils(member)
            case gates.ProvedGone(node):
                self._stays(node)
            case gates.RoundPlanned(places):
                heard = self._heard
                self._brought = {node: frozenset(vote.which for vote in heard.get(node, ())) for node in places}
            case gates.RoundDeclared(round_, places):
                self._newest = round_.number
                if round_.state == "complete":
                    self._bind(round_, places)
        return False

    def _bind(self, declared: Round, places: Places) -> None:
        """A round was complete here, with these places."""
        if declared.number:
            self._declared = declared.vote
            self._here = {node: vote_of(place, complete=True) for node, place in places.items()}
            self._stay = {node: None for node in self._stay if node in places}

    def _hear(self, member: Member, now: float) -> None:
        self._heard[member.node_id] = member.votes
        known = [vote for vote in member.votes if vote.complete]
        if member.last_led is not None:
            mark, declared = member.last_led
            self._led[mark] = declared
        self._begun = self._begun or bool(known)
        if member.server_rank >= 0 and known:
            self._served.setdefault(known[0].which, set()).add(member.server_rank)
        if member.leaving:
            self._stays(member.node_id)
        counted = max(self._gathered, self._newest)
        if self._gather_by is None and any(vote.round > counted for vote in known):
            self._gather_by = now + self._window

    def _spoils(self, member: Member) -> bool:
        """Whether the node has reached another round since the one was begun in which it has a place.

        That one may have been complete, and was not counted. Rounds that were given up here never were.
        """
        brought = self._brought.get(member.node_id)
        return brought is not None and any(
            vote.which not in brought and not self._was_never(vote) for vote in member.votes
        )

    def _stays(self, node: str) -> None:
        if node in self._heard or node in self._here:
            self._stay[node] = None

    @property
    def knows_of_round(self) -> bool:
        return self._begun or self._declared is not None

    def check(self, waiting: Collection[str], members: Collection[str], now: float) -> Wait | None:
        """Whether nodes of a round that was declared elsewhere are still to come, and there is time."""
        if self._gather_by is None:
            return None
        if now >= self._gather_by or self._all_come(waiting, members):
            self._gather_by, self._gathered = None, self._last(members)
            return None
        return Wait(self._gather_by)

    def _all_come(self, chosen: Collection[str], members: Collection[str]) -> bool:
        """Whether nobody is missing from the rounds that bind, except those that served the endpoint the others left.

        Such a node is not expected here soon: the others have left because they no longer hear from it.
        """
        return all(
            len(votes | self._served.get(which, set())) >= which[1] for which, votes in self._votes(chosen, members)
        )

    def objection(self, chosen: Collection[str], members: Collection[str]) -> str:
        if not self._last(members) and (self.knows_of_round or not self._first_here):
            return "the job has begun, and no node here was in one of its rounds: the others may continue elsewhere"
        for (number, world, _), votes in self._votes(chosen, members):
            if 2 * len(votes) < world or (2 * len(votes) == world and world - 1 not in votes):
                return (
                    f"more than half of the nodes of round {number} must be here, because the others may be continuing "
                    f"elsewhere: {len(votes)} of {world} are here"
                )
        return ""

    def review(self, proposal: Proposal) -> None:
        """Nodes keep ranks that they themselves know of, if none was declared here that is newer."""
        last = self._last(proposal.members)
        if last < proposal.declared:
            return
        places = {
            node: member.place_in(vote.round, vote.rank, vote.world)
            for node, member in proposal.members.items()
            for vote in member.votes
            if vote.complete and vote.round == last
        }
        # not all nodes of a kept round may have been here when it was over: they say their places themselves
        known = proposal.former.places if last == proposal.declared else {}
        proposal.former = PreviousAssignment({**places, **known})

    def _last(self, members: Iterable[str]) -> int:
        """The number of the newest round that any of ``members`` knows to have been complete, or that was so here."""
        return max((vote.round for vote in self._known(members) if vote.complete), default=0)

    def _votes(self, chosen: Collection[str], members: Collection[str]) -> list[tuple[Which, set[int]]]:
        """The rounds that bind (the last complete one, and what may have been complete since), with the ranks here."""
        last = self._last(members)
        ballots: dict[Which, set[int]] = {
            vote.which: set()
            for vote in self._known(members)
            if vote.round >= last and vote.world > 0 and (vote.complete or not self._was_never(vote))
        }
        for node in dict.fromkeys((*chosen, *self._stay)):
            for vote in (*self._heard.get(node, ()), *([self._here[node]] if node in self._here else [])):
                if vote.which in ballots:
                    ballots[vote.which].add(vote.rank)
        return sorted(ballots.items(), reverse=True)

    def _was_never(self, vote: EpochVote) -> bool:
        """Whether its round is known never to have been complete, unless a node says that it was.

        It was begun here, and was not declared; or it was not by the node that began it.
        """
        begun_here = bool(self._at) and begun_at(vote.mark) == self._at
        return begun_here or vote.round > self._led.get(vote.mark, vote.round)

    def _known(self, members: Iterable[str]) -> Iterator[EpochVote]:
        if self._declared is not None:
            yield self._declared
        for node in dict.fromkeys((*members, *self._stay)):
            yield from self._heard.get(node, ())
