"""What is true of every elastic job at any time: section 6 of the design, I1 to I7, as assertions.

``Checks`` looks at every write of a leader before it is made, and at every node that begins to work; it
remembers all rounds that there ever were. ``at_rest`` looks at a world in which nothing is under way.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from kits.unit.many_worlds import shallow
from rdzv_plugins.elastic.keys import Assignment, Member, Round
from rdzv_plugins.elastic.leading.membership import Rules
from rdzv_plugins.elastic.leading.ranks import place_of

if TYPE_CHECKING:
    from kits.unit.membership_world import Lead, Node, World


def largest(nodes: Iterable[Member], rules: Rules) -> int:
    """The size of the largest round of these nodes, found by trying: at the least, whoever of a rank is in it."""
    claims: dict[int | str, list[str]] = {}
    for each in nodes:
        claims.setdefault(each.node_id if each.node_rank is None else each.node_rank, []).append(each.domain)
    return min(_of_counts(Counter(domains).values(), rules) for domains in itertools.product(*claims.values()))


def _of_counts(counts: Iterable[int], rules: Rules) -> int:
    sizes = {0}
    for count in counts:
        some = (0, *range(rules.min_per_domain, count + 1))
        sizes = {size + more for size in sizes for more in some if size + more <= rules.max_nodes}
    return max(size for size in sizes if size % rules.node_unit == 0)


class Checks:
    """The memory of a world, and what it may never see."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self.plans: dict[int, dict[str, Assignment]] = {}
        """Every round that was ever begun: who was told to be in it."""
        self.complete: list[int] = []
        self.past: dict[int, list[dict[str, Assignment]]] = {}
        """Rounds of which the service knows nothing any more, but their nodes do."""
        self.regained: set[int] = set()
        """Those of them that were declared again, and then as those who were back have told it."""
        self.left_done: dict[str, int] = {}
        self.unfenced: frozenset[str] = frozenset()
        """Nodes that may be at work, as far as they know: the service has lost its memory, and their sessions."""
        self.waited = False
        """A deadline has just been met."""

    def copy(self) -> Checks:
        twin = shallow(self)
        twin.plans = {number: plan.copy() for number, plan in self.plans.items()}
        twin.complete, twin.left_done = self.complete.copy(), self.left_done.copy()
        twin.past, twin.regained = self.past.copy(), self.regained.copy()
        return twin

    def is_only_one(self, node: Node) -> bool:
        """Whether the service knows the round in which a node works, and has not forgotten another of its number."""
        plan = self.plans.get(node.round, {})
        return plan.get(node.name) == node.works_at and all(each == plan for each in self.past.get(node.round, ()))

    def forget(self) -> None:
        """The service has lost its memory."""
        for number in set(self.complete):
            self.past[number] = [*self.past.get(number, []), self.plans[number]]
        self.plans, self.complete, self.regained, self.left_done = {}, [], set(), {}

    def assignment(
        self, name: str, a: Assignment, lead: Lead, known: set[str], declared: Round, nodes: dict[str, Node]
    ) -> None:
        """A leader is about to tell a node its place. ``known``: the members it knew before it decided."""
        members = lead.machine.members
        if a.spare:
            assert declared.state == "complete" or lead.machine.round.state == "complete", f"{name} is told {a}"
            assert name not in self.plans[lead.machine.round.number], f"{name} has a place and is told {a}"
            return
        if a.left_out:
            times, _ = lead.machine._roster.left_out._records[place_of(members[name])]
            excused = nodes[name].stuck or any(node.walled for node in nodes.values())
            assert excused or times > 1, f"{name} is left out: {a.left_out}"
            return
        if a.refused:
            mine = members[name].node_rank
            others = [m for m in members.values() if m.node_id != name and m.node_rank == mine]
            assert mine is not None, f"{name} is refused and had no given rank"
            assert others, f"{name} is refused, and nobody else claims its rank"
            return
        known_again = a.round in self.regained or (declared.number == 0 and a.round not in self.plans)
        if known_again and any(plan.get(name) == a for plan in self.past.get(a.round, ())):
            self.regained.add(a.round)
            self.plans.setdefault(a.round, {})[name] = a
            return
        assert a.round > declared.number, f"I1: round {a.round} is assigned after {declared}"
        assert a.round not in self.regained, f"I1: {a} is not what was kept"
        plan = self.plans.setdefault(a.round, {})
        if not plan:
            self._begins(a, lead, known, declared, nodes)
        assert self._rules.min_nodes <= a.world <= self._rules.max_nodes, f"I1: a world of {a.world} nodes"
        assert a.world % self._rules.node_unit == 0, f"I14: a world of {a.world} nodes"
        assert 0 <= a.rank < a.world, f"I1: rank {a.rank} of {a.world}"
        for other_name, other in plan.items():
            assert other.world == a.world, f"I1: round {a.round} has two sizes: {a}, {other}"
            assert (other.rank == a.rank) == (other_name == name), f"I1: round {a.round}: {name} {a}, {other}"
            if a.master_addr and other.master_addr:
                assert other.master_addr == a.master_addr, f"I1: two stores in round {a.round}"
        plan[name] = a
        if a.master_addr:
            assert plan[a.master_addr].rank == 0, "I6: rank 0 is not where the store is"
        if len(plan) == a.world:
            self._ranks(plan, members)
            self._domains(plan, members)

    def _begins(self, a: Assignment, lead: Lead, known: set[str], declared: Round, nodes: dict[str, Node]) -> None:
        lead.gone = set()
        machine = lead.machine
        here = {n: m for n, m in machine.members.items() if n in known and n not in machine._roster.left_out}
        here = {n: m for n, m in here.items() if n in machine._plan or not m.unreachable}
        heard = 0
        for m in machine.members.values():
            heard = max(heard, m.known, m.after, m.kept.round if m.kept else 0)
            assert a.round > heard, f"I7: round {a.round} begins again: {m}"
        feared = [name for name in sorted(self.unfenced) if nodes[name].round <= heard]  # not what nobody has heard of
        assert not feared, f"round {a.round} begins while {feared} may be at work"
        could = largest(here.values(), self._rules)
        assert a.world >= could, f"I2: {a.world} nodes begin, {could} could"
        if declared.number == 0:
            again = (
                any(m.unreachable for m in machine.members.values()) or machine._roster.left_out
            )  # it has waited before
            assert a.world == self._rules.max_nodes or self.waited or again, "I2: a first round waits for the last call"
        for name, member in here.items():
            if name in machine._plan:
                continue  # it has joined, though an old word of it may have been heard again since
            was_in = declared.number in self.complete and name in self.plans[declared.number]
            assert not was_in or member.after >= declared.number, f"I2: {name} has not joined and is left out"

    def _domains(self, plan: dict[str, Assignment], members: dict[str, Member]) -> None:
        """Ranks of a domain are side by side, but for those that were given by hand; it has enough nodes."""
        for domain, count in Counter(a.domain for a in plan.values()).items():
            assert count >= self._rules.min_per_domain, f"I14: {count} nodes of domain {domain!r}: {plan}"
        rest = [a for n, a in sorted(plan.items(), key=lambda each: each[1].rank) if not self._is_given(n, members)]
        blocks = [domain for domain, _ in itertools.groupby(a.domain for a in rest)]
        assert len(blocks) == len(set(blocks)), f"I14: the ranks of a domain are not side by side: {blocks}"

    def _is_given(self, name: str, members: dict[str, Member]) -> bool:
        return name in members and members[name].firm_rank is not None

    def _ranks(self, plan: dict[str, Assignment], members: dict[str, Member]) -> None:
        given = {n: rank for n in plan if n in members and (rank := members[n].firm_rank) is not None}
        last = self.complete[-1] if self.complete else 0
        before = self.plans.get(last, {})
        above = len(plan)
        for name in sorted(given, key=lambda each: given[each], reverse=True):
            above = min(given[name], above - 1)  # as given; from the top down where that is beyond the size
            assert plan[name].rank == above, f"I6: {name} has the given rank {given[name]} and gets {plan[name].rank}"
        taken = {plan[name].rank for name in given}
        whose = {a.rank: a.domain for a in plan.values()}
        sizes, were = (Counter(a.domain for a in each.values()) for each in (plan, before))
        for name, a in plan.items():
            old = before[name].rank if name in before and name not in given else a.world
            if old < a.world and old not in taken:
                # a round that came to nothing may have overwritten what was known of the one before
                ranks = {p[name].rank for number, p in self.plans.items() if last <= number < a.round and name in p}
                vain = [p for number, p in self.plans.items() if last < number < a.round]
                others = {each.rank for p in vain for node, each in p.items() if node != name}
                moved = whose[old] != a.domain and (sizes != were or given)  # its domain had to
                assert a.rank in ranks or old in others or moved, f"I6: {name} had rank {old} and gets {a.rank}"

    def round(self, new: Round, lead: Lead, known: set[str], declared: Round) -> None:
        """A leader that knew these members is about to declare ``new`` after ``declared``."""
        assert new.number >= declared.number, f"I7: {new} after {declared}"
        begun = new.number in self.plans.keys() - self.regained
        if begun and new.number in self.past and (new.state, new.world) == ("over", 0):
            return  # its number was given by who did not know of it: the places of neither are declared
        if new.number not in self.plans.keys() - (self.regained - set(self.complete)) and new.state == "over":
            assert new.number in self.past, f"{new} was never begun"
            self.regained.add(new.number)
            self.plans.setdefault(new.number, {})
            self.complete.append(new.number)
        plan, members = self.plans[new.number], lead.machine.members
        if new.state == "complete" or new.number not in self.complete:
            assert new.number > declared.number, f"{new} after {declared}"
            assert len(plan) == new.world == next(iter(plan.values())).world, f"I1: {new} with {sorted(plan)}"
            assert sorted(a.rank for a in plan.values()) == list(range(new.world)), f"I1: the ranks of {plan}"
            self.complete.append(new.number)
        if new.state == "complete":
            for name in (n for n in plan if self.left_done.get(n) != new.number):
                assert name in members, f"I1: {name} is lost, and round {new.number} complete with it"
                assert name not in lead.gone, f"I1: {name} was lost while round {new.number} was formed"
                assert members[name].reached == new.number, f"{name} has not reached the store of round {new.number}"
                kept = new.number not in self.regained or members[name].kept == plan[name]
                assert kept, f"I1: {name} does not keep its place in round {new.number}"
        if new.state == "over" and new.cause == "came":
            left = [n for n, number in self.left_done.items() if number == new.number and n not in known]
            assert not left, f"I5: {left} is done with round {new.number}, the others are not to begin again"
            here = plan.keys() & members.keys()
            room = self._rules.max_nodes if lead.gone else largest(members.values(), self._rules)
            assert len(here) < room, "I2: there was no room"

    def works(self, node: Node, place: Assignment) -> None:
        """A node starts its workers."""
        told = self.plans[place.round][node.name]
        assert place.round in self.complete, f"{node.name} works in round {place.round}"
        assert (place.rank, place.world, place.master_addr) == (told.rank, told.world, told.master_addr)


def able(world: World) -> int:
    """How many nodes a round could have of those that live and can do their part."""
    live = [node for node in world.nodes.values() if node.lives and not node.walled and not node.stuck]
    return largest((node.me for node in live), world.rules)


def at_rest(world: World) -> None:
    """Nothing is under way, and no deadline is near: is anybody waiting in vain?"""
    rules, declared = world.rules, world.declared
    live = [node for node in world.nodes.values() if node.lives]
    if not live:
        return
    size = able(world)
    odd = any(node.walled or node.stuck for node in live)
    here = [node for node in live if node.mode == "working" and not node.stuck]
    if declared.state == "complete":
        plan = world.checks.plans[declared.number]
        missing = [n for n in plan if n not in world.members and n not in world.checks.left_done]
        assert not missing or world.finishing == declared.number, (
            f"I4: {missing} was lost, and round {declared.number} goes on"
        )
        assert {node.name for node in here} <= plan.keys(), "somebody works who is in no round"
        for node in (node for node in live if not node.stuck):
            assert node.name not in plan or node.round == declared.number, f"{node.name} is not in its round"
            assert node.name not in plan or node.mode == "working", f"{node.name} waits for a round that it is in"
        if any(node.stuck and node.mode == "working" for node in live):
            return  # it may be in the round, or not have heard that this is over
        done = any(number == declared.number for number in world.checks.left_done.values())
        if not done and not any(node.me.done for node in live):
            assert len(plan) == size or (odd and len(plan) > size), f"I2: {len(plan)} nodes work, {size} could"
            for node in live if rules.node_unit > 1 or rules.min_per_domain > 1 else ():
                told = node.name in plan or (node.place is not None and not node.place.is_place)
                assert told or odd, f"{node.name} waits beside a round and has not been told why"
        return
    if declared.state == "failed":
        assert any(node.walled for node in world.nodes.values()), declared
        return
    assert not here, f"I4: {[node.name for node in here]} works though {declared}"
    assert size < rules.min_nodes, f"deadlock: {size} nodes could begin, {rules.min_nodes} are enough; {declared}"
