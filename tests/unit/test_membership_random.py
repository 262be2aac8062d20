"""Whatever happens to nodes, in whatever order: each write of a leader is sound, and the job comes to rest."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from typing import Any

import pytest
from kits.unit.membership_steps import Leader, largest, node

from rdzv_plugins.elastic.keys import Assignment, Member
from rdzv_plugins.elastic.leading.membership import Decisions

SHAPES = ({}, {"node_unit": 2}, {"min_per_domain": 2}, {"node_unit": 2, "min_per_domain": 2})
HAPPENS = ("come", "come", "lose", "return", "ask", "wall", "late", "wait", "succeed", "done")
EACH = 60


class Job(Leader):
    """A leader, and nodes that do what they are told one at a time. Each decision is looked at as it is made."""

    def __init__(self, rng: random.Random) -> None:
        shape: dict[str, int] = rng.choice(SHAPES)
        unit = shape.get("node_unit", 1)
        low, high = sorted(-(-rng.randint(1, 4) // unit) * unit for _ in range(2))
        super().__init__(low, max(high, shape.get("min_per_domain", 1)), last_call=rng.choice((0, 30)), **shape)
        self.rng, self.ranked = rng, rng.random() < 0.4
        self.plans: dict[int, dict[str, Assignment]] = {}
        self.walled: set[str] = set()
        self.done: set[str] = set()
        self.at: dict[str, int] = {}
        """The round in which a node is, as far as it knows."""
        self.came = 0

    # What the leader decides

    def wait(self, seconds: float) -> Decisions:
        before = self.round
        out = super().wait(seconds)
        for name, place in out.assignments.items():
            if place.is_place:
                self._placed(name, place, before.number)
        if out.round is not None:
            assert out.round.number >= before.number
            if out.round.state == "complete":
                self._complete(out.round.number, out.round.world)
        return out

    def _placed(self, name: str, place: Assignment, declared: int) -> None:
        rules = self.rules
        assert place.round > declared
        assert rules.min_nodes <= place.world <= rules.max_nodes
        assert place.world % rules.node_unit == 0
        if place.round not in self.plans:
            assert all(place.round > max(each.after, each.known) for each in self.members.values())
            self._largest(place)
        plan = self.plans.setdefault(place.round, {})
        plan[name] = place
        assert len({each.world for each in plan.values()}) == 1
        assert len({each.rank for each in plan.values()}) == len(plan)
        assert len({each.master_addr for each in plan.values()} - {""}) < 2

    def _largest(self, place: Assignment) -> None:
        """Nobody who could be in it is left beside it."""
        out = {name for name, each in self.assigned.items() if each.refused} | set(self.machine._roster.left_out._until)
        here = [each for name, each in self.members.items() if name not in out]
        if not self.walled:
            assert place.world >= largest(here, self.rules)

    def _complete(self, number: int, world: int) -> None:
        plan = self.plans[number]
        assert sorted(each.rank for each in plan.values()) == list(range(world))
        assert all(self.members[name].reached == number for name in plan), "who is lost is in no round"
        given = {name: rank for name in plan if (rank := self.members[name].firm_rank) is not None}
        above = world
        for name in sorted(given, key=lambda each: given[each], reverse=True):
            above = min(given[name], above - 1)
            assert plan[name].rank == above, "as given; from the top down where that is beyond the size"
        self.at |= dict.fromkeys(plan, number)
        rest = sorted((each for name, each in plan.items() if name not in given), key=lambda each: each.rank)
        blocks = [domain for domain, _ in itertools.groupby(each.domain for each in rest)]
        assert len(blocks) == len(set(blocks)), "a domain's ranks are side by side"
        assert min(Counter(each.domain for each in plan.values()).values()) >= self.rules.min_per_domain

    # What nodes do

    def todo(self, name: str) -> dict[str, Any]:
        """What a node says next, by what it was told."""
        me, place, declared = self.members[name], self.assigned.get(name), self.round
        inside = place is not None and place.is_place and place.round == declared.number
        if place is not None and place.is_place and place.round > max(me.after, declared.number):
            if not place.master_addr:
                store = (place.round, name, 4000)
                return {} if place.rank or me.store == store else {"store": store}
            return {} if me.reached == place.round else self._dials(place.round, place.master_addr, name)
        at = self.at.get(name, 0)
        if me.after < at and (declared.number, declared.state) != (at, "complete"):
            return {"after": at, "store": None, "reached": 0, "unreachable": "", "done": 0}
        if declared.state == "complete" and not inside and me.reached < declared.number:
            return self._dials(declared.number, declared.master_addr, name)
        return {}

    def _dials(self, number: int, server: str, name: str) -> dict[str, Any]:
        wall = server != name and {server, name} & self.walled
        return {"reached": number, "unreachable": "no route" if wall else ""}

    def act(self) -> bool:
        able = [name for name in self.members if self.todo(name)]
        if able:
            name = self.rng.choice(able)
            self.say(name, **self.todo(name))
        return bool(able)

    # What happens to them

    def happens(self) -> None:
        kind, names = self.rng.choice(HAPPENS), list(self.members)
        works = [name for name in names if self.round.state == "complete" and name in self.plans[self.round.number]]
        if kind == "come" and len(names) < self.rules.max_nodes + 2:
            self.came += 1
            domain, rank = self.rng.choice(("", "r", "s")), self.rng.randrange(self.rules.max_nodes)
            self.hear(node(f"n{self.came}", rank if self.ranked and self.rng.random() < 0.5 else None, domain=domain))
        elif kind == "lose" and names:
            self.lose(self.rng.choice(names))
        elif kind == "return" and names:
            self._come_back(self.members[self.rng.choice(names)])
        elif kind == "ask" and works:
            self.join(self.rng.choice(works))
        elif kind == "wall" and len(self.walled) < 2 and names:
            self.walled.add(self.rng.choice(names))
        elif kind == "wait" and (at := self.machine.deadline()) is not None:
            Leader.wait(self, 0)
            self.wait(max(0.0, at - self.now))
        elif kind == "late" and works:
            before = self.assigned.copy(), self.round
            self.say(self.rng.choice(works), store=(self.round.number, "old", 1), after=0)
            assert before == (self.assigned, self.round), "old words change nothing"
        elif kind == "succeed":
            self._another_leads()
        elif kind == "done" and works and self.rng.random() < 0.2:
            name = self.rng.choice(works)
            self.done.add(name)
            self.say(name, done=self.round.number)

    def _come_back(self, me: Member) -> None:
        """With a new session: it has left its round behind."""
        self.lose(me.node_id)
        self.at.pop(me.node_id, None)
        self.hear(node(me.node_id, me.node_rank, domain=me.domain, after=self.round.number))

    def _another_leads(self) -> None:
        before, declared = self.assigned, self.round.number
        other = self.successor()
        self.machine, self.assigned = other.machine, other.assigned
        for name, place in self.assigned.items():
            if place.is_place and place != before.get(name):
                self._placed(name, place, declared)
        self.wait(0)

    def settle(self) -> None:
        """Nothing more happens: all do what they are told, and time passes."""
        for _ in range(100 * (1 + len(self.members))):
            if not self.act():
                if (at := self.machine.deadline()) is None:
                    return
                self.wait(max(0.0, at - self.now))
        assert self.walled, "the job never comes to rest"

    def rests(self) -> None:
        """Nobody waits in vain."""
        size = largest(self.members.values(), self.rules)
        if self.walled or self.done or any(each.refused or each.left_out for each in self.assigned.values()):
            return
        if size < self.rules.min_nodes:
            assert self.round.state != "complete"
        else:
            assert (self.round.state, self.round.world) == ("complete", size), self.machine.facts()


@pytest.mark.parametrize("first", range(0, 10 * EACH, EACH))
def test_whatever_happens_every_write_is_sound_and_the_job_comes_to_rest(first: int) -> None:
    for seed in range(first, first + EACH):
        job = Job(random.Random(seed))
        try:
            for _ in range(60):
                if job.rng.random() < 0.3 or not job.act():
                    job.happens()
            job.settle()
            job.rests()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
