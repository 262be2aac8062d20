"""Jobs from seeds: how many nodes a job has, what its options are, what happens to it, and when.

A seed is the same job anywhere. Most faults are aimed: each waits until the job's round is in a certain state, as some
last milliseconds. What a fault is depends on the seed and its number alone, so that one can be left out.
"""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Callable, Collection, Iterable

from msgspec import Struct

from rdzv_plugins.elastic import keys
from rdzv_plugins.elastic.keys import Assignment, Round, decode
from simulation import troubles
from simulation.network import Network
from simulation.scheduler import Process, Scheduler, Stuck
from simulation.service import Store
from simulation.world import Work, World

_MOST_TROUBLES = 5
_FORGETS = "service without memory"
_TIMEOUT_S = 120.0
"""Of a node that joins: longer than anything that happens. Nothing is learnt from those that wait longer, alone."""
_ONE_RANK = 0.2
"""How often a rank is given twice, in jobs whose nodes have ranks."""


class Cut(Struct, frozen=True):
    """A smaller job of a seed: so many nodes, and these of its faults; None: all."""

    nodes: int | None = None
    faults: tuple[int, ...] | None = None


ALL = Cut()


class RandomJob:
    """One job. Facts about it are attributes, once it has run."""

    states: tuple[str, ...] = ()
    """Those that a round may be in when a fault meets it."""
    rare: tuple[str, ...] = ()
    """Those of them that are seldom met: more faults are aimed at them."""
    oracles: tuple[str, ...] = ()
    """Those that must have something to judge, by the invariant of the design that each is about."""

    @classmethod
    def names(cls) -> list[str]:
        """The kinds of its faults."""
        raise NotImplementedError

    def __init__(self, seed: int, cut: Cut, scheduler: Scheduler, network: Network) -> None:
        self.seed, self.cut, self._scheduler = seed, cut, scheduler
        self.met: Counter[tuple[str, str]] = Counter()
        """How often each kind of fault met each state."""
        self.nodes = self.faults = 0
        """How many it has by its seed."""
        self._aimed: list[tuple[str, random.Random]] = []
        self._sends: list[tuple[float, Process, Process, object]] | None = None
        network.on_send = self._sent

    def run(self) -> None:
        """To its end, whatever that is. Raises ``AssertionError`` and ``Stuck``."""
        raise NotImplementedError

    @property
    def violations(self) -> Iterable[str]:
        """What was wrong, each text with the name of the oracle before its first colon or space."""
        raise NotImplementedError

    @property
    def judged(self) -> Counter[str]:
        """How often each oracle had something to judge."""
        raise NotImplementedError

    @property
    def ends(self) -> Iterable[str]:
        """How each node has ended."""
        raise NotImplementedError

    @property
    def story(self) -> list[tuple[float, str, str]]:
        """What has happened: when, to whom, what."""
        raise NotImplementedError

    def record(self) -> RandomJob:
        """Have it remember what is sent: call this before ``run``, for ``digest``."""
        self._sends = []
        return self

    @property
    def digest(self) -> str:
        """Of all writes, messages and decisions, with their times."""
        whole = hashlib.sha256()
        assert self._sends is not None
        for now, source, target, message in self._sends:
            whole.update(f"{now:.6f} {source} {target} {message!r}\n".encode())
        for when, who, what in self.story:
            whole.update(f"{when:.6f} {who} {what}\n".encode())
        return whole.hexdigest()

    # What happens

    def _begin(self, nodes: int, faults: int, within: float) -> int:
        """Plan its faults; returns how many nodes it has."""
        self.nodes, self.faults = nodes, faults
        for number in range(faults):
            rng = random.Random(f"{self.seed} fault {number}")
            aim = rng.choice(("", *self.states, *self.states, *self.rare, *self.rare))
            due = self._scheduler.now + rng.random() * within * (rng.random() < 0.5 or not aim)
            if self.cut.faults is None or number in self.cut.faults:
                self._scheduler.at(due, lambda aim=aim, rng=rng: self._comes(aim, rng))
        return nodes if self.cut.nodes is None else min(nodes, self.cut.nodes)

    def _comes(self, aim: str, rng: random.Random) -> None:
        if aim:
            self._aimed.append((aim, rng))
            self._look()
        else:
            self._happens(rng, aim)

    def _look(self) -> None:
        """See whether somebody waits for a state that there is now."""
        there = self._states_now() if self._aimed else ()
        for each in self._aimed[:]:
            aim, rng = each
            if aim in there:
                self._aimed.remove(each)
                soon = max(0.0, rng.random() - 0.5) * 0.02  # at once, or a moment later
                self._scheduler.at(self._scheduler.now + soon, lambda aim=aim, rng=rng: self._happens(rng, aim))

    def _sent(self, source: Process, target: Process, message: object) -> None:
        if self._sends is not None:
            self._sends.append((self._scheduler.now, source, target, message))
        if self._aimed:
            self._look()

    def _states_now(self) -> Collection[str]:
        """Those that its round is in now, for any node."""
        raise NotImplementedError

    def _happens(self, rng: random.Random, aim: str) -> None:
        """Let something happen, to a node in that state if it can be chosen."""
        raise NotImplementedError


class EngineJob(RandomJob):
    """Nodes with the elastic engine."""

    states = ("gathering", "forming", "working", "over", "ending")
    rare = ("over",)
    oracles = ("I1", "I2", "I3", "I4", "I5", "I6", "I8", "I9", "I10", "I11", "I13")

    @classmethod
    def names(cls) -> list[str]:
        return list(troubles.KINDS)

    def __init__(self, seed: int, cut: Cut) -> None:
        rng = random.Random(f"job {seed}")
        low = rng.choice((1, 2, 2, 2, 3))
        high = low + rng.choice((0, 0, 1, 1, 2))
        self._ranked = ranked = rng.random() < 0.2
        nodes = rng.randint(low, high + 1)
        places = min(rng.choice((0, 0, 0, 2, 3)), nodes if cut.nodes is None else cut.nodes)
        work = Work(seconds=rng.choice((10.0, 15.0, 25.0)), fails=(5.0,) if rng.random() < 0.15 else ())
        most = high if cut.nodes is None else min(high, cut.nodes)
        world = self.world = World(
            seed,
            0,
            min(low, most),
            most,
            work,
            by_connection=rng.random() < 0.7 or places > 1,
            max_restarts=rng.choice((0, 1, 3)),
            places=places if places > 1 else 0,
            timeout=_TIMEOUT_S,
        )
        super().__init__(seed, cut, world.scheduler, world.network)
        # a service that has forgotten the job is anybody's: a stranger with other settings may be the first there
        never = {rng.choice((_FORGETS, "settings")), *(troubles.AT_THE_SERVICE if places > 1 else ())}
        self._kinds = [each for each in self.names() if each not in never]
        self._known: tuple[object, ...] = ()
        self._state = ""
        faults = rng.randint(0, _MOST_TROUBLES)
        nodes = self._begin(nodes, faults, 12.0 * faults)

        def script() -> None:
            for number in range(nodes):
                world.add(rank=number if ranked and number < high else None)
                world.scheduler.sleep(rng.random() * 3)
            world.comes_nothing_more()

        world.script(script)

    def run(self) -> None:
        self.world.run()

    @property
    def violations(self) -> list[str]:
        return self.world.oracles.violations

    @property
    def judged(self) -> Counter[str]:
        return self.world.oracles.judged

    @property
    def ends(self) -> list[str]:
        return [each.end or "killed" for each in self.world.nodes]

    @property
    def story(self) -> list[tuple[float, str, str]]:
        return [(when, who, " ".join(what)) for when, who, what in self.world.story]

    def _states_now(self) -> Collection[str]:
        return (self._state_now(),)

    def _state_now(self) -> str:
        """Looked for again only if something has been written."""
        store = self.world.service.store
        known = store, len(store.runs), store.revision
        if known != self._known:
            self._known, self._state = known, state_of(store)
        return self._state

    def _happens(self, rng: random.Random, aim: str) -> None:
        kind = rng.choice(self._kinds)
        if self._ranked and rng.random() < _ONE_RANK:
            kind = "one rank twice"
        if aim == "gathering" and self.seed % 50 < 2 and _FORGETS in self._kinds:
            kind = _FORGETS  # in half of the jobs, and a job gathers for a moment: by chance hardly any meets it

        def happens() -> None:
            state = self._state_now()
            if troubles.happens(self.world, kind, rng):
                self.met[kind, state] += 1

        self._scheduler.spawn(self._scheduler.process("script"), kind, happens)


def state_of(store: Store) -> str:
    """The state of the newest round that a service knows."""
    held = {name: kv.value for name, (kv, _) in store.keys.items()}
    declared = decode(Round, held[keys.ROUND]) if keys.ROUND in held else Round()
    if keys.END in held or keys.FINISHING in held:
        return "ending"
    if any(_round_of(value) > declared.number for name, value in held.items() if name.startswith(keys.NODES)):
        return "forming"
    return {"complete": "working", "over": "over"}.get(declared.state, "gathering")


def _round_of(value: bytes) -> int:
    try:
        place = decode(Assignment, value)
    except ValueError:  # a stranger's
        return 0
    return place.round if place.is_place else 0


def failure_of(make: Callable[[Cut], RandomJob], cut: Cut) -> str:
    """What is wrong with a job: the first oracle that says so, and what it says; empty if all is well."""
    job = make(cut)
    try:
        job.run()
    except (AssertionError, Stuck) as error:
        return next(iter(job.violations), f"I13 {error}")
    return ""


def shrunk(make: Callable[[Cut], RandomJob]) -> tuple[Cut, str]:
    """The smallest job with the same thing wrong: without one of its faults, or with a node less, it is not so."""
    job = make(ALL)
    faults, what = tuple(range(job.faults)), failure_of(make, ALL)
    oracle = what.partition(" ")[0]

    def still(smaller: Cut) -> bool:
        nonlocal what
        found = failure_of(make, smaller)
        what = found if (same := found.partition(" ")[0] == oracle) else what
        return same

    size = len(faults)
    while size:
        parts = [faults[at : at + size] for at in range(0, len(faults), size)]
        smaller = (tuple(each for each in faults if each not in part) for part in parts)
        found = next((each for each in smaller if still(Cut(None, each))), None)
        size = size // 2 if found is None else min(size, len(found))
        faults = faults if found is None else found
    nodes = job.nodes
    while nodes > 1 and still(Cut(nodes - 1, faults)):
        nodes -= 1
    return Cut(nodes if nodes < job.nodes else None, faults), what  # as many as it has may be fewer than it could have
