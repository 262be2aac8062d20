"""Every order in which things can happen in a small job: all states are visited, and none is a dead end.

Nodes start one after another; messages arrive in any order that the watches allow, singly or together; any
node can be lost, lose its session, ask for another round or be done, and a leader can die in the middle of
a write. In each state section 6 of the design holds (``membership_checks``), and each leads to rest:
a complete round, or a wait for want of nodes.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Hashable, Iterator
from typing import Any, NamedTuple

import pytest
from kits.unit.many_worlds import without_collections
from kits.unit.membership_checks import at_rest
from kits.unit.membership_world import World

from rdzv_plugins.elastic.keys import Member
from rdzv_plugins.elastic.leading.claims import Claims
from rdzv_plugins.elastic.leading.kept_round import KeptRound
from rdzv_plugins.elastic.leading.left_out import LeftOut
from rdzv_plugins.elastic.leading.membership import Rules
from rdzv_plugins.elastic.leading.ranks import Former
from rdzv_plugins.elastic.leading.roster import Roster

Action = tuple[str, tuple[Any, ...]]


class Case(NamedTuple):
    """A job, and how often what can happen to it."""

    rules: Rules
    ranks: tuple[int | None, ...]
    domains: tuple[str, ...] = ()
    """One for each node; none: nothing is known of that."""
    rounds: int = 2
    lose: int = 0
    cut: int = 0
    ask: int = 0
    leave: int = 0
    split: int = 0
    forget: int = 0
    """The service loses its memory."""
    kill: int = 0
    """A process is gone: its host tells the others, or the service after the time to live."""


N2, N3 = (None, None), (None, None, None)
CASES = [
    Case(Rules(1, 2), N2, lose=1, ask=1),
    Case(Rules(1, 2), N2, cut=1),
    Case(Rules(2, 2), N2, cut=1, ask=1),
    Case(Rules(1, 1), N2, lose=1, split=1, ask=1),
    Case(Rules(1, 2), N2, leave=2, lose=1),
    Case(Rules(1, 2), N3, leave=1, rounds=1),
    Case(Rules(1, 3), N3, rounds=1),
    Case(Rules(2, 2), N3, lose=2),
    Case(Rules(2, 3), N3, lose=1),
    Case(Rules(3, 3), N3, ask=1),
    Case(Rules(1, 2), (0, 0), cut=1),
    Case(Rules(2, 2), (0, 1, 1), lose=1),
    Case(Rules(1, 1), N2, forget=2, rounds=1),
    Case(Rules(2, 2), N2, forget=1, lose=1),
    Case(Rules(2, 2), N2, forget=1, ask=1),
    Case(Rules(1, 2), N2, forget=1, ask=1),
    Case(Rules(2, 2), N2, forget=1, split=1),
    Case(Rules(1, 2), N2, kill=1, ask=1),
    Case(Rules(1, 2), N2, kill=1, leave=1),
    Case(Rules(1, 1), N2, kill=1, cut=1),
    Case(Rules(1, 1), N2, kill=1, split=1),
    Case(Rules(2, 2), N3, kill=1),
    Case(Rules(1, 2), (0, 0), kill=1),
    Case(Rules(2, 2), N2, kill=1, forget=1),
    Case(Rules(2, 2, node_unit=2), N3, lose=1),
    Case(Rules(2, 4, node_unit=2), N3, rounds=1),
    Case(Rules(1, 2), N3, ("r", "s", "r"), lose=1),
    Case(Rules(1, 3), N3, ("r", "s", "r"), rounds=1),
    Case(Rules(2, 3, min_per_domain=2), N3, ("r", "s", "r"), rounds=1),
    Case(Rules(2, 2, min_per_domain=2), N3, ("r", "s", "r"), lose=1),
    Case(Rules(1, 2, min_per_domain=2), N2, ("r", "r"), cut=1),
    Case(Rules(2, 2, min_per_domain=2), N2, ("r", "r"), forget=1, split=1),
    Case(Rules(2, 2), (1, 0, None), ("r", "s", "s"), lose=1),
]


def member(number: int, rank: int | None, domain: str) -> Member:
    return Member(
        node_id=f"n{number}",
        host=f"h{number}",
        machine=f"m{number}",
        pid=number,
        address="10.0.0.1",
        public="",
        nproc=1,
        node_rank=rank,
        domain=domain,
    )


def fair(world: World) -> Iterator[Action]:
    """What is bound to happen, sooner or later."""
    for node in world.nodes.values():
        if node.cut and node.mode in ("joining", "working"):
            yield "back", (node.name,)
        elif node.lives and (node.of_all or node.of_own):
            yield "read", (node.name,)
            if len(node.of_all) + len(node.of_own) > 1:
                yield "read", ((node.name, 1, 0) if node.of_all else (node.name, 0, 1))
    yield from (("expire", (name,)) for name in world.lingering())
    if world.lead is None and world.led_by:
        yield from (("campaign", (node.name, world.led_by)) for node in world.nodes.values() if node.lives)
        return
    if world.lead is None:
        yield from (("campaign", (node.name,)) for node in world.nodes.values() if node.lives)
        return
    yield from (("prove", (name,)) for name in world.lingering() if name not in world.lead.proved)
    if world.lead.inbox:
        yield "hear", (1,)
        if len(world.lead.inbox) > 1:
            yield "hear", ()
    elif world.deadline() is not None:
        yield "pass_time", ()


def others(world: World, spent: dict[str, int], case: Case) -> Iterator[Action]:
    """What may happen, as often as ``case`` allows."""
    off = next((node for node in world.nodes.values() if node.mode == "off"), None)
    if off is not None:
        yield "start", (off.name,)
    rounds = max(world.checks.plans, default=0)
    for node in world.nodes.values():
        if node.mode not in ("joining", "working"):
            continue
        if spent["lose"] < case.lose:
            yield "lose", (node.name,)
        if spent["kill"] < case.kill:
            yield "kill", (node.name,)
        if node.cut:
            continue
        if spent["cut"] < case.cut:
            yield "cut", (node.name,)
        if node.mode == "working":
            if spent["ask"] < case.ask and rounds < case.rounds:
                yield "ask", (node.name,)
            if node.me.done:
                yield "leave", (node.name,)
            elif spent["done"] < case.leave:
                yield "done", (node.name,)
    if spent["forget"] < case.forget and world.declared.number:
        yield "forget", ()
    if world.lead is not None and world.lead.inbox and spent["split"] < case.split:
        for written in (1, 2):
            yield "hear_and_die", (1, written)


_PARTS = (Roster, Claims, Former, LeftOut, KeptRound)
_CHANGE = frozenset((*_PARTS, dict, list, set))


def frozen(value: Any) -> Hashable:
    kind = type(value)
    if kind is dict:
        return tuple([(k, frozen(v) if type(v) in _CHANGE else v) for k, v in value.items()])
    if kind is list:
        return tuple([frozen(each) if type(each) in _CHANGE else each for each in value])
    if kind in _PARTS:
        return frozen(vars(value))
    return frozenset(value) if kind is set else value


def key(world: World, spent: dict[str, int]) -> Hashable:
    """Equal for worlds in which the same can happen."""
    parts: list[Hashable] = [tuple(spent.values()), world.finishing, world.declared]
    for node in world.nodes.values():
        parts += [node.me, node.mode, node.cut, node.lingers, node.round, node.declared, node.place, node.finishing]
        parts += [tuple(node.of_all), tuple(node.of_own), node.newest, node.kept, node.works_at]
    parts += [tuple(world.members), frozenset(world.assigned.items()), world.led_by]
    parts += [frozen(world.checks.past), frozenset(world.checks.regained)]
    parts += [frozen(world.checks.plans), tuple(world.checks.complete), frozen(world.checks.left_done)]
    if world.lead is not None:
        parts += [world.lead.node, tuple(world.lead.inbox), frozenset(world.lead.gone)]
        parts += [frozenset(world.lead.proved)]
        parts += [frozen(value) for value in vars(world.lead.machine).values()]
    return hash(tuple(parts))


class Explorer:
    """Visits all states of a case."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.number: dict[Hashable, int] = {}
        self.why: list[tuple[int, Action | None]] = []
        self.leads_here: list[list[int]] = []
        """By state: the states from which something that is bound to happen leads to it."""
        self.at_rest: list[int] = []

    def story(self, state: int) -> str:
        """How a state was reached, for people."""
        steps: list[str] = []
        while state:
            state, action = self.why[state]
            assert action is not None
            steps.append(f"{action[0]}{action[1]}")
        return "; ".join(reversed(steps))

    def visit_all(self) -> None:
        domains = itertools.chain(self.case.domains, itertools.repeat(""))
        members = [member(n, *each) for n, each in enumerate(zip(self.case.ranks, domains, strict=False))]
        world = World(self.case.rules, members)
        spent = dict.fromkeys(("lose", "cut", "ask", "done", "split", "forget", "kill"), 0)
        todo = deque([(self._found(world, spent, 0, None), world, spent)])
        while todo:
            state, world, spent = todo.popleft()  # breadth first: the shortest story
            bound = list(fair(world))
            if not bound:
                self._rests(state, world)
            for is_fair, action in [(True, a) for a in bound] + [(False, a) for a in others(world, spent, self.case)]:
                after, now_spent = world.copy(), spent
                name = {"hear_and_die": "split"}.get(action[0], action[0])
                if name in spent:
                    now_spent = {**spent, name: spent[name] + 1}
                try:
                    getattr(after, action[0])(*action[1])
                except Exception as error:
                    raise AssertionError(f"{self.story(state)}; {action[0]}{action[1]}: {error!r}") from error
                known = len(self.why)
                found = self._found(after, now_spent, state, action)
                if is_fair:
                    self.leads_here[found].append(state)
                if found == known:
                    todo.append((found, after, now_spent))

    def _found(self, world: World, spent: dict[str, int], before: int, action: Action | None) -> int:
        state = self.number.setdefault(key(world, spent), len(self.why))
        if state == len(self.why):
            self.why.append((before, action))
            self.leads_here.append([])
        return state

    def _rests(self, state: int, world: World) -> None:
        self.at_rest.append(state)
        try:
            at_rest(world)
        except AssertionError as error:
            raise AssertionError(f"{self.story(state)}: {error}") from None

    def restless(self) -> list[int]:
        """States from which no rest is ever reached."""
        reached, todo = set(self.at_rest), self.at_rest.copy()
        while todo:
            for state in self.leads_here[todo.pop()]:
                if state not in reached:
                    reached.add(state)
                    todo.append(state)
        return [state for state in range(len(self.why)) if state not in reached]


def name(case: Case) -> str:
    events = "".join(f"-{name}{count}" for name, count in case._asdict().items() if isinstance(count, int) and count)
    rules = case.rules
    shape = "".join(
        f"-{key}{value}" for key, value in (("u", rules.node_unit), ("d", rules.min_per_domain)) if value > 1
    )
    return f"{rules.min_nodes}:{rules.max_nodes}{shape}-{'-'.join(map(str, case.ranks + case.domains))}{events}"


@pytest.mark.parametrize(
    "case",
    [*CASES[1::4], *(pytest.param(case, marks=pytest.mark.thorough) for at, case in enumerate(CASES) if at % 4 != 1)],
    ids=name,
)
def test_every_order_of_events(case: Case):
    explorer = Explorer(case)
    with without_collections():
        explorer.visit_all()
    print(f"{len(explorer.why)} states, {len(explorer.at_rest)} at rest")
    assert not explorer.restless(), explorer.story(explorer.restless()[0])
    assert explorer.at_rest
