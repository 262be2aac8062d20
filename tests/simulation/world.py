"""A job of nodes with the real elastic engine, in simulated time: reactor, leader, watchdog, liveness, all of it.

A node does what an agent does with its rendezvous: it joins, works, is told that its round is over, joins again, and
ends. Whatever happens is a line of the story: (time, who, what).
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

from msgspec import Struct

from rdzv_plugins.coordination import CoordinationBackend
from rdzv_plugins.elastic.failover import FailoverBackend
from rdzv_plugins.elastic.handler import ElasticHandler
from rdzv_plugins.elastic.keys import LEADER, LeaderInfo, decode
from rdzv_plugins.elastic.options import ElasticOptions
from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.errors import RdzvError, SpareReleased
from rdzv_plugins.interfaces import Failure, Outcome, Request, RoundEvent
from simulation.machines import Machines
from simulation.round_stores import DialledStore, ProxiedStore
from simulation.scheduler import Stuck, Thread
from simulation.service import PORT, Service
from simulation.sessions import Coordination

TTL_S = 5.0
_BEGAN = 1000.0
"""The scheduler's time when it begins."""
_WITH_S = 0.3
"""How soon workers fail when a node of their round is gone."""


class Work(Struct, frozen=True):
    """What a node's workers do in each round: they succeed after ``seconds``, or fail, in the first starts."""

    seconds: float = 20.0
    fails: tuple[float, ...] = ()
    """After how many seconds they fail, start after start."""


class Place(Struct, frozen=True):
    """Where a node was when a round was complete for it."""

    round: int
    rank: int
    world: int
    store: str
    at: float

    @property
    def which(self) -> tuple[int, str]:
        """Which round it is in: a service that has forgotten all may give a number again."""
        return self.round, self.store


class Node:
    """One node, in a process of its own. What is known about it are attributes."""

    def __init__(
        self, world: World, name: str, host: str, request: Request, work: Work, hosts_service: bool = False
    ) -> None:
        self.hosts_service = hosts_service
        self._world, self.name, self.request, self.work = world, name, request, work
        self.process, self._entry, self.runtime = world.boot(name, host)
        self.began = world.now
        self.places: list[Place] = []
        self.works = False
        """Its workers run, in the last of its places."""
        self.restarts = 0
        self.end = ""
        """``done``, ``failed``, ``lost``, or the name of the error by which it ends."""
        self.error: RdzvError | None = None
        self.ended_at: float | None = None
        self.hindered = False
        """It was killed, or told to leave, or should not have been started, or so: it may end as it likes."""
        self.held_up = False
        """Something has happened to it alone for a time: it may be later than the others."""
        self._leave: Outcome | None = None
        self._fails = list(work.fails)
        self._failed_with = 0
        """The round in which its workers fail because others are gone."""
        self._news = self.runtime.Event()
        self.handler: Any = None
        world.scheduler.spawn(self.process, "main", self._main)

    @property
    def lives(self) -> bool:
        return not self.process.killed

    @property
    def place(self) -> Place | None:
        return self.places[-1] if self.places else None

    @property
    def is_to_leave(self) -> bool:
        """Whether it was told to: it does so when it is in no call of its handler."""
        return self._leave is not None

    def leave(self, outcome: Outcome) -> None:
        """Have it leave the job, as by a signal."""
        self._leave = outcome
        self._news.set()

    def fail_with(self, round_: int) -> None:
        """Its workers of a round fail, because others of it are gone."""
        self._failed_with = round_
        self._news.set()

    def _main(self) -> None:
        way = self._world.way_of(self)
        self.handler = handler = ElasticHandler(
            way,
            self.request,
            self._world.options,
            several=way if isinstance(way, FailoverBackend) else None,
            runtime=self.runtime,
            store=ProxiedStore if self._world.options.store == "tiered" else DialledStore,  # type: ignore[arg-type]
        )
        handler.holding.on_news(self._news.set)
        handler.tell_events(self._hear)
        try:
            while not self.end:
                info = handler.next_rendezvous()
                number = int(handler.worker_env()["RDZV_ROUND"])
                where = info.bootstrap_store_info
                self._enter(number, info.rank, info.world_size, f"{where.master_addr}:{where.master_port}")
                self._work(number)
                self.works = False
        except SpareReleased:
            self.end = "released"
        except RdzvError as error:
            self.end, self.error = type(error).__name__, error
        self.works = False
        self._world.tell(self.name, "ends", self.end, str(self.error or ""))
        self._world.oracles.ends(self)
        handler.shutdown()
        self.ended_at = self._world.now
        self._world.scheduler.at(self._world.scheduler.now, lambda: self._world.processes.end(self._entry, 0))

    def _hear(self, event: RoundEvent) -> None:
        if event.kind == "over":
            self._world.tell(self.name, f"hears that round {event.round} is over:", event.reason)

    def _enter(self, number: int, rank: int, world: int, store: str) -> None:
        place = Place(number, rank, world, store, self._world.now)
        self.places.append(place)
        self.works = True
        self._world.tell(self.name, "works", f"round {place.round}", f"rank {place.rank} of {place.world}")
        self._world.entered(self, place)

    def _work(self, round_: int) -> None:
        """Until the workers have ended, or the round is over, or this node is to leave."""
        handler, runtime = self.handler, self.runtime
        fails = self._fails.pop(0) if self._fails else None
        until = runtime.monotonic() + (self.work.seconds if fails is None else fails)
        while (left := until - runtime.monotonic()) > 0:
            self._news.clear()
            if handler.num_nodes_waiting():
                self._world.break_round(self)
                return
            if self._leave is not None:
                self._depart(self._leave)
                return
            if self._failed_with == round_:
                self._failed_with = 0
                if handler.peer_lost():
                    return
                self._restart("others of the round are gone, and nobody is missing")
                return
            self._news.wait(left)
        if fails is not None:
            self._fail()
            return
        self.works = False
        handler.note_done()
        self._depart(Outcome("done", ""))

    def _fail(self) -> None:
        self._world.tell(self.name, "its workers fail")
        self._world.failed(self)
        failure = Failure(0, self.name, self.runtime.getpid(), 0, 1, 1)
        with contextlib.suppress(RdzvError, TimeoutError):  # it is told by whoever can
            self.handler.note_failure(failure)
        if self.handler.peer_lost():
            return
        if self.restarts < self.request.max_restarts:
            self._restart("its workers have failed")
        else:
            self._depart(Outcome("failed", f"workers of {self.name} have failed", failure))

    def _restart(self, why: str) -> None:
        self.restarts += 1
        self._world.tell(self.name, "restarts", why)
        self._world.restarted(self)

    def _depart(self, outcome: Outcome) -> None:
        self.works = False
        self.end = outcome.end
        if outcome.end == "lost":
            self.handler.note_leaving(outcome.reason)
        self._world.tell(self.name, "leaves", outcome.end)
        self.handler.leave(outcome)


class World(Machines):
    """One job. ``low`` and ``high`` are those of --nnodes. ``now`` counts from 0."""

    def __init__(
        self,
        seed: int = 1,
        nodes: int = 3,
        low: int | None = None,
        high: int | None = None,
        work: Work | None = None,
        *,
        by_connection: bool = True,
        max_restarts: int = 0,
        places: int = 0,
        **options: Any,
    ) -> None:
        """``places``: the first so many hosts of nodes are endpoints, each served by its node; there is no service."""
        super().__init__(seed)
        self.random = self.scheduler.random
        hosts = [f"10.0.0.{number + 1}" for number in range(places)] or ["service"]
        self.services = [Service(self.network, host, by_connection=by_connection, by_node=places > 0) for host in hosts]
        self.has_places = places > 0
        self.low, self.high, self.work = low or nodes, high or max(nodes, low or 0), work or Work()
        settled = {"timeout": 300.0, "last_call_timeout": 3.0, "ttl": TTL_S, "reach_timeout": 10.0} | options
        self.options = ElasticOptions(allow_same_host=True, **settled)
        self.max_restarts = max_restarts
        self.story: list[tuple[float, str, tuple[str, ...]]] = []
        self.nodes: list[Node] = []
        self.disturbed_at = 0.0
        """When something last happened to the job from outside."""
        self._hosts = self._left = 0
        self._script_runs = False
        from simulation.oracles import Oracles

        self.oracles = Oracles(self)
        for each in self.services:
            each.store.on_write = functools.partial(self.oracles.written, each)
        for _ in range(nodes):
            self.add()

    def __getitem__(self, number: int) -> Node:
        return self.nodes[number]

    @property
    def now(self) -> float:
        return self.scheduler.now - _BEGAN

    @property
    def living(self) -> list[Node]:
        return [each for each in self.nodes if each.lives and not each.end]

    @property
    def service(self) -> Service:
        """The one that the nodes meet at: of several places, that with the newest round."""
        if len(self.services) == 1:
            return self.services[0]
        return max(self.services, key=lambda each: (not each.process.killed, each.newest))

    @property
    def server(self) -> Node:
        """The node that serves the place where the nodes meet."""
        return next(each for each in self.nodes if each.process is self.service.process)

    def way_of(self, node: Node) -> CoordinationBackend:
        """How a node reaches the service; of several places, it serves the one that is its own."""
        if not self.has_places:
            return Coordination(self.service, node.runtime, hosts_service=node.hosts_service)  # type: ignore[arg-type, return-value]
        own = next((at for at, each in enumerate(self.services) if each.host == node.process.host), None)
        if own is not None and self.services[own].process.killed:
            self.services[own].start(memory=False, process=node.process)
        ways: Any = [
            Coordination(each, node.runtime, hosts_service=each.process is node.process)  # type: ignore[arg-type]
            for each in self.services
        ]
        where = [Endpoint(each.host, PORT) for each in self.services]
        return FailoverBackend(where, ways, own, self.options.ttl, node.runtime)

    @property
    def leader(self) -> Node:
        """The node whose key says that it leads."""
        leading = decode(LeaderInfo, self.service.store.keys[LEADER][0].value)
        return next(each for each in self.nodes if each.handler._registration.me.node_id == leading.node_id)

    def add(
        self,
        *,
        rank: int | None = None,
        host: str = "",
        work: Work | None = None,
        hosts_service: bool = False,
        **given: Any,
    ) -> Node:
        """Another node; ``given`` are fields of its request. ``hosts_service``: it says that the service is its own."""
        if not host:
            self._hosts += 1
            host = f"10.0.0.{self._hosts}"
        fields: dict[str, Any] = {
            "nproc_per_node": 1,
            "max_restarts": self.max_restarts,
            "entrypoint": ("train.py",),
        } | given
        request = Request("simulated", "job", "service:1", self.low, self.high, node_rank=rank, **fields)
        made = Node(self, f"n{len(self.nodes)}", host, request, work or self.work, hosts_service)
        self.nodes.append(made)
        self._left += 1
        made.process.on_end.append(self._one_less)
        self.disturbed(made.name, "comes")
        return made

    def _one_less(self) -> None:
        self._left -= 1

    # What is told

    def tell(self, who: str, *what: str) -> None:
        self.story.append((round(self.now, 6), who, what))

    def disturbed(self, who: str, *what: str) -> None:
        """Something happens from outside."""
        self.disturbed_at = self.now
        self.tell(who, *what)

    def entered(self, node: Node, place: Place) -> None:
        self.oracles.entered(node, place)

    def failed(self, node: Node) -> None:
        """Workers fail by themselves: all others of the round fail with them."""
        self.oracles.failed(node)
        self.break_round(node)

    def restarted(self, node: Node) -> None:
        self.oracles.restarted(node)

    def break_round(self, gone: Node) -> None:
        """The workers of its round that need those of ``gone`` fail."""
        place = gone.place
        if place is None:
            return
        for each in self.nodes:
            if each is not gone and each.works and each.place is not None and each.place.which == place.which:
                after = self.scheduler.now + _WITH_S * (1 + self.random.random())
                self.scheduler.at(after, lambda each=each: each.lives and each.fail_with(place.round))

    # What happens

    def all_work(self, *nodes: Node) -> bool:
        """Whether the workers of these nodes run, or of all that live, in one round."""
        wanted = list(nodes) or self.living
        rounds = {each.place.round for each in wanted if each.works and each.place is not None}
        return len(rounds) == 1 and all(each.works for each in wanted)

    def goes_on_without(self, node: Node) -> list[Node]:
        """Let the others enter a second round; returns them."""
        rest = [each for each in self.nodes if each is not node]
        self.until(lambda: all(len(each.places) == 2 for each in rest), 300.0)
        return rest

    def run(self, limit: float = 3000.0) -> World:
        """Until all nodes have ended; then the oracles have the last word. Raises ``AssertionError``."""
        try:
            self.until(lambda: not self._left and not self._script_runs, limit)
        except Stuck as error:
            if not self.scheduler.failed:  # a node whose thread has ended by an error does not end: ``ended`` says so
                self.oracles.wrong("I13", f"the job hangs: {error}")
        return self.close()

    def close(self) -> World:
        """Stop here."""
        self.oracles.ended()
        self.scheduler.close()
        assert not self.oracles.violations, "\n".join(self.oracles.violations)
        return self

    def script(self, run: Callable[[], object]) -> Thread:
        """Something that happens beside all else, on a thread that nothing happens to."""
        self._script_runs = True
        return self.scheduler.spawn(self.scheduler.process("script"), "script", run)

    def comes_nothing_more(self) -> None:
        """The script is over."""
        self._script_runs = False
