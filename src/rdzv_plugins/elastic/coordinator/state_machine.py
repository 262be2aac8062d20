"""Who is in which round: the coordinator's state machine. No sockets, no threads, no clock of its own.

``RoundStateMachine.advance`` takes what has happened (``Event``) and the time, and returns what to publish
(``RoundUpdate``), and why. A round goes through four states, each a value that holds what is meant in it:

1. ``Forming``: nodes join, until there are enough;
2. ``Serving``: the members are chosen; the one with rank 0 is asked to serve the workers' store;
3. ``Connecting``: every member learns its place and the store's address, and dials it;
4. ``Working``: all have reached it, and the round is complete. The workers start.

If a member or the coordinator is lost during 2 or 3, the round is given up and a new one with a higher number takes its
place. A round is *over* when a member is lost or asks for a new round, or when there is room for a newcomer that has
dialled the store; then all living nodes join again.

A node that cannot take part does not stop the others while they are enough: if it cannot dial the store, does not join
again or answer in time, or spoils one round after another, it is left out for a while (``member_table``). Only a first
round that is too small without those that cannot dial its store fails, and says who cannot reach whom.

If rounds have a unit, or domains a minimum number of nodes (``placement``), *enough* means that a round of
``min_nodes`` can be formed from those that wait. Newcomers end a round only if the next can be larger; until then they
are told why not.

What not every job has is a ``Gate``: it is told what is heard, and asked before a round is begun. While no round is
declared, members may keep places in one that the service has forgotten (``round_recovery``): if that round is whole it
goes on. With several endpoints a round needs more than half of the nodes of the last one (``quorum``). With --preflight
a broken or slow node is left out of a round if the others are enough, until that round is over (``preflight_gate``).

The invariants that it keeps, I1 to I7, are in docs/internals/rendezvous.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

from msgspec import structs

from rdzv_plugins.elastic.coordinator import gates, placement
from rdzv_plugins.elastic.coordinator.gates import ForgottenRound, Gate, Places, Proposal, ProvedGone, Wait
from rdzv_plugins.elastic.coordinator.member_table import MemberTable, in_the_way, unreachable
from rdzv_plugins.elastic.coordinator.placement import Order, PreviousAssignment, Rules
from rdzv_plugins.elastic.coordinator.round_recovery import RoundRecovery
from rdzv_plugins.elastic.keys import Assignment, Finishing, Member, Round
from rdzv_plugins.plain_text import some


class KeyGone(NamedTuple):
    """A member's key has gone, and with it its session."""

    node: str


class InitialListDone(NamedTuple):
    """All living members have been named: to a coordinator that takes over, those of the round that miss are lost."""

    finishing: bool  # a node has left because it was done; then those that are missing are taken to have done the same


Event = Member | KeyGone | ProvedGone | InitialListDone
"""A member has come or says something new about itself; or what has become of a node."""


@dataclass
class RoundUpdate:
    """What to publish: ``assignments`` by node, then ``round``; one that is over comes first."""

    assignments: dict[str, Assignment] = field(default_factory=dict)
    round: Round | None = None
    forget: tuple[str, ...] = ()  # nodes whose assignments are no longer of use
    notices: tuple[str, ...] = ()  # what people should know about nodes that were left out or refused
    finishing: Finishing | None = None
    """A node that was done has gone, and could not say so itself: whoever waits for a place has to know."""


@dataclass(frozen=True)
class Forming:
    """Nobody works: nodes join, and no round has been begun."""

    act_by: float | None = None
    """After a round: how long a node may take to join again."""
    last_call_at: float | None = None  # of a first round: when it begins without waiting for more nodes
    came: str = ""  # the node for whose sake the last round is over


@dataclass(frozen=True)
class Serving:
    """The node of rank 0 has been asked to serve the workers' store."""

    plan: Places
    act_by: float  # how long it may take
    came: str  # as in ``Forming``, in case that this comes to nothing


@dataclass(frozen=True)
class Connecting:
    """Every node of the round dials the workers' store."""

    plan: Places
    act_by: float
    came: str
    to_reach: dict[str, None]  # those that have not yet: the one thing that changes, as there may be thousands


@dataclass(frozen=True)
class Working:
    """The round is complete."""

    finishing: bool = False  # a node of it was done and has left


RoundState = Forming | Serving | Connecting | Working


class RoundStateMachine:
    """One coordinator's view. Not thread-safe. Times are its own monotonic seconds.

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

        ``mark`` identifies this coordinator's rounds, and this endpoint (``quorum.begun_at``): another one may give the
        same numbers at another endpoint.
        """
        held = assignments or {}
        self._rules, self._order, self._mark = rules, order, mark
        self._table = MemberTable(rules, held)
        self.members: Mapping[str, Member] = self._table.members  # the living members, in order of arrival
        self.round = declared or Round()  # the newest declared round
        self._number = max([self.round.number, *(each.round for each in held.values())])  # of the newest one begun
        self._heard_of = 0  # the newest one that any member has heard of: numbers go on from there
        self._state: RoundState = Working() if self.round.state == "complete" else Forming()
        self._places: Places = {n: a for n, a in held.items() if a.round == self.round.number and a.is_place}
        """The places of the newest complete round, including those of lost nodes."""
        given = {n: a for n, a in held.items() if a.is_place}
        # a node that had no place there has one from a round begun after it, if that rank was nobody else's
        taken = {place.rank for place in self._places.values()}
        self._former = PreviousAssignment({n: a for n, a in given.items() if n in self._places or a.rank not in taken})
        self._stale = {n for n in held if n not in self._places}
        self._all_known = isinstance(self._state, Forming)
        """Nobody is welcome before all nodes that have a place are known."""
        self._unfit: Collection[str] = ()  # the nodes without which a gate has had the newest round formed
        self._gates: list[Gate] = []
        self._waits: list[Wait] = []  # what the gates have said to the last batch of events
        self._out = RoundUpdate()
        if declared is None:
            self._gates.append(RoundRecovery(rules.back, given, one_place=not rules.majority))
        if rules.majority:
            from rdzv_plugins.elastic.coordinator.quorum import Quorum, begun_at  # needed only with several endpoints

            here, window = begun_at(mark), rules.back
            self._gates.append(
                Quorum(self.round, self._places, here, window=window, has_begun=has_begun, first_here=first_here)
            )
        if rules.preflight_factor is not None:
            from rdzv_plugins.elastic.coordinator.preflight_gate import Preflight  # needed only with --preflight

            self._gates.append(Preflight(rules.preflight_factor, self.members))

    # what it says when it is asked

    @property
    def settled(self) -> bool:
        """True when nothing is waited for: the nodes of a round work, or the job has failed."""
        return isinstance(self._state, Working) or self.round.state == "failed"

    def working(self) -> list[Member]:
        """The living members of the round that is complete; empty while there is none."""
        return [self.members[node] for node in self._here()] if isinstance(self._state, Working) else []

    def _here(self) -> list[str]:
        """The living nodes of the newest complete round."""
        return [node for node in self._places if node in self.members]

    def deadline(self) -> float | None:
        """When to call ``advance`` at the latest."""
        state = self._state
        # it may have passed when something else came first, and then it decides nothing
        last_call = state.last_call_at if isinstance(state, Forming) and self._is_first and not self._waits else None
        deadlines = (*(wait.until for wait in self._waits), last_call, self._table.deadline(), self._press_at())
        return min((at for at in deadlines if at is not None), default=None)

    def facts(self) -> str:
        """Who has joined and who is missing, as far as anybody can know."""
        if said := next(filter(None, (gate.facts() for gate in self._gates)), ""):
            return said
        if isinstance(self._state, Connecting):
            names = [self.members[node].name for node in self._state.to_reach]
            return f"{len(names)} of {len(self._state.plan)} nodes have yet to reach the workers' store: {some(names)}"
        chosen = self._table.waiting if self._rules.any_will_do else [member.node_id for member in self._choose()]
        return self._table.facts(self._places, self._objection(chosen))

    # what has happened

    def advance(self, events: Iterable[Event], now: float) -> RoundUpdate:
        """Take in what has happened, and begin a round if possible. Without events time has passed."""
        for event in events:
            match event:
                case Member():
                    self._changed(event, now)
                case KeyGone(node):
                    self._gone(node, now)
                case ProvedGone():
                    self._tell_gates(event, now)
                case InitialListDone(finishing):
                    self._take_over(now, finishing=finishing)
        self._table.refuse_duplicates(now, self._places)
        for member in self._table.let_in(now):
            self._join(member, now)
        self._ask_gates(now)
        self._press_on(now)
        if isinstance(self._state, Forming) and self.round.state != "failed" and not self._waits:
            self._form(self._state, now)
        self._tell_spares()
        out, self._out = self._out, RoundUpdate()
        words, out.notices = self._table.words(self._number)
        out.assignments |= words
        out.forget = self._forgotten()
        return out

    def _forgotten(self) -> tuple[str, ...]:
        if self._number > self.round.number:
            return ()  # nothing else remembers that this number was given: it must not be given twice
        gone = tuple(sorted(self._stale - self.members.keys()))
        self._stale -= set(gone)
        return gone

    def _take_over(self, now: float, *, finishing: bool) -> None:
        self._all_known = True
        if isinstance(self._state, Working):
            # the last coordinator may have been done: its end was just heard
            self._state = Working(self._state.finishing or finishing)
            lost = [each for node, each in self._places.items() if node not in self.members]
            if lost and not self._state.finishing:
                self._over("lost", f"{lost[0].name} was lost, and with it the rendezvous leader", now)
        if isinstance(self._state, Forming) and self.round.state == "over":
            self._state = replace(self._state, act_by=now + self._rules.rejoin)
        self._welcome_spares(now)

    def _changed(self, member: Member, now: float) -> None:
        """A member has come, or says something new about itself."""
        node = member.node_id
        takes_part = not member.leaving and self._table.take(member, now)
        if takes_part or self._rules.majority:  # one that is refused or left out decides nothing
            self._heard_of = max(self._heard_of, member.newest)
        spoilt = self._tell_gates(gates.MemberHeard(member, takes_part), now)
        if member.leaving:
            self._gone(node, now, member.leaving, member.reason)
        if not takes_part:
            return
        if spoilt:
            self._give_up()
        if member.kept is not None:
            return  # it works, or has not heard yet that it should not
        if node not in self._places or member.last_round >= self.round.number:
            self._join(member, now)
        match self._state:
            case Serving() as state if node in state.plan and member.store and member.store[0] == self._number:
                self._serve(state, member.store, now)
            case Connecting() as state if node in state.to_reach and self._tells_of(state.plan[node], member):
                self._has_reached(member, state, now)

    def _gone(self, node: str, now: float, how: str = "lost", reason: str = "") -> None:
        """A member's key has gone, or the member leaves. Once it has left, the end of its key is no news."""
        member = self._table.remove(node)
        if member is None:
            return
        self._tell_gates(gates.MemberGone(member, done=how == "done" or (how == "lost" and not reason)), now)
        match self._state:
            case Serving(plan) | Connecting(plan) if node in plan:
                self._table.quarantine.failed(member, now)
                self._give_up()
            case Forming(came=came) if node == came:
                self._table.quarantine.failed(member, now)
            case Working() if node in self._places:
                self._worker_gone(member, now, how, reason)
        if node not in self._places:
            self._stale.add(node)

    def _worker_gone(self, member: Member, now: float, how: str, reason: str) -> None:
        """A node of the round that works has gone: the round is over, unless it was done."""
        if how == "done" or (how == "lost" and not reason and member.finished_round == self.round.number):
            self._state = Working(finishing=True)
            if how == "lost":
                self._out.finishing = Finishing(self.round.number, member.name)
            return
        what = "has failed" if how == "failed" else "was lost"
        self._table.quarantine.failed(member, now)
        self._over("lost", f"{member.name} {what}{f': {reason}' if reason else ''}", now)

    def _tell_gates(self, event: gates.GateEvent, now: float) -> bool:
        """Returns whether one of them wants the round being formed to be given up."""
        return True in [gate.observe(event, now) for gate in self._gates]

    # nobody works: before a round

    def _ask_gates(self, now: float) -> None:
        """Is it too early for a round? Or does the one go on that the service has forgotten?"""
        self._waits = []
        for gate in tuple(self._gates):
            match gate.check(self._table.waiting, self.members, now):
                case Wait() as wait:
                    self._waits.append(wait)
                    if wait.gives_up:
                        self._give_up()
                case ForgottenRound() as found:
                    self._give_up()
                    self._restore(found, now)

    def _restore(self, found: ForgottenRound, now: float) -> None:
        """The round that the service has forgotten goes on, or is over."""
        self._number = max(self._number, found.number)
        self._out.assignments = dict(found.places)
        first = next(iter(found.places.values()), Assignment(found.number))
        if not found.why_over:
            self._complete(found.places, now)
            gone = [place for node, place in self._places.items() if node not in self.members]
            if gone and isinstance(self._state, Working):  # it may be over already, as a node has come
                self._state = Working(finishing=True)
            self._out.finishing = Finishing(first.round, gone[0].name) if gone else None
        else:
            self._places, self._former = found.places, PreviousAssignment(found.places)
            store = first.master_addr, first.master_port
            self.round = Round(first.round, "none", first.world, "", "", *store, first.epoch)
            self._over("lost", f"the rendezvous has lost its memory, and {found.why_over}", now)

    @property
    def _is_first(self) -> bool:
        """Whether there was no round before, here or elsewhere."""
        return self.round.number == 0 and not any(gate.knows_of_round for gate in self._gates)

    def _press_at(self) -> float | None:
        """When the others go on without the living nodes that do not do their part; None if they cannot, or all do."""
        state = self._state
        if isinstance(state, Working):
            return None
        if isinstance(state, Forming) and not (self.round.number > 0 and self._some_await() and self._enough()):
            return None
        return state.act_by

    def _press_on(self, now: float) -> None:
        """Go on without the living nodes that do not do their part."""
        act_by = self._press_at()
        if act_by is None or now < act_by:
            return
        self._tell_gates(gates.FormingTimedOut(), now)
        match self._state:
            case Serving(places):
                late, why, after = [next(iter(places))], "it has not answered", 0
            case Connecting(to_reach=to_reach):
                late, why, after = list(to_reach), "it has not answered", 0
            case _:
                late, after = [node for node in self.members if self._table.is_awaited(node)], self.round.number
                why = f"it has not rejoined after round {after}"
        for node in late:
            self._leave_out(node, f"{why} for {self._rules.rejoin:g} s", now, silent_after=after)
        self._give_up(last_call_at=now)  # of a first round: it was over when this one began

    def _some_await(self) -> bool:
        """Whether living nodes of the last round have not joined again, or not done what they have to before."""
        return not self._table.all_wait or any(gate.awaits for gate in self._gates)

    def _leave_out(self, node: str, why: str, now: float, *, silent_after: int | None = None) -> None:
        """Leave out a living node that is in the way."""
        self._table.quarantine.failed(self.members[node], now, lives=True)
        self._table.leave_out(node, why, silent_after=silent_after)

    def _form(self, state: Forming, now: float) -> None:
        """Begin a round if everybody who is to be waited for has joined."""
        before_last_call = replace(state, last_call_at=None)
        if not self._enough():
            self._state = before_last_call
            return
        if not self._is_first:  # a later round: the living nodes, and no waiting for strangers
            all_here = not self._some_await()
        elif self._table.could_be(self._former) >= self._rules.max_nodes:
            all_here = True
        else:
            at = now + self._rules.last_call if state.last_call_at is None else state.last_call_at
            self._state = replace(state, last_call_at=at)
            all_here = now >= at
        if all_here:
            self._state = before_last_call
            self._begin(state.came, now)

    def _enough(self, without: Collection[str] = ()) -> bool:
        return self._table.could_be(self._former, without) >= self._rules.min_nodes

    def _begin(self, came: str, now: float) -> None:
        """Ask the node of rank 0 to serve the store, if these nodes may form a round. ``came``: see ``Forming``."""
        if self._gates and not self._pass_gates(now):
            return
        chosen = self._choose_round()
        if not chosen:
            return
        self._number = max(self._number, self._heard_of, *(each.newest for each in chosen)) + 1
        places = placement.plan(self._number, self._mark, chosen, self._former, self._order)
        self._table.place(places)
        self._state = Serving(places, now + self._rules.rejoin, came)
        self._tell_gates(gates.RoundPlanned(places), now)
        first = next(iter(places.values()))
        publish = placement.other_address(self.members[first.node_id], chosen, self.members.values())
        self._out.assignments[first.node_id] = structs.replace(first, publish=publish)

    def _pass_gates(self, now: float) -> bool:
        """Whether a round may be formed as far as the gates go. Says whom it is formed without, and why."""
        spares = self._table.count() - self._rules.min_nodes
        proposal = Proposal(self._table.candidates(), self.members, self.round.number, spares, self._former)
        for gate in self._gates:
            gate.review(proposal)
        self._former, self._unfit = proposal.former, proposal.unfit
        self._table.notices += proposal.notices
        if proposal.fatal:
            self._number += 1
            failed = Round(self._number, "failed", len(self._table.waiting), proposal.fatal, unfit=True)
            self._declare(failed, now)
        return not proposal.fatal

    def _choose_round(self) -> list[Member]:
        """The nodes of the next round; none if those that wait may form none."""
        unfit = set(self._unfit)
        # a node that could not dial the last store will hardly reach the next: not if there are enough others
        without = unfit | {member.node_id for member in self._table.candidates() if member.unreachable}
        for kept_out in (without if self._enough(without) else unfit, unfit):
            chosen = self._choose(kept_out)
            if len(chosen) >= self._rules.min_nodes and not self._objection([each.node_id for each in chosen]):
                return chosen
        return []

    def _objection(self, chosen: Collection[str]) -> str:
        """Why these nodes may not form a round; empty if they may."""
        return next(filter(None, (gate.objection(chosen, self.members) for gate in self._gates)), "")

    def _choose(self, without: Collection[str] = ()) -> list[Member]:
        return placement.choose(self._table.candidates(without), self._former, self._rules)

    # a round is being formed

    def _give_up(self, last_call_at: float | None = None) -> None:
        """The round being formed has lost a member: those that live still wait for one."""
        if isinstance(self._state, (Serving, Connecting)):
            self._state = Forming(self._state.act_by, last_call_at, self._state.came)
            self._out.assignments = {}

    def _serve(self, asked: Serving, store: tuple[int, str, int], now: float) -> None:
        """Rank 0 serves the store: give everybody its place."""
        _, address, port = store
        places = {n: structs.replace(a, master_addr=address, master_port=port) for n, a in asked.plan.items()}
        self._state = Connecting(places, now + self._rules.rejoin, asked.came, dict.fromkeys(places))
        self._out.assignments.update(places)

    def _tells_of(self, place: Assignment, member: Member) -> bool:
        """Whether it has dialled the store of the round being formed, with or without success."""
        if member.store_ready_round != self._number:
            return False
        # of several endpoints, another one's round may have that number: it counts if the node carries its vote
        is_this = not self._rules.majority or any(vote.which == place.which for vote in member.votes)
        return is_this or bool(member.unreachable)

    def _has_reached(self, member: Member, state: Connecting, now: float) -> None:
        """Note that a node tried to dial the store. Once all have, the round is complete or a node is in the way."""
        state.to_reach.pop(member.node_id, None)
        if state.to_reach:
            return
        cannot = [node for node in state.plan if self.members[node].unreachable]
        if cannot:
            self._do_without(cannot, state.plan, now)
            return
        self._complete(state.plan, now)

    def _do_without(self, cannot: list[str], places: Places, now: float) -> None:
        """Some could not dial the store: either they or the node that serves it are in the others' way."""
        cut_off = [self.members[node] for node in cannot]
        reasons = in_the_way(cut_off, list(places.values()))
        if self._is_first and not self._enough(reasons.keys()):
            why = f"{cut_off[0].name} {unreachable(cut_off[0], next(iter(places.values())))}"
            self._declare(Round(self._number, "failed", len(places), why), now)
            self._give_up()
            return
        for node, why in reasons.items():
            self._leave_out(node, why, now)
        self._give_up(last_call_at=now)  # of a first round: it was over when this one began

    def _complete(self, places: Places, now: float) -> None:
        """Declare the round complete: the nodes that have these places work."""
        self._stale = (self._stale | self._places.keys()) - places.keys()
        self._places, self._former = places, PreviousAssignment(places)
        self._table.waiting -= places.keys()
        self._state = Working()
        self._table.quarantine.entered(places, now)
        # one that has since come back may have belonged to the previous round, and not know that it is over
        self._table.waiting |= {node for node in self.members if self._table.is_awaited(node)} - places.keys()
        here = (self.members[node] for node in places if node in self.members)
        server = next((places[member.node_id].rank for member in here if member.serves), -1)
        first = next(iter(places.values()))
        store = first.master_addr, first.master_port
        self._declare(Round(first.round, "complete", len(places), "", "", *store, first.epoch, server), now)
        self._welcome_spares(now)  # nodes that came while the round was formed, and for which there is room

    def _declare(self, round_: Round, now: float) -> None:
        self.round = self._out.round = round_
        self._tell_gates(gates.RoundDeclared(round_, self._places), now)
        self._gates = [gate for gate in self._gates if not isinstance(gate, RoundRecovery)]  # now the service knows

    # a round works

    def _over(self, cause: Literal["lost", "asked", "came"], why: str, now: float, came: str = "") -> None:
        """The round is over: its members have to join again."""
        which = Round(self.round.number, world=self.round.world)
        if self._rules.majority:  # it binds whoever leads here next, when all its places have been overwritten
            which = self.round
        self._declare(structs.replace(which, state="over", reason=why, cause=cause), now)
        self._state = Forming(now + self._rules.rejoin, came=came)

    def _join(self, member: Member, now: float) -> None:
        """Take in a node that waits for a round: one in the complete round wants another, or a newcomer wants in."""
        node = member.node_id
        self._table.waiting.add(node)
        if not isinstance(self._state, Working):
            return
        if node not in self._places:
            if self._all_known:
                self._welcome(member, self._state, now)
            return
        cut_off = member.cut_off_round == self.round.number
        self._over("lost" if cut_off else "asked", f"{member.name} {member.reason or 'asked for a new round'}", now)
        if cut_off:
            self._table.quarantine.failed(member, now)
            if self._table.quarantine.until(member) > now:
                self._table.leave_out(node, f"it {member.reason}, repeatedly")

    def _welcome(self, member: Member, state: Working, now: float) -> None:
        """A newcomer ends the round if there is room, but not if a node was already done: the others are about to be.

        It first has to show that it can dial the workers' store, so that one that cannot, or that stands still, costs
        the working nodes nothing.
        """
        here = self._here()
        finishing = state.finishing or any(self.members[node].finished_round == self.round.number for node in here)
        taken = member.node_rank in self._table.disputed
        unfit = member.is_broken or member.node_id in self._unfit
        if not here or len(here) >= self._rules.max_nodes or finishing or taken or unfit:
            return
        if member.store_ready_round == self.round.number and member.unreachable:
            store = f"{self.round.master_addr} port {self.round.master_port}"
            self._table.notices.append(
                f"{member.name} is left out: it cannot reach the workers' store at {store}: {member.unreachable}"
            )
        elif self._can_get_in(member) and self._grows(here):
            self._over("came", f"{member.name} has joined", now, came=member.node_id)

    def _can_get_in(self, member: Member) -> bool:
        """Whether it has shown that it can dial the store of the round that works."""
        number = self.round.number
        # one ahead of the service does not knock at a round before its own
        ahead = min(member.last_round, member.known_round) >= number
        return ahead or (member.store_ready_round == number and not member.unreachable)

    def _grows(self, here: list[str], *, if_all_get_in: bool = False) -> bool:
        """Whether the next round would be larger than ``here``, counting those that have shown that they can get in."""
        if self._rules.any_will_do:
            return True
        waiting = self._table.waiting
        able = [
            member
            for node, member in self.members.items()
            if node in self._places or (node in waiting and (if_all_get_in or self._can_get_in(member)))
        ]
        return placement.size_of(able, self._former, self._rules) > len(here)

    def _welcome_spares(self, now: float) -> None:
        for node in list(self._table.waiting):
            if isinstance(self._state, Working) and node in self.members:
                self._welcome(self.members[node], self._state, now)

    def _tell_spares(self) -> None:
        """Tell the nodes that wait beside a round why, unless it is only that all places are taken."""
        waiting = self._table.waiting
        if self._rules.any_will_do or not isinstance(self._state, Working) or not waiting:
            return
        here = self._here()
        if len(here) < self._rules.max_nodes and self._grows(here, if_all_get_in=True):
            return  # they only have to dial its store
        domains = Counter(m.domain for node, m in self.members.items() if node in self._places or node in waiting)
        for node in waiting:
            why = placement.why_spare(self.members[node], domains, len(here), self._rules)
            self._table.tell_spare(node, why)
