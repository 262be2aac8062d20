"""Short words for tests of ``RoundStateMachine``: a leader, and nodes that do what they are told."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Callable, Iterable
from typing import Any

from msgspec import structs

from rdzv_plugins.elastic.coordinator.gates import ProvedGone
from rdzv_plugins.elastic.coordinator.placement import Rules
from rdzv_plugins.elastic.coordinator.state_machine import (
    Event,
    InitialListDone,
    KeyGone,
    RoundStateMachine,
    RoundUpdate,
)
from rdzv_plugins.elastic.keys import Assignment, CheckReport, EpochVote, Member, Round, vote_of, votes_reached


def node(name: str, rank: int | None = None, **fields: Any) -> Member:
    known: dict[str, Any] = {"machine": name, "pid": 7, "address": "10.0.0.1", "public": "10.0.0.1", "nproc": 1}
    return Member(**{**known, "node_id": name, "host": f"host-{name}", "node_rank": rank, **fields})


def from_elsewhere(name: str, rank: int, world: int, *reached: EpochVote, round_: int = 5, **fields: Any) -> Member:
    """It was in a round of another endpoint, and has reached some since."""
    return node(
        name,
        last_round=round_,
        known_round=round_,
        votes=(EpochVote(round_, rank, world, "x", True), *reached),
        **fields,
    )


KEPT = {
    name: Assignment(5, rank, 2, name, f"host-{name}", name, 7, "10.0.0.1", 1, master_addr="10.0.0.1", master_port=9)
    for rank, name in enumerate("ab")
}
"""The places of round 5, of which the service has lost its memory."""


def keeping(name: str, **changes: Any) -> Member:
    """It is still in round 5."""
    place = structs.replace(KEPT[name], **changes)
    return node(
        name, last_round=4, store_ready_round=5, known_round=5, keeps=place, votes=(vote_of(place, complete=True),)
    )


def leaver(name: str, **changes: Any) -> Member:
    """It was in round 5, and has left it."""
    return node(name, last_round=5, known_round=5, votes=(vote_of(KEPT[name], complete=True),), **changes)


class Leader:
    """A leader with its own clock, and what it has published."""

    def __init__(
        self,
        low: int,
        high: int,
        declared: Round | None = None,
        assigned: dict[str, Assignment] | None = None,
        **rules: Any,
    ) -> None:
        self.rules = Rules(low, high, **rules)
        self.machine = RoundStateMachine(
            self.rules, lambda _: None, declared, assigned, mark=uuid.uuid4().hex if self.rules.majority else ""
        )
        self.now = 100.0
        self.assigned: dict[str, Assignment] = dict(assigned or {})
        self.members: dict[str, Member] = {}
        self.published: list[Round] = []

    @property
    def round(self) -> Round:
        return self.machine.round

    @property
    def state(self) -> tuple[int, str]:
        return self.round.number, self.round.state

    def ranks(self) -> dict[str, int]:
        """Of the newest round that was begun."""
        newest = max((a.round for a in self.assigned.values()), default=0)
        return {name: a.rank for name, a in self.assigned.items() if a.round == newest and a.is_place}

    def told(self) -> str:
        """The declared round, who has which place in the newest one that was begun, and who is kept out."""
        state, ranks = f"{self.round.number} {self.round.state}", sorted(self.ranks().items(), key=lambda each: each[1])
        names = " ".join(name for name, _ in ranks)
        begun = max((a.round for a in self.assigned.values()), default=0)
        if self.round.state == "over":
            state += f" {self.round.cause}"
        if ranks and begun > self.round.number:
            state += f", {begun} begun: {names} of {self.assigned[ranks[0][0]].world}"
        elif self.round.state == "complete":
            state += f": {names}"
        apart = {
            name: "refused" if a.refused else "out" for name, a in self.assigned.items() if a.refused or a.left_out
        }
        return ", ".join([state, *(f"{name} {how}" for name, how in sorted(apart.items()))])

    def hear(self, *members: Member) -> RoundUpdate:
        """These were written, and heard of at once."""
        self.members |= {member.node_id: member for member in members}
        return self.advance(*members)

    def come(self, member: Member) -> RoundUpdate:
        """A node comes, and dials the store of the round that works."""
        self.hear(member)
        return self.say(member.node_id, store_ready_round=self.round.number)

    def lose(self, *names: str) -> RoundUpdate:
        for name in names:
            self.members.pop(name, None)
        return self.advance(*map(KeyGone, names))

    def wait(self, seconds: float) -> RoundUpdate:
        self.now += seconds
        return self.advance()

    def advance(self, *events: Event) -> RoundUpdate:
        return self.publish(self.machine.advance(events, self.now))

    def publish(self, out: RoundUpdate) -> RoundUpdate:
        assert (self.machine.deadline() or self.now + 1) > self.now, "it is asked again at once, and for ever"
        self.assigned |= out.assignments
        for name in out.forget:
            self.assigned.pop(name, None)
        if out.round is not None:
            self.published.append(out.round)
        return out

    def say(self, name: str, **changes: Any) -> RoundUpdate:
        return self.hear(structs.replace(self.members[name], **changes))

    def serve(self) -> RoundUpdate:
        """Rank 0 serves the store."""
        (first,) = (n for n, a in self.assigned.items() if a.round == self.number and a.rank == 0)
        return self.say(first, store=(self.number, "10.0.0.1", 4000))

    def reach(self) -> None:
        """Everybody reaches it."""
        for name in self.ranks():
            self.say(name, store_ready_round=self.number, unreachable="", **self.carried(name))

    def carried(self, name: str) -> dict[str, Any]:
        votes = self.members[name].votes
        return {"votes": votes_reached(votes, self.assigned[name])} if self.rules.majority else {}

    @property
    def number(self) -> int:
        return max(a.round for a in self.assigned.values())

    def complete(self) -> None:
        self.serve()
        self.reach()
        assert self.round.state == "complete"

    def join(self, *names: str) -> None:
        """These, or all, begin again after the newest round."""
        for name in names or [*self.members]:
            self.say(name, last_round=self.round.number, store=None, store_ready_round=0, finished_round=0)

    def successor(self, *, without: tuple[str, ...] = (), finishing: bool = False, gone: str = "") -> Leader:
        """Another leader, made from the keys; ``without`` those nodes that went with this one.

        ``gone``: the node that led, whose process is proved gone, and whose key is there.
        """
        rules = dataclasses.asdict(self.rules)
        declared = self.round if self.round.number else None
        other = Leader(rules.pop("min_nodes"), rules.pop("max_nodes"), declared, self.assigned, **rules)
        other.members = {name: member for name, member in self.members.items() if name not in without}
        other.advance(*other.members.values(), *([KeyGone(gone)] if gone else []), InitialListDone(finishing))
        other.members.pop(gone, None)
        return other


def story(sizes: str, steps: str, **rules: Any) -> str:
    """What a leader has come to after these steps, for "MIN:MAX" nodes: ``2 complete: a b``, by ranks; ``c out``.

    Steps: ``come a b@1 c!`` (a node, one with node rank 1, a broken one), ``complete``, ``serve``, ``reach``,
    ``lose a``, ``join a``, ``dial c`` (it reaches the store of the round that works), ``wall c`` (not that of the
    newest), ``reached a 1``, ``back a`` (with a new session), ``done a``, ``leave a how``, ``wait 5``, ``wait``
    (for the deadline), ``succeed`` (another leader), ``succeed without a``, ``succeed gone a``, ``succeed finishing
    without a``; ``elsewhere c 2 3 0`` (it had rank 2 of 3 in round 5 of another endpoint, which the node of rank 0
    served), ``proved a`` (its process is gone). Where a service has lost its memory of round 5 of a and b: ``keeps
    a rank=1``, ``left a server_rank=0``, ``again a`` (it joins again), ``knows c 5`` (it has heard of that round),
    ``serves d``, ``says a server_rank=0``, ``join`` (all do). ``healed c``: it has tested itself again after this round
    and is well; ``outside c``: it has dialled its store, and waits outside.
    A domain is a name's first letter.
    """
    low, high = map(int, sizes.split(":"))
    leader = Leader(low, high, **{"last_call": 0} | rules)
    for step in steps.split(", "):
        what, *names = step.split()
        if what == "succeed":
            leader = _succeed(leader, *names)
        else:
            _STEPS[what](leader, *names)
    return leader.told()


def _succeed(leader: Leader, *how: str) -> Leader:
    if "gone" in how:
        return leader.successor(gone=how[-1])
    without = how[how.index("without") + 1 :] if "without" in how else ()
    return leader.successor(without=without, finishing="finishing" in how)


def _numbers(changes: Iterable[str]) -> dict[str, int]:
    return {name: int(number) for name, _, number in (each.partition("=") for each in changes)}


def _newcomer(rules: Rules, name: str, rank: str = "", *, broken: bool) -> Member:
    checks = (CheckReport("my device", "broken", "it is on fire"),) * broken
    domain = name[0] if rules.min_per_domain > 1 else ""
    return node(name, int(rank) if rank else None, domain=domain, checks=checks)


def _come(leader: Leader, *names: str) -> None:
    leader.hear(*(_newcomer(leader.rules, *name.rstrip("!").split("@"), broken=name[-1] == "!") for name in names))


def _elsewhere(leader: Leader, name: str, rank: str, world: str, server: str = "-1") -> None:
    leader.hear(from_elsewhere(name, int(rank), int(world), server_rank=int(server)))


def _wait(leader: Leader, seconds: str = "") -> None:
    at = leader.machine.deadline()
    assert seconds or at is not None, "there is no deadline"
    leader.wait(float(seconds) if seconds else (at or 0.0) - leader.now)


_STEPS: dict[str, Callable[..., object]] = {
    "complete": Leader.complete,
    "serve": Leader.serve,
    "reach": Leader.reach,
    "lose": Leader.lose,
    "join": Leader.join,
    "come": _come,
    "elsewhere": _elsewhere,
    "proved": lambda leader, *names: leader.advance(*map(ProvedGone, names)),
    "wait": _wait,
    "keeps": lambda leader, name, *changes: leader.hear(keeping(name, **_numbers(changes))),
    "left": lambda leader, name, *changes: leader.hear(leaver(name, **_numbers(changes))),
    "knows": lambda leader, name, number: leader.hear(node(name, known_round=int(number))),
    "serves": lambda leader, name: leader.hear(node(name, serves=True)),
    "back": lambda leader, name: leader.hear(node(name, last_round=leader.round.number)),
    "says": lambda leader, name, *changes: leader.say(name, **_numbers(changes)),
    "again": lambda leader, name: leader.say(name, keeps=None, last_round=5),
    "healed": lambda leader, name: leader.say(name, checks=(), checked=leader.round.number),
    "outside": lambda leader, name: leader.say(name, store_ready_round=leader.round.number, candidate=True),
    "dial": lambda leader, name: leader.say(name, store_ready_round=leader.round.number, unreachable=""),
    "wall": lambda leader, name: leader.say(name, store_ready_round=leader.number, unreachable="connection refused"),
    "reached": lambda leader, name, number: leader.say(name, store_ready_round=int(number), **leader.carried(name)),
    "done": lambda leader, name: leader.say(name, finished_round=leader.round.number),
    "leave": lambda leader, name, how: leader.say(name, leaving=how),
}
"""Of a ``story``."""


def working(low: int, high: int, *members: Member, **rules: int) -> Leader:
    """A leader of these nodes, whose first round is complete."""
    leader = Leader(low, high, last_call=0, **rules)
    leader.hear(*members)
    leader.complete()
    return leader
