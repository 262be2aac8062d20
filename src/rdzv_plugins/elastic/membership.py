"""Who is in which round: the state machine of the leader. No sockets, no threads, no clock of its own.

Events go in by ``changed`` (a member's key was written) and ``gone`` (it went), and after each batch of
them ``tick`` (time has passed), each with the leader's own monotonic time in seconds; decisions come out of
``decide``. A round goes through three steps:

1. *serve*: the members are chosen; the one with rank 0 is asked to serve the workers' store;
2. *reach*: every member learns its place and the store's address, and dials it;
3. *complete*: all have reached it. The workers start.

If a member is lost during 1 or 2, or the leader, the round is given up and a new one with a higher number
takes its place; if somebody cannot dial the store, the round fails with who cannot reach whom. A round is
*over* when a member is lost, asks for a new round, or a newcomer finds room; then all that live join again.

The invariants I1 to I7 that it keeps are in docs/explanation/elastic-rendezvous.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from rdzv_plugins.elastic import facts
from rdzv_plugins.elastic.claims import Claims
from rdzv_plugins.elastic.keys import Assignment, Member, Round
from rdzv_plugins.elastic.planning import choose, other_address, plan
from rdzv_plugins.elastic.ranks import Former, Order


@dataclass(frozen=True)
class Rules:
    """What the job asks for. Times in seconds."""

    min_nodes: int
    max_nodes: int
    last_call: float = 30.0
    """Further wait for more nodes once the minimum has joined a first round."""
    duplicate: float = 11.0
    """How long two nodes may claim the same given rank: one of them may be lost, and not yet known to be."""


@dataclass(frozen=True)
class Decisions:
    """What the leader is to publish: ``assignments`` by node, then ``round``; one that is over comes first."""

    assignments: Mapping[str, Assignment] = field(default_factory=dict)
    round: Round | None = None
    forget: tuple[str, ...] = ()
    """Nodes whose assignments are of no more use."""

    def __bool__(self) -> bool:
        return bool(self.assignments or self.round or self.forget)


Step = Literal["join", "serve", "reach", "complete"]


class Membership:
    """One leader's view. Not thread-safe.

    It starts from the keys: ``declared`` is the newest round, ``assignments`` all that were made, by node. A round
    that was begun and never declared complete is given up.
    """

    def __init__(
        self,
        rules: Rules,
        order: Order,
        declared: Round | None = None,
        assignments: Mapping[str, Assignment] | None = None,
    ) -> None:
        held = assignments or {}
        self._rules = rules
        self._order = order
        self.members: dict[str, Member] = {}
        """Those that live, in the order of their arrival."""
        self._declared = declared or Round()
        self._number = max([self._declared.number, *(each.round for each in held.values())])
        self._step: Step = "complete" if self._declared.state == "complete" else "join"
        self._places = {n: a for n, a in held.items() if a.round == self._declared.number and not a.refused}
        """Of the newest round that was complete, the lost ones included."""
        # who had no place there has one of a round that was begun after it, if that rank was nobody else's
        taken = {place.rank for place in self._places.values()}
        begun = {n: a for n, a in held.items() if not a.refused and a.rank not in taken}
        self._former = Former(begun | self._places)
        self._stale = {n for n in held if n not in self._places}
        self._plan: dict[str, Assignment] = {}
        self._to_reach: set[str] = set()
        self._waiting: set[str] = set()
        self._claims = Claims(rules.duplicate)
        self._refused: set[str] = set()
        self._last_call_at: float | None = None
        self._finishing = False  # a node of the round was done and has left
        self._all_known = self._step != "complete"  # nobody is welcome before all are known who have a place
        self._out_assignments: dict[str, Assignment] = {}
        self._out_round: Round | None = None

    @property
    def round(self) -> Round:
        """The newest round that was declared."""
        return self._declared

    @property
    def settled(self) -> bool:
        """Nothing is waited for: the nodes of a round work, or the job has failed."""
        return self._step == "complete" or self._declared.state == "failed"

    def working(self) -> list[Member]:
        """The living members of the round that is complete; empty while there is none."""
        here = self._places if self._step == "complete" else ()
        return [self.members[node] for node in here if node in self.members]

    def changed(self, member: Member, now: float) -> None:
        """A member has come, or says something new of itself."""
        if member.leaving:
            self.gone(member.node_id, now, member.leaving, member.reason)
            return
        node = member.node_id
        newcomer = node not in self.members
        if newcomer:
            self._claims.add(member, now)
        self.members[node] = member
        if node in self._refused:
            return
        if node not in self._places or member.after >= self._declared.number:
            self._waiting.add(node)
            if self._step == "complete" and node in self._places:
                cut_off = member.cut_off == self._declared.number
                self._over("lost" if cut_off else "asked", f"{member.name} {member.reason or 'asked for a new round'}")
            elif self._step == "complete" and newcomer and self._all_known:
                self._welcome(member)
        if self._step == "serve" and node in self._plan and member.store and member.store[0] == self._number:
            self._place(member.store)
        elif self._step == "reach" and node in self._to_reach and member.reached == self._number:
            self._has_reached(member)

    def gone(self, node: str, now: float, how: str = "lost", reason: str = "") -> None:
        """A member's key has gone, or the member leaves. Once it has left, its key's end is no news."""
        member = self.members.pop(node, None)
        if member is None:
            return
        self._waiting.discard(node)
        if node in self._refused:
            self._refused.discard(node)
        else:
            self._claims.remove(member)
        if self._step in ("serve", "reach") and node in self._plan:
            self._give_up()
        elif self._step == "complete" and node in self._places:
            done = how == "done" or (how == "lost" and not reason and member.done == self._declared.number)
            if done:
                self._finishing = True
            else:
                what = "has failed" if how == "failed" else "was lost"
                self._over("lost", f"{member.name} {what}{f': {reason}' if reason else ''}")
        if node not in self._places:
            self._stale.add(node)

    def all_known(self, now: float, *, finishing: bool) -> None:
        """All members that live have been named by ``changed``: to a leader that takes over, who is missing is lost.

        ``finishing``: a node has left because it was done; then those that are missing are taken to have done so too.
        """
        self._finishing = finishing
        self._all_known = True
        lost = [each for node, each in self._places.items() if node not in self.members]
        if self._step == "complete" and lost and not finishing:
            self._over("lost", f"{lost[0].name} was lost, and with it the leader of the rendezvous")
        self._welcome_spares()
        self.tick(now)

    def tick(self, now: float) -> None:
        """Time has passed, and what there is to say of the members has been said. Begins a round if it can."""
        self._refuse_duplicates(now)
        if self._step == "join" and self._declared.state != "failed" and self._all_here(now):
            self._last_call_at = None
            self._begin()

    def deadline(self) -> float | None:
        """When ``tick`` is to be called at the latest."""
        return min((at for at in (self._last_call_at, self._claims.deadline()) if at is not None), default=None)

    def decide(self) -> Decisions:
        """What has been decided since the last call."""
        out = Decisions(self._out_assignments, self._out_round, tuple(self._forgotten()))
        self._out_assignments, self._out_round = {}, None
        return out

    def facts(self) -> str:
        """Who has joined, and who is missing, as far as anybody can know."""
        if self._step == "reach":
            return facts.to_reach([self.members[node] for node in self._to_reach], len(self._plan))
        return facts.joined(
            [member for node, member in self.members.items() if node in self._waiting],
            late=[member for node, member in self.members.items() if node not in self._waiting],
            lost=[place for node, place in self._places.items() if node not in self.members],
            claims=self._claims,
            needed=(self._rules.min_nodes, self._rules.max_nodes),
        )

    def _over(self, cause: Literal["lost", "asked", "came"], why: str) -> None:
        """The round is over: its members are to join again."""
        self._declare(Round(self._declared.number, "over", self._declared.world, why, cause))
        self._step = "join"

    def _give_up(self) -> None:
        """The round that was being formed has lost a member: those who live are still waiting for one."""
        self._step, self._plan, self._to_reach = "join", {}, set()
        self._out_assignments = {node: each for node, each in self._out_assignments.items() if each.refused}

    def _welcome(self, member: Member) -> None:
        """A newcomer ends the round if there is room. Not if a node was done already: the others are about to be."""
        here = [node for node in self._places if node in self.members]
        finishing = self._finishing or any(self.members[node].done == self._declared.number for node in here)
        taken = self._claims.doubled(member.node_rank)
        if here and len(here) < self._rules.max_nodes and not finishing and not taken:
            self._over("came", f"{member.name} has come")

    def _welcome_spares(self) -> None:
        for node in list(self._waiting):
            if self._step == "complete" and node in self.members:
                self._welcome(self.members[node])

    def _all_here(self, now: float) -> bool:
        """Everybody has joined who is to be waited for."""
        count = len(self._waiting) - self._claims.surplus()
        if count < self._rules.min_nodes:
            self._last_call_at = None
            return False
        if self._declared.number > 0:  # a later round: those who live, and no waiting for strangers
            return len(self._waiting) + len(self._refused) == len(self.members)
        if count >= self._rules.max_nodes:
            return True
        if self._last_call_at is None:
            self._last_call_at = now + self._rules.last_call
        return now >= self._last_call_at

    def _begin(self) -> None:
        waiting = (member for node, member in self.members.items() if node in self._waiting)
        chosen = choose(waiting, self._former, self._rules.max_nodes)
        self._number = max(self._number, *(member.after for member in chosen)) + 1
        self._plan = plan(self._number, chosen, self._former, self._order)
        self._step = "serve"
        first = next(iter(self._plan.values()))
        publish = other_address(self.members[first.node_id], chosen, self.members.values())
        self._out_assignments[first.node_id] = _with(first, publish=publish)

    def _place(self, store: tuple[int, str, int]) -> None:
        """Rank 0 serves the store: everybody learns its place."""
        _, address, port = store
        self._plan = {n: _with(a, master_addr=address, master_port=port) for n, a in self._plan.items()}
        self._step, self._to_reach = "reach", set(self._plan)
        self._out_assignments.update(self._plan)

    def _has_reached(self, member: Member) -> None:
        if member.unreachable:
            first = next(iter(self._plan.values()))
            self._declare(
                Round(
                    self._number,
                    "failed",
                    len(self._plan),
                    f"{member.name} cannot reach the workers' store of {first.host} (node 0) at "
                    f"{first.master_addr} port {first.master_port}: {member.unreachable}",
                )
            )
            self._give_up()
            return
        self._to_reach.discard(member.node_id)
        if self._to_reach:
            return
        self._stale |= self._places.keys() - self._plan.keys()
        self._places, self._former = self._plan, Former(self._plan)
        self._plan = {}
        self._waiting -= self._places.keys()
        self._step = "complete"
        self._stale -= self._places.keys()
        self._finishing = False
        # one that has come back meanwhile may have belonged to the round before, and not know that it is over
        self._waiting |= self.members.keys() - self._places.keys() - self._refused
        self._declare(Round(self._number, "complete", len(self._places)))
        self._welcome_spares()  # who came while the round was formed, and for whom there is room

    def _refuse_duplicates(self, now: float) -> None:
        """The service has heard of both for longer than a lost one would be known: two agents were given one rank."""
        for rank, nodes in self._claims.overdue(now):
            holder = next((node for node in nodes if node in self._places), nodes[0])
            why = f"node rank {rank} is that of {self.members[holder].name}"
            for node in nodes:
                if node != holder:
                    self._claims.remove(self.members[node])
                    self._refused.add(node)
                    self._waiting.discard(node)
                    self._out_assignments[node] = Assignment(self._number, refused=why)

    def _declare(self, round_: Round) -> None:
        self._declared = self._out_round = round_

    def _forgotten(self) -> list[str]:
        if self._number > self._declared.number:
            return []  # nothing else remembers that this number was given: it must not be given twice
        gone = [node for node in self._stale if node not in self.members]
        self._stale -= set(gone)
        return gone


def _with(assignment: Assignment, **changes: object) -> Assignment:
    return Assignment(**{**vars(assignment), **changes})
