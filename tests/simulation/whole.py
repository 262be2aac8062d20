"""Whole agents on the real elastic engine: ``Job``, with the engine's rendezvous in the place of ``meeting``'s.

Only the sockets of the agents' store of a round are left out: what is in it is known to all at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from math import inf
from typing import Any

from rdzv_plugins.elastic.handler import ElasticHandler
from rdzv_plugins.elastic.keys import END, MEMBERS
from rdzv_plugins.elastic.options import ElasticOptions
from rdzv_plugins.errors import StoreLost, StoreTimeout
from rdzv_plugins.interfaces import Outcome, Request, RoundEvent, RoundInfo
from rdzv_plugins.rounds.ends import parse_outcome
from rdzv_plugins.runtime import Runtime
from simulation.agent import Agent
from simulation.job import Job
from simulation.meeting import Round
from simulation.round_stores import DialledStore
from simulation.service import Coordination, Service

_ASK_S, _AGAIN_S = 0.002, 0.05


class AgentsStore:
    """That of the agents of a round. Its waits end when the node's own store says so."""

    timeout = timedelta(seconds=60)

    def __init__(self, runtime: Runtime, own: DialledStore, round_: int, data: dict[str, bytes]) -> None:
        self._runtime, self._own, self._round, self._data = runtime, own, round_, data

    def set(self, key: str, value: str) -> None:
        self._use()
        self._data[key] = value.encode()

    def get(self, key: str) -> bytes:
        self.wait([key], self.timeout)
        return self._data[key]

    def add(self, key: str, amount: int) -> int:
        self._use()
        value = int(self._data.get(key, b"0")) + amount
        self._data[key] = str(value).encode()
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
        end = self._runtime.monotonic() + timeout.total_seconds()
        while not self.check(keys):
            if self._runtime.monotonic() >= end:
                raise StoreTimeout(f"not there: {keys}")
            self._runtime.sleep(_AGAIN_S)

    def _use(self) -> None:
        self._runtime.sleep(_ASK_S)
        round_, reason = self._own.over
        if round_ >= self._round:
            raise StoreLost(reason)


class Engine:
    """What ``Job`` asks of a ``Meeting``, from the real engine."""

    forgets = True

    def __init__(self, job: Job, low: int, high: int, *, by_connection: bool, **options: Any) -> None:
        self._job, self.low, self.high = job, low, high
        self.rounds: list[Round] = []
        self.at: dict[tuple[str, int], Round] = {}
        """The rounds that somebody has entered, by where their store is."""
        self.ended: Outcome | None = None
        self.ended_at = 0.0
        self._came: dict[str, float] = {}
        """When each node became a member for the first time, by its key."""
        self.stores: dict[tuple[str, int], dict[str, bytes]] = {}
        self.on_over: Callable[[Round], object] = job.round_over
        self.service = Service(job.network, by_connection=by_connection)
        self.service.store.on_write = self._written
        settled = {"timeout": 100.0, "last_call_timeout": 3.0, "ttl": 5.0, "reach_timeout": 10.0} | options
        self.options = ElasticOptions(allow_same_host=True, **settled)

    def handler(self, process: Any, timeout: float) -> Handler:
        agent = next(each for each in self._job.agents if each.process is process)
        request = Request(
            "simulated",
            "job",
            "service:1",
            self.low,
            self.high,
            nproc_per_node=1,
            max_restarts=agent.options.max_restarts,
            entrypoint=("train.py",),
        )
        return Handler(self, agent.runtime, request)

    def _written(self, key: str, value: bytes | None) -> None:
        """A node has ended the job once the service knows: it may be stopped before it has said so."""
        if key == END and value is not None and self.ended is None and (said := parse_outcome(value)).end == "failed":
            self.ended, self.ended_at = said, self._job.now
        if key.startswith(MEMBERS):
            self._came.setdefault(key, self._job.now)

    def came(self, agent: Agent) -> float:
        """When the service heard of it first: ``inf`` if never."""
        known = agent.handler is not None and f"{MEMBERS}{agent.handler._self.me.node_id}"
        return self._came.get(known, inf) if known else inf

    def lose(self, handler: Handler, why: str) -> None:
        """Nothing: what ends a session here is the service."""


class Handler(ElasticHandler):
    """The engine's, with an agents' store."""

    def __init__(self, engine: Engine, runtime: Runtime, request: Request) -> None:
        self._engine, self._runtime_of_store = engine, runtime
        self.mine: Round | None = None
        super().__init__(
            Coordination(engine.service, runtime),  # type: ignore[arg-type]
            request,
            engine.options,
            runtime=runtime,
            store=DialledStore,  # type: ignore[arg-type]
        )
        self.tell_events(self._hear)

    def next_rendezvous(self) -> RoundInfo:
        info = super().next_rendezvous()
        where = info.bootstrap_store_info
        assert where is not None
        at = where.master_addr, where.master_port
        number = int(self.worker_env()["RDZV_ROUND"])
        # its own numbers: a service that has forgotten the job counts from 1 again
        self.mine = self._engine.at.setdefault(at, Round(len(self._engine.at) + 1, [], said=number))
        own: DialledStore = self._store  # type: ignore[assignment]
        agents = AgentsStore(self._runtime_of_store, own, number, self._engine.stores.setdefault(at, {}))
        return RoundInfo(agents, info.rank, info.world_size, where)

    def _hear(self, event: RoundEvent) -> None:
        mine = self.mine
        if event.kind == "over" and mine is not None and mine.said == event.round and not mine.over:
            mine.over = event.reason
            self._engine.on_over(mine)


def on_engine(job: Job, *, by_connection: bool = True, **options: Any) -> Job:
    """Give a job without nodes yet the engine's rendezvous, with these of its options."""
    low, high = job.meeting.low, job.meeting.high
    job.meeting = Engine(job, low, high, by_connection=by_connection, **options)  # type: ignore[assignment]
    return job
