"""A job in which anything happens at any time: nodes come, go and come back, leaders too, messages take their time.

After each step section 6 of the design holds (``membership_checks`` judges each write of a leader), and
whenever nothing more goes wrong, the job comes to rest: a complete round, or a wait for want of nodes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from kits.unit.membership_checks import able, at_rest
from kits.unit.membership_world import Node, World

from rdzv_plugins.elastic.keys import Member
from rdzv_plugins.elastic.leading.membership import Rules

STEPS_PER_NODE = 60
"""More than a job needs to come to rest, whatever has happened to it."""


class Place(NamedTuple):
    """Where a node is, and what its agents there are started with."""

    rank: int | None = None
    domain: str = ""
    from_scheduler: bool = False


def member(number: int, place: int, given: Place) -> Member:
    moves = given.from_scheduler and given.rank is not None and given.domain != ""
    return Member(
        f"n{number}",
        f"h{place}",
        f"m{place}",
        number,
        f"10.0.0.{place}",
        "",
        1,
        node_rank=given.rank,
        rank_moves=moves,
        domain=given.domain,
    )


class Job(RuleBasedStateMachine):
    """Up to five places for nodes, and what happens to them."""

    shapes = ((1, 1),)
    """What ``node_unit`` and ``min_per_domain`` may be."""
    domains = ("",)
    most = 5

    @initialize(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        unit, least = data.draw(st.sampled_from(self.shapes))
        sizes = data.draw(st.tuples(st.integers(1, 4), st.integers(1, 4)).map(sorted))
        low, high = (-(-size // unit) * unit for size in sizes)
        rules = Rules(low, max(high, least), node_unit=unit, min_per_domain=least)
        ranks = st.none() | st.integers(0, min(3, rules.max_nodes - 1))
        places = st.builds(Place, ranks, st.sampled_from(self.domains), st.booleans())
        self.places = data.draw(st.lists(places, min_size=1, max_size=self.most))
        self.world = World(rules, [member(n, n, place) for n, place in enumerate(self.places)])

    def some(self, data: st.DataObject, nodes: list[Node]) -> str:
        return data.draw(st.sampled_from([node.name for node in nodes]))

    def are(self, *modes: str, stuck: bool = False) -> list[Node]:
        """Those that have a session, and act; or that have one and do not."""
        nodes = [node for node in self.world.nodes.values() if node.mode in modes and not node.cut]
        return [node for node in nodes if node.stuck == stuck]

    def told(self) -> list[Node]:
        return [node for node in self.are("joining", "working") if node.of_all or node.of_own]

    def away(self) -> list[Node]:
        return [node for node in self.world.nodes.values() if node.cut and node.mode in ("joining", "working")]

    def unproved(self) -> list[str]:
        """Nodes whose processes are gone, and the leader does not know it yet."""
        lead = self.world.lead
        return [name for name in self.world.lingering() if name not in lead.proved] if lead is not None else []

    def twin(self, node: Node) -> Member:
        place = int(node.me.host[1:])
        return member(len(self.world.nodes), place, self.places[place])

    # what is bound to happen

    @precondition(lambda self: self.are("off"))
    @rule(data=st.data())
    def start(self, data: st.DataObject) -> None:
        self.world.start(self.some(data, self.are("off")))

    @precondition(lambda self: self.told())
    @rule(data=st.data())
    def read(self, data: st.DataObject) -> None:
        node = self.world.nodes[self.some(data, self.told())]
        of_all, of_own = (data.draw(st.integers(0, len(box))) for box in (node.of_all, node.of_own))
        self.world.read(node.name, of_all, of_own)

    @precondition(lambda self: self.world.lead is None and self.are("joining", "working"))
    @rule(data=st.data())
    def campaign(self, data: st.DataObject) -> None:
        """One that knows that who led is gone leads in its place; without one, it leads when the key has gone."""
        self.world.campaign(self.some(data, self.are("joining", "working")), self.world.led_by)

    @precondition(lambda self: self.world.lingering())
    @rule(data=st.data())
    def expire(self, data: st.DataObject) -> None:
        self.world.expire(data.draw(st.sampled_from(self.world.lingering())))

    @precondition(lambda self: self.world.lead is not None and self.world.lead.inbox)
    @rule(count=st.integers(1, 8))
    def hear(self, count: int) -> None:
        self.world.hear(count)

    @precondition(lambda self: self.world.deadline() is not None)
    @rule()
    def pass_time(self) -> None:
        self.world.pass_time()

    @precondition(lambda self: self.away())
    @rule(data=st.data())
    def back(self, data: st.DataObject) -> None:
        self.world.back(self.some(data, self.away()))

    # what may go wrong, or end

    @precondition(lambda self: self.are("joining", "working"))
    @rule(data=st.data(), again=st.booleans())
    def lose(self, data: st.DataObject, again: bool) -> None:
        node = self.world.nodes[self.some(data, self.are("joining", "working"))]
        self.world.lose(node.name)
        if again:  # its agent is started again, in the same place
            twin = self.twin(node)
            self.world.nodes[twin.node_id] = Node(twin)

    @precondition(lambda self: self.are("joining", "working"))
    @rule(data=st.data(), again=st.booleans())
    def kill(self, data: st.DataObject, again: bool) -> None:
        node = self.world.nodes[self.some(data, self.are("joining", "working"))]
        self.world.kill(node.name)
        if again:
            twin = self.twin(node)
            self.world.nodes[twin.node_id] = Node(twin)

    @precondition(lambda self: self.unproved())
    @rule(data=st.data())
    def prove(self, data: st.DataObject) -> None:
        self.world.prove(data.draw(st.sampled_from(self.unproved())))

    @precondition(lambda self: self.are("joining"))
    @rule(data=st.data())
    def wall(self, data: st.DataObject) -> None:
        self.world.nodes[self.some(data, self.are("joining"))].walled = True

    @precondition(lambda self: self.are("working"))
    @rule(data=st.data())
    def stick(self, data: st.DataObject) -> None:
        self.world.stick(self.some(data, self.are("working")))

    @precondition(lambda self: self.are("joining", "working", stuck=True))
    @rule(data=st.data())
    def go_on(self, data: st.DataObject) -> None:
        node = self.world.nodes[self.some(data, self.are("joining", "working", stuck=True))]
        node.stuck = False
        self.world.read(node.name)

    @precondition(lambda self: self.are("joining", "working"))
    @rule(data=st.data())
    def cut(self, data: st.DataObject) -> None:
        self.world.cut(self.some(data, self.are("joining", "working")))

    @precondition(lambda self: self.world.declared.number)
    @rule()
    def forget(self) -> None:
        self.world.forget()

    @precondition(lambda self: self.world.lead is not None)
    @rule()
    def stop_leader(self) -> None:
        self.world.stop_leader()

    @precondition(lambda self: self.world.stopped)
    @rule()
    def resume_leader(self) -> None:
        before = (self.world.assigned.copy(), self.world.declared)
        self.world.resume_leader()
        assert before == (self.world.assigned, self.world.declared)

    @precondition(lambda self: self.world.lead is not None and self.world.lead.inbox)
    @rule(count=st.integers(1, 4), written=st.integers(0, 3))
    def hear_and_die(self, count: int, written: int) -> None:
        self.world.hear_and_die(count, written)

    @precondition(lambda self: self.are("working"))
    @rule(data=st.data())
    def ask(self, data: st.DataObject) -> None:
        self.world.ask(self.some(data, self.are("working")))

    @precondition(lambda self: self.are("working"))
    @rule(data=st.data())
    def done(self, data: st.DataObject) -> None:
        name = self.some(data, self.are("working"))
        (self.world.leave if self.world.nodes[name].me.done else self.world.done)(name)

    @precondition(lambda self: any(len(node.said) > 1 for node in self.are("joining", "working")))
    @rule(data=st.data())
    def late(self, data: st.DataObject) -> None:
        """I7: a node's old words come late, and nobody acts on them."""
        world = self.world
        name = self.some(data, [node for node in self.are("joining", "working") if len(node.said) > 1])
        if world.lead is not None:
            world.hear()
        before = (world.assigned.copy(), world.declared)
        world.repeat(name, data.draw(st.integers(0, len(world.nodes[name].said) - 2)))
        if world.lead is not None:
            world.hear(1)
            assert before == (world.assigned, world.declared), f"I7: {name} said something old"

    @rule()
    def nothing_more_goes_wrong(self) -> None:
        settle(self.world)

    @invariant()
    def ranks_are_agreed(self) -> None:
        """I1: whoever works in the same round has a rank of its own in the same world."""
        working = [node for node in self.are("working") if node.declared.number == node.round]
        places = [(node.place, node) for node in working if node.place and node.place.round == node.round]
        for place, node in places:
            same = [p for p, other in places if p.round == place.round and other is not node]
            assert all(p.world == place.world and p.rank != place.rank for p in same)

    def teardown(self) -> None:
        if hasattr(self, "world") and self.world.sound:
            settle(self.world)


def settle(world: World) -> None:
    """All messages arrive and all deadlines pass, until nothing is left to happen."""
    for _ in range(STEPS_PER_NODE * len(world.nodes)):
        step = next_step(world)
        if step is None:
            at_rest(world)
            return
        step[0](*step[1:])
    if able(world) < world.rules.min_nodes:
        return  # those who are too few without the others try again and again
    raise AssertionError("the job never comes to rest")


def next_step(world: World) -> tuple[Any, ...] | None:
    for node in world.nodes.values():
        if node.cut and node.mode in ("joining", "working"):
            return world.back, node.name
        if node.lives and (node.of_all or node.of_own):
            return world.read, node.name
    for name in world.lingering():
        return world.expire, name
    live = [node for node in world.nodes.values() if node.lives]
    if world.lead is None:
        return (world.campaign, live[-1].name) if live else None
    if world.lead.inbox:
        return world.hear, 1
    return (world.pass_time,) if world.deadline() is not None else None


class JobOfDomains(Job):
    """Rounds have a unit, and domains a least number of nodes."""

    shapes = ((1, 1), (2, 1), (3, 1), (1, 2), (2, 2))
    domains = ("", "r", "s")
    most = 7


TestJob = Job.TestCase
TestJob.settings = settings(max_examples=400, stateful_step_count=40, deadline=None, derandomize=True)
TestJobOfDomains = pytest.mark.thorough(JobOfDomains.TestCase)
TestJobOfDomains.settings = settings(max_examples=300, stateful_step_count=40, deadline=None, derandomize=True)

pytestmark = pytest.mark.timeout(900)  # it only computes, and a busy machine has taken 240 s for what takes 11
