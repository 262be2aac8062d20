"""The real elastic engine, as a ``Job`` of whole agents has it.

Only the sockets of the agents' store of a round are left out: what is in it is known to all at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from math import inf
from typing import TYPE_CHECKING, Any

from rdzv_plugins.elastic.handler import ElasticHandler
from rdzv_plugins.elastic.keys import END, MEMBERS
from rdzv_plugins.elastic.options import ElasticOptions
from rdzv_plugins.errors import StoreLost, StoreTimeout
from rdzv_plugins.interfaces import Outcome, Request, RoundEvent, RoundInfo
from rdzv_plugins.rounds.ends import parse_outcome
from simulation.agent import Agent
from simulation.round_stores import DialledStore
from simulation.scheduler import Thread
from simulation.service import Service
from simulation.sessions import Coordination

if TYPE_CHECKING:
    from simulation.job import Job

_ASK_S = 0.002


@dataclass
class Round:
    """One round, as those who are in it have entered it."""

    number: int
    said: int = 0
    """Its number as the engine says it: a service that has forgotten the job counts from 1 again."""
    over: str = ""
    """Why it is over, if it is."""


class AgentsStore:
    """That of the agents of a round. Its waits end when the node's own store says so."""

    timeout = timedelta(seconds=60)

    def __init__(self, engine: Engine, own: DialledStore, round_: int, data: dict[str, bytes]) -> None:
        self._engine, self._own, self._round, self._data = engine, own, round_, data

    def set(self, key: str, value: str) -> None:
        self._use()
        self._data[key] = value.encode()
        self._engine.wake()

    def get(self, key: str) -> bytes:
        self.wait([key], self.timeout)
        return self._data[key]

    def add(self, key: str, amount: int) -> int:
        self._use()
        value = int(self._data.get(key, b"0")) + amount
        self._data[key] = str(value).encode()
        self._engine.wake()
        return value

    def check(self, keys: list[str]) -> bool:
        self._use()
        return all(key in self._data for key in keys)

    def multi_set(self, keys: list[str], values: list[str]) -> None:
        for key, value in zip(keys, values, strict=True):
            self.set(key, value)

    def multi_get(self, keys: list[str]) -> Sequence[bytes]:
        return [self.get(key) for key in keys]

    def wait(self, keys: list[str], timeout: timedelta) -> None:
        engine = self._engine
        if not engine.scheduler.wait_until(engine.waiting, lambda: self.check(keys), timeout.total_seconds()):
            raise StoreTimeout(f"not there: {keys}")

    def _use(self) -> None:
        self._engine.scheduler.sleep(_ASK_S)
        round_, reason = self._own.over
        if round_ >= self._round:
            raise StoreLost(reason)


class Engine:
    """What the agents of a job meet by, and what is known about it."""

    def __init__(self, job: Job, low: int, high: int, *, by_connection: bool, **options: Any) -> None:
        self.low, self.high, self.scheduler = low, high, job.scheduler
        self.rounds: dict[tuple[str, int], Round] = {}
        """Those that somebody has entered, by where their store is."""
        self.ended: Outcome | None = None
        self.ended_at = 0.0
        self._came: dict[str, float] = {}
        """When each node became a member for the first time, by its key."""
        self.stores: dict[tuple[str, int], dict[str, bytes]] = {}
        self.on_over = job.round_over
        self.service = Service(job.network, by_connection=by_connection)
        self.service.store.on_write = self._written
        settled = {"last_call_timeout": 3.0, "reach_timeout": 10.0} | options
        self.options = ElasticOptions(allow_same_host=True, **settled)
        self.waiting: list[Thread] = []
        """Who waits in an agents' store."""

    def handler(self, agent: Agent, rank: int | None) -> Handler:
        request = Request(
            "simulated",
            "job",
            "service:1",
            self.low,
            self.high,
            nproc_per_node=1,
            node_rank=rank,
            max_restarts=agent.options.max_restarts,
            entrypoint=("train.py",),
        )
        return Handler(self, agent, request)

    def wake(self) -> None:
        """Something has changed for those who wait in an agents' store."""
        self.scheduler.wake_all(self.waiting)

    def _written(self, key: str, value: bytes | None) -> None:
        """A node has ended the job once the service knows: it may be stopped before it has said so."""
        if key == END and value is not None and self.ended is None and (said := parse_outcome(value)).end == "failed":
            self.ended, self.ended_at = said, self.scheduler.now
        if key.startswith(MEMBERS):
            self._came.setdefault(key, self.scheduler.now)

    def came(self, agent: Agent) -> float:
        """When the service heard of it first: ``inf`` if never."""
        known = agent.handler is not None and f"{MEMBERS}{agent.handler._registration.me.node_id}"
        return self._came.get(known, inf) if known else inf

    def lose(self, handler: Handler) -> None:
        """The service ends the session of a node, if it has one."""
        for session in [each for each, process in self.service.sessions.items() if process is handler.process]:
            self.service.end(session)


class Handler(ElasticHandler):
    """The engine's, with an agents' store."""

    def __init__(self, engine: Engine, agent: Agent, request: Request) -> None:
        self._engine, self.process = engine, agent.process
        self.mine: Round | None = None
        super().__init__(
            Coordination(engine.service, agent.runtime),  # type: ignore[arg-type]
            request,
            engine.options,
            runtime=agent.runtime,
            store=DialledStore,  # type: ignore[arg-type]
        )
        self._dialled: DialledStore = self._store  # type: ignore[assignment]
        self._dialled.on_interrupt = engine.wake
        self.tell_events(self._hear)

    def next_rendezvous(self) -> RoundInfo:
        info = super().next_rendezvous()
        where = info.bootstrap_store_info
        assert where is not None
        at = where.master_addr, where.master_port
        number = int(self.worker_env()["RDZV_ROUND"])
        rounds = self._engine.rounds
        self.mine = rounds.setdefault(at, Round(len(rounds) + 1, said=number))
        agents = AgentsStore(self._engine, self._dialled, number, self._engine.stores.setdefault(at, {}))
        return RoundInfo(agents, info.rank, info.world_size, where)

    def _hear(self, event: RoundEvent) -> None:
        mine = self.mine
        if event.kind == "over" and mine is not None and mine.said == event.round and not mine.over:
            mine.over = event.reason
            self._engine.on_over(mine)
