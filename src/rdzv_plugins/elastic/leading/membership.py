"""Who is in which round: the state machine of the leader. No sockets, no threads, no clock of its own.

Events go in through ``changed`` (a member's key was written) and ``gone`` (it has gone), and after each batch ``tick``
(time has passed), each with the leader's own monotonic time in seconds; decisions come out of ``decide``. A round goes
through three steps:

1. *serve*: the members are chosen; the one with rank 0 is asked to serve the workers' store;
2. *reach*: every member learns its place and the store's address, and dials it;
3. *complete*: all have reached it. The workers start.

If a member or the leader is lost during 1 or 2, the round is given up and a new one with a higher number takes its
place. A round is *over* when a member is lost or asks for a new round, or when there is room for a newcomer that has
dialled the store; then all living nodes join again.

A node that cannot take part does not stop the others while they are enough: if it cannot dial the store, does not join
again or answer in time, or spoils one round after another, it is left out for a while (``left_out``). Only a first
round that is too small without those that cannot dial its store fails, and says who cannot reach whom.

If rounds have a unit, or domains a minimum number of nodes (``choosing``), *enough* means that a round of ``min_nodes``
can be formed from those that wait. Newcomers end a round only if the next can be larger; until then they are told why
not.

While no round is declared, members may still keep places in one that the service has forgotten (``kept_round``): if
that round is whole it goes on, before anything else is begun.

With --preflight a node that is broken or slow (``preflight_gate``) is left out of a round if the others are enough, and
is not let in before that round is over.

The invariants that it keeps, I1 to I7, are in docs/internals/rendezvous.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Literal

from msgspec.structs import replace

from rdzv_plugins.elastic.keys import Assignment, Finishing, Member, Round
from rdzv_plugins.elastic.leading.kept_round import KeptRound
from rdzv_plugins.elastic.leading.placement import (
    Former,
    Order,
    Rules,
    choose,
    other_address,
    plan,
    size_of,
    why_spare,
)
from rdzv_plugins.elastic.leading.preflight_gate import Judgement, is_broken, judge
from rdzv_plugins.elastic.leading.quorum import Quorum, begun_at
from rdzv_plugins.elastic.leading.roster import Roster, in_the_way, to_reach, unreachable


@dataclass
class Decisions:
    """What the leader has to publish: ``assignments`` by node, then ``round``; one that is over comes first."""

    assignments: dict[str, Assignment] = field(default_factory=dict)
    round: Round | None = None
    forget: tuple[str, ...] = ()  # nodes whose assignments are no longer of use
    notices: tuple[str, ...] = ()  # what people should know about nodes that were left out or refused
    finishing: Finishing | None = None
    """A node that was done has gone, and could not say so itself: whoever waits for a place has to know."""


Step = Literal["join", "serve", "reach", "complete"]


class Membership:
    """One leader's view. Not thread-safe.

    It starts from the keys: ``declared`` is the newest round, ``assignments`` are all that were made, by node. A round
    that was begun and never declared complete is given up.
    """

    def __init__(
        self,
        rules: Rules,
        order: Order,
        declared: Round | None = None,
        assignments: Mapping[str, Assignment] | None = None,
        *,
        has_begun: bool = False,
        first_here: bool = True,
        mark: str = "",
    ) -> None:
        """``has_begun``: this endpoint, one of several, remembers a round. ``first_here``: see ``Quorum``.

        ``mark`` identifies this leader's rounds, and this endpoint (``quorum.begun_at``): another leader may give the
        same numbers at another endpoint.
        """
        held = assignments or {}
        self._rules = rules
        self._shape = rules.shape
        self._order = order
        self._roster = Roster(rules.max_nodes, rules.duplicate, held)
        self.members: Mapping[str, Member] = self._roster.members  # the living members, in order of arrival
        self.round = declared or Round()  # the newest declared round
        self._number = max([self.round.number, *(each.round for each in held.values())])
        self._step: Step = "complete" if self.round.state == "complete" else "join"
        self._places = {n: a for n, a in held.items() if a.round == self.round.number and a.is_place}
        """The places of the newest complete round, including those of lost nodes."""
        given = {n: a for n, a in held.items() if a.is_place}
        self._former = Former.before(self._places, given)
        self._stale = {n for n in held if n not in self._places}
        self._plan: dict[str, Assignment] = {}
        self._to_reach: dict[str, None] = {}
        self._came = ""  # the node for whose sake the last round is over
        self._act_by: float | None = None  # how long a node may take to join again, or to act on its place
        self._last_call_at: float | None = None
        self._finishing = False  # a node of the round was done and has left
        self._all_known = self._step != "complete"  # nobody is welcome before all nodes that have a place are known
        self._kept = KeptRound(rules.back, given, one_place=not rules.majority) if declared is None else None
        self._mark = mark
        self._quorum: Quorum | None = None
        if rules.majority:
            self._quorum = Quorum(self.round, self._places, begun_at(mark), has_begun=has_begun, first_here=first_here)
        self._gather_by: float | None = None
        """Several endpoints: how long the nodes of a round that was declared elsewhere wait for each other."""
        self._gathered = self.round.number  # the round for whose nodes there is no more waiting
        self._judged = Judgement()  # With --preflight: whom the round is formed without, until it is over
        self._to_retest: set[str] = set()
        """With --preflight: who was left out of the round that is over, and has not tested itself again."""
        self._out = Decisions()

    @property
    def settled(self) -> bool:
        """True when nothing is waited for: the nodes of a round work, or the job has failed."""
        return self._step == "complete" or self.round.state == "failed"

    def working(self) -> list[Member]:
        """The living members of the round that is complete; empty while there is none."""
        here = self._places if self._step == "complete" else ()
        return [self.members[node] for node in here if node in self.members]

    def changed(self, member: Member, now: float) -> None:
        """A member has come, or says something new about itself."""
        if self._quorum is not None:
            self._hear(self._quorum, member, now)
        if member.leaving:
            self.gone(member.node_id, now, member.leaving, member.reason)
            return
        node = member.node_id
        if member.checked >= self.round.number:
            self._to_retest.discard(node)
        if not self._roster.take(member, now, self._number):
            return
        if self._kept is not None:
            self._kept.take(member, now)
        if self._quorum is not None and node in self._plan and self._quorum.went_elsewhere(self._plan[node]):
            self._give_up()
        if member.kept is not None:
            return  # it works, or has not heard yet that it should not
        if node not in self._places or member.after >= self.round.number:
            self._join(member, now)
        if self._step == "serve" and node in self._plan and member.store and member.store[0] == self._number:
            self._place(member.store, now)
        elif self._step == "reach" and node in self._to_reach and self._tells_of_plan(member):
            self._has_reached(member, now)

    def _tells_of_plan(self, member: Member) -> bool:
        """Whether it has dialled the store of the round being formed, with or without success."""
        if member.reached != self._number or self._quorum is None or member.unreachable:
            return member.reached == self._number
        return self._quorum.has_reached(self._plan[member.node_id])

    def gone(self, node: str, now: float, how: str = "lost", reason: str = "") -> None:
        """A member's key has gone, or the member leaves. Once it has left, the end of its key is no news."""
        member = self._roster.remove(node)
        if member is None:
            return
        self._to_retest.discard(node)
        if self._kept is not None:
            self._kept.gone(member, done=how == "done" or (how == "lost" and not reason))
        if self._step in ("serve", "reach") and node in self._plan:
            self._roster.left_out.failed(member, now)
            self._give_up()
        elif self._step == "join" and node == self._came:
            self._roster.left_out.failed(member, now)
        elif self._step == "complete" and node in self._places:
            done = how == "done" or (how == "lost" and not reason and member.done == self.round.number)
            if done:
                self._finishing = True
                if how == "lost":
                    self._out.finishing = Finishing(self.round.number, member.name)
            else:
                what = "has failed" if how == "failed" else "was lost"
                self._roster.left_out.failed(member, now)
                self._over("lost", f"{member.name} {what}{f': {reason}' if reason else ''}", now)
        if node not in self._places:
            self._stale.add(node)

    def proved(self, node: str) -> None:
        """The process of a node that is a member here, or was until its end, is proved gone; its end may come later."""
        if self._quorum is not None:
            self._quorum.stays(node)

    def all_known(self, now: float, *, finishing: bool) -> None:
        """All living members have been named by ``changed``: to a leader taking over, those missing are lost.

        ``finishing``: a node has left because it was done; then those that are missing are taken to have done the same.
        """
        self._finishing = self._finishing or finishing  # the last leader may have been done: its end was just heard
        self._all_known = True
        lost = [each for node, each in self._places.items() if node not in self.members]
        if self._step == "complete" and lost and not self._finishing:
            self._over("lost", f"{lost[0].name} was lost, and with it the leader of the rendezvous", now)
        if self.round.state == "over":
            self._act_by = now + self._rules.rejoin
        self._welcome_spares(now)
        self.tick(now)

    def tick(self, now: float) -> None:
        """Time has passed, and all news of the members has been fed in. Begins a round if possible."""
        self._roster.refuse_duplicates(now, self._places, self._number)
        for member in self._roster.let_in(now):
            self._join(member, now)
        waits = self._look_for_kept(now) or self._gathers(now)
        self._press_on(now)
        can_begin = self._step == "join" and self.round.state != "failed" and not waits
        if can_begin and self._all_here(now) and self._passes():
            self._last_call_at = None
            self._begin(now)
        self._tell_spares()

    def deadline(self) -> float | None:
        """When to call ``tick`` at the latest."""
        pressing = self._act_by if self._is_late() else None
        roster = self._roster
        back = self._kept.until if self._kept is not None else None
        joining = self._step == "join"
        gather = self._gather_by if joining else None
        # it may have passed when something else came first, and then it decides nothing
        last_call = self._last_call_at if joining and self._is_first and back is None and gather is None else None
        deadlines = (gather, last_call, roster.claims.deadline(), roster.left_out.deadline(), pressing, back)
        return min((at for at in deadlines if at is not None), default=None)

    def decide(self) -> Decisions:
        """What has been decided since the last call."""
        out, self._out = self._out, Decisions()
        words, out.notices = self._roster.words()
        out.assignments |= words
        out.forget = self._forgotten()
        return out

    def facts(self) -> str:
        """Who has joined and who is missing, as far as anybody can know."""
        if self._kept is not None and self._kept.until is not None:
            return self._kept.facts()
        if self._step == "reach":
            return to_reach([self.members[node] for node in self._to_reach], len(self._plan))
        roster = self._roster
        chosen = roster.waiting if self._shape.is_free else [member.node_id for member in self._choose()]
        few = self._quorum.facts(chosen, roster.members) if self._quorum is not None else ""
        return roster.facts(self._rules, self._places, few)

    def _over(self, cause: Literal["lost", "asked", "came"], why: str, now: float) -> None:
        """The round is over: its members have to join again."""
        which = Round(self.round.number, world=self.round.world)
        if self._quorum is not None:  # it binds whoever leads here next, when all its places have been overwritten
            which = self.round
        self._declare(replace(which, state="over", reason=why, cause=cause))
        self._step, self._act_by = "join", now + self._rules.rejoin
        self._to_retest = {node for node in self._judged.left_out if node in self.members}
        self._judged = Judgement()

    def _look_for_kept(self, now: float) -> bool:
        """The service has forgotten the round in which members work: does that go on? True: it is too early to say."""
        kept = self._kept
        verdict = kept.verdict(now) if kept is not None else "none"
        if kept is None or verdict == "none":
            return False
        if self._step != "join":
            self._give_up()
        if verdict == "wait":
            return True
        self._number = max(self._number, kept.number)
        self._plan = kept.places
        self._out.assignments = dict(self._plan)
        first = next(iter(self._plan.values()), Assignment(kept.number))
        if verdict == "whole":
            self._complete(first, now)
            gone = [place for node, place in self._places.items() if node not in self.members]
            self._finishing = bool(gone)
            self._out.finishing = Finishing(first.round, gone[0].name) if gone else None
        else:
            self._places, self._former, self._plan = self._plan, Former(self._plan), {}
            store = first.master_addr, first.master_port
            self.round = Round(first.round, "none", first.world, "", "", *store, first.begun)
            self._over("lost", f"the rendezvous has lost its memory, and {kept.reason}", now)
        return False

    def _hear(self, quorum: Quorum, member: Member, now: float) -> None:
        quorum.heard(member)
        if member.leaving:
            quorum.stays(member.node_id)
        known = max(self._gathered, self.round.number)
        if self._gather_by is None and any(seat.complete and seat.round > known for seat in member.seats):
            self._gather_by = now + self._rules.back

    def _gathers(self, now: float) -> bool:
        """Whether nodes of a round that was declared elsewhere are still to come, and there is time."""
        if self._gather_by is None or self._quorum is None:
            return False
        if now >= self._gather_by or self._quorum.all_come(self._roster.waiting, self.members):
            self._gather_by, self._gathered = None, self._quorum.last(self.members)
            return False
        return True

    @property
    def _is_first(self) -> bool:
        """Whether there was no round before, here or elsewhere."""
        return self.round.number == 0 and (self._quorum is None or not self._quorum.knows)

    def _give_up(self) -> None:
        """The round being formed has lost a member: those that live still wait for one."""
        self._step, self._plan, self._to_reach, self._out.assignments = "join", {}, {}, {}

    def _join(self, member: Member, now: float) -> None:
        """Take in a node that waits for a round: one in the complete round wants another, or a newcomer wants in."""
        node = member.node_id
        self._roster.wait(member)
        if self._step != "complete":
            return
        if node not in self._places:
            if self._all_known:
                self._welcome(member, now)
            return
        cut_off = member.cut_off == self.round.number
        self._over("lost" if cut_off else "asked", f"{member.name} {member.reason or 'asked for a new round'}", now)
        if cut_off:
            self._roster.left_out.failed(member, now)
            if self._roster.left_out.is_due_later(member, now):
                self._roster.leave_out(node, f"it {member.reason}, again and again", self._number)

    def _welcome(self, member: Member, now: float) -> None:
        """A newcomer ends the round if there is room, but not if a node was already done: the others are about to be.

        It first has to show that it can dial the workers' store, so that one that cannot, or that stands still, costs
        the working nodes nothing.
        """
        here = [node for node in self._places if node in self.members]
        finishing = self._finishing or any(self.members[node].done == self.round.number for node in here)
        taken = self._roster.claims.doubled(member.node_rank)
        unfit = is_broken(member) or member.node_id in self._judged.left_out
        if not here or len(here) >= self._rules.max_nodes or finishing or taken or unfit:
            return
        has_dialled = member.reached == self.round.number
        ahead = min(member.after, member.known) >= self.round.number  # which the service has forgotten
        if has_dialled and member.unreachable:
            store = f"{self.round.master_addr} port {self.round.master_port}"
            self._roster.notices.append(
                f"{member.name} is left out: it cannot reach the workers' store at {store}: {member.unreachable}"
            )
        elif (has_dialled or ahead) and self._grows(here):  # it does not knock at a round before its own
            self._came = member.node_id
            self._over("came", f"{member.name} has come", now)

    def _grows(self, here: list[str]) -> bool:
        """Whether the next round would be larger than ``here``, counting those that have shown that they can get in."""
        if self._shape.is_free:
            return True
        number = self.round.number
        able = [
            member
            for node, member in self.members.items()
            if node in self._places
            or (node in self._roster.waiting and member.reached == number and not member.unreachable)
            or (node in self._roster.waiting and min(member.after, member.known) >= number)
        ]
        return size_of(able, self._former, self._shape) > len(here)

    def _tell_spares(self) -> None:
        """Tell the nodes that wait beside a round why, unless it is only that all places are taken."""
        if self._shape.is_free or self._step != "complete" or not self._roster.waiting:
            return
        waiting, most = self._roster.waiting, self._rules.max_nodes
        here = [node for node in self._places if node in self.members]
        able = [m for node, m in self.members.items() if node in self._places or node in waiting]
        if len(here) < most and size_of(able, self._former, self._shape) > len(here):
            return  # they only have to dial its store
        domains = Counter(member.domain for member in able)
        for node in waiting:
            self._roster.tell_spare(node, why_spare(self.members[node], domains, len(here), self._shape), self._number)

    def _welcome_spares(self, now: float) -> None:
        for node in list(self._roster.waiting):
            if self._step == "complete" and node in self.members:
                self._welcome(self.members[node], now)

    def _all_here(self, now: float) -> bool:
        """Whether everybody who is to be waited for has joined."""
        if not self._enough():
            self._last_call_at = None
            return False
        if not self._is_first:  # a later round: the living nodes, and no waiting for strangers
            return self._roster.all_wait and not self._to_retest
        if self._could_be() >= self._rules.max_nodes:
            return True
        if self._last_call_at is None:
            self._last_call_at = now + self._rules.last_call
        return now >= self._last_call_at

    def _could_be(self, without: Collection[str] = ()) -> int:
        """How many nodes a round could have, from those that wait."""
        shape, count = self._shape, self._roster.count(len(without))
        most = min(count - count % shape.unit, shape.most)
        if shape.per_domain == 1 or most < self._rules.min_nodes:
            return most
        return min(most, size_of(self._waiting(without), self._former, shape))

    def _enough(self, without: Collection[str] = ()) -> bool:
        return self._could_be(without) >= self._rules.min_nodes

    def _passes(self) -> bool:
        """Whether a round can be formed as far as --preflight goes. Says whom it is formed without, and why."""
        factor = self._rules.preflight_factor
        if factor is None:
            return True
        found = judge(self._waiting(), factor, self._roster.count() - self._rules.min_nodes)
        for word in (*found.left_out.values(), *found.words):
            if word not in (*self._judged.left_out.values(), *self._judged.words):
                self._roster.notices.append(word)
        self._judged = found
        if found.fatal:
            self._number += 1
            self._declare(Round(self._number, "failed", len(self._roster.waiting), found.fatal, unfit=True))
        return not found.fatal

    def _is_late(self) -> bool:
        """Whether a living node does not do its part while the others can do without it: then ``_act_by`` counts."""
        if self._step == "join":
            waits = not self._roster.all_wait or bool(self._to_retest)
            return self.round.number > 0 and waits and self._enough()
        return self._step != "complete"

    def _press_on(self, now: float) -> None:
        """Go on without the living nodes that do not do their part."""
        if not self._is_late() or self._act_by is None or now < self._act_by:
            return
        joining = self._step == "join"
        self._to_retest.clear()
        after = self.round.number if joining else 0
        why = f"it has not joined again after round {after}" if joining else "it does not answer"
        if joining:
            late = [node for node in self.members if self._roster.is_awaited(node)]
        else:
            late = [next(iter(self._plan))] if self._step == "serve" else list(self._to_reach)
        for node in late:
            self._leave_out(node, f"{why} for {self._rules.rejoin:g} s", now, silent_after=after)
        if not joining:
            self._give_up()
            self._last_call_at = now  # of a first round: it was over when this one began

    def _leave_out(self, node: str, why: str, now: float, *, silent_after: int | None = None) -> None:
        """Leave out a living node that is in the way."""
        self._roster.left_out.failed(self.members[node], now, lives=True)
        self._roster.leave_out(node, why, self._number, silent_after=silent_after)

    def _begin(self, now: float) -> None:
        quorum, newest = self._quorum, 0
        if quorum is not None and (last := quorum.last(self.members)) >= self.round.number:
            # not all nodes of a kept round may have been here when it was over: they say their places themselves
            known = self._former if last == self.round.number else None
            self._former = Former(quorum.former(self.members), known)
        # a node that could not dial the last store will hardly reach the next: not if there are enough others
        cannot, unfit = self._roster.cannot, set(self._judged.left_out)
        chosen = self._choose(unfit | (cannot if self._enough(cannot | unfit) else set()))
        if len(chosen) < self._rules.min_nodes:
            return
        if quorum is not None:
            if not quorum.has([member.node_id for member in chosen], self.members):
                chosen = self._choose(unfit)
            if not quorum.has([member.node_id for member in chosen], self.members):
                return
            newest = quorum.newest(self.members)
            quorum.begin(member.node_id for member in chosen)
        # after losing its memory, a service numbers on from what its members were in, even if they have not left it yet
        heard = self._kept.number if self._kept is not None else 0
        self._number = max(self._number, heard, newest, *(member.newest for member in chosen)) + 1
        self._plan = plan(self._number, chosen, self._former, self._order)
        if self._mark:
            self._plan = {n: replace(a, begun=self._mark) for n, a in self._plan.items()}
        self._roster.place(self._plan)
        self._step, self._act_by = "serve", now + self._rules.rejoin
        if self._kept is not None:
            self._kept.begin(self._plan)
        first = next(iter(self._plan.values()))
        publish = other_address(self.members[first.node_id], chosen, self.members.values())
        self._out.assignments[first.node_id] = replace(first, publish=publish)

    def _choose(self, without: Collection[str] = ()) -> list[Member]:
        return choose(self._waiting(without), self._former, self._shape)

    def _waiting(self, without: Collection[str] = ()) -> list[Member]:
        willing = self._roster.waiting.difference(without)
        return [member for node, member in self.members.items() if node in willing]

    def _place(self, store: tuple[int, str, int], now: float) -> None:
        """Rank 0 serves the store: give everybody its place."""
        _, address, port = store
        self._plan = {n: replace(a, master_addr=address, master_port=port) for n, a in self._plan.items()}
        if self._kept is not None:
            self._kept.begin(self._plan)
        self._step, self._to_reach, self._act_by = "reach", dict.fromkeys(self._plan), now + self._rules.rejoin
        self._out.assignments.update(self._plan)

    def _has_reached(self, member: Member, now: float) -> None:
        """Note that a node tried to dial the store. Once all have, the round is complete or a node is in the way."""
        self._to_reach.pop(member.node_id, None)
        if self._to_reach:
            return
        cannot = [node for node in self._plan if self.members[node].unreachable]
        if cannot:
            self._do_without(cannot, now)
            return
        self._complete(next(iter(self._plan.values())), now)

    def _complete(self, first: Assignment, now: float) -> None:
        """Declare the round complete: the nodes of the plan work."""
        self._stale |= self._places.keys() - self._plan.keys()
        self._places, self._former = self._plan, Former(self._plan)
        self._plan = {}
        self._roster.waiting -= self._places.keys()
        self._roster.cannot &= self._roster.waiting
        self._step, self._act_by, self._came = "complete", None, ""
        self._stale -= self._places.keys()
        self._finishing = False
        self._roster.left_out.entered(self._places, now)
        # one that has since come back may have belonged to the previous round, and not know that it is over
        self._roster.waiting |= {node for node in self.members if self._roster.is_awaited(node)} - self._places.keys()
        here = (self.members[node] for node in self._places if node in self.members)
        server = next((self._places[member.node_id].rank for member in here if member.serves), -1)
        store = first.master_addr, first.master_port
        self._declare(Round(first.round, "complete", len(self._places), "", "", *store, first.begun, server))
        if self._quorum is not None:
            self._quorum.declare(self.round, self._places)
        self._welcome_spares(now)  # nodes that came while the round was formed, and for which there is room

    def _do_without(self, cannot: list[str], now: float) -> None:
        """Some could not dial the store: either they or the node that serves it are in the others' way."""
        cut_off = [self.members[node] for node in cannot]
        reasons = in_the_way(cut_off, list(self._plan.values()))
        if self._is_first and not self._enough(reasons.keys()):
            why = f"{cut_off[0].name} {unreachable(cut_off[0], next(iter(self._plan.values())))}"
            self._declare(Round(self._number, "failed", len(self._plan), why))
            self._give_up()
            return
        for node, why in reasons.items():
            self._leave_out(node, why, now)
        self._give_up()
        self._last_call_at = now  # of a first round: it was over when this one began

    def _declare(self, round_: Round) -> None:
        self.round = self._out.round = round_
        self._kept = None  # from now on the service knows

    def _forgotten(self) -> tuple[str, ...]:
        if self._number > self.round.number:
            return ()  # nothing else remembers that this number was given: it must not be given twice
        gone = tuple(sorted(self._stale - self.members.keys()))
        self._stale -= set(gone)
        return gone
