"""The metrics of an agent: its rounds and why they began, its stages and how long they took, its restarts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import get_args

from rdzv_launcher.run.agent import events
from rdzv_launcher.run.agent.events import Event
from rdzv_launcher.run.agent.loop import AgentObserver
from rdzv_launcher.run.agent.state_machine import AgentStateMachine, Stage
from rdzv_launcher.run.health import Health, readiness
from rdzv_launcher.run.metrics import STORE, Metric, MetricsPage, Reading, read_stores, reading
from rdzv_launcher.run.workers.worker_group import WorkerGroup
from rdzv_plugins.clock import now
from rdzv_plugins.interfaces import Request, RoundEvent
from rdzv_plugins.kvstore.native.server import servers_here, version

INFO = Metric("rdzv_agent", "info", "The job that this agent is part of.", ("run", "backend", "version"))
STAGE = Metric(
    "rdzv_agent_stage", "stateset", "What the agent does now; 1 for the stage it is in.", ("rdzv_agent_stage",)
)
STAGE_SECONDS = Metric(
    "rdzv_agent_stage_seconds", "counter", "Time that the agent has spent in each stage.", ("stage",)
)
ROUNDS = Metric(
    "rdzv_agent_rounds",
    "counter",
    "Rounds in which workers were started on this node, by what led to them: first, failure (of a worker here), hang, "
    "peer (another node restarts its workers), lost (a node), joined (a node), fenced (this node's session ended), "
    "unknown.",
    ("cause",),
)
RESTARTS = Metric("rdzv_agent_restarts", "counter", "Restarts of --max-restarts that this node has used.")
RESTARTS_LIMIT = Metric("rdzv_agent_restarts_limit", "gauge", "--max-restarts.")
ROUND_NODES = Metric(
    "rdzv_agent_round_nodes", "gauge", "Nodes of the round in which this node works; 0 while it works in none."
)
MISSING_NODES = Metric(
    "rdzv_agent_missing_nodes", "gauge", "How many nodes that round lacks to the most that --nnodes allows."
)
NODE_RANK = Metric("rdzv_agent_node_rank", "gauge", "The rank of this node in its newest round; none before the first.")
WORKERS = Metric("rdzv_agent_workers", "gauge", "Workers that this node runs now.")
AGENT = (INFO, STAGE, STAGE_SECONDS, ROUNDS, RESTARTS, RESTARTS_LIMIT, ROUND_NODES, MISSING_NODES, NODE_RANK, WORKERS)

CAUSES = ("first", "failure", "hang", "peer", "lost", "joined", "fenced", "unknown")
_BY_ROUND = {"lost": "lost", "asked": "peer", "came": "joined"}
"""The causes that the rendezvous reports."""
_IN_ROUND: tuple[Stage, ...] = ("working", "barrier", "staying")


@dataclass(frozen=True)
class _Times:
    """How long the agent was in each stage until ``since``; replaced as a whole, so that any thread may read it."""

    stage: Stage
    since: float
    spent: dict[Stage, float] = field(default_factory=dict)

    def at(self, moment: float) -> dict[Stage, float]:
        return {**self.spent, self.stage: self.spent.get(self.stage, 0.0) + moment - self.since}


class AgentFigures(AgentObserver):
    """The figures of an agent. Counted by its main thread, read by any."""

    def __init__(self, request: Request, max_restarts: int) -> None:
        self._max_nodes, self._max_restarts = request.max_nodes, max_restarts
        self._over_cause = ""
        """Why the round of the last start was over, as the rendezvous reported; empty if nobody knows."""
        self._by_others = False
        """The rendezvous knows more than ``_cause`` says."""
        self._info = {"run": request.run_id, "backend": request.backend, "version": version()}
        self._times = _Times("joining", now())
        self._in_round = False
        """The node works in its newest round, or has done so to the end."""
        self._cause = "first"
        self._rounds = dict.fromkeys(CAUSES, 0)

    def publish(
        self,
        health: Health,
        at: Callable[[], tuple[AgentStateMachine, WorkerGroup | None]],
        waits_for: Callable[[], str],
    ) -> None:
        """Have ``health`` say how the agent is, and serve these metrics and those of the stores of this process.

        ``at`` returns the agent's current decisions and group, ``waits_for`` what the rendezvous says of its wait.
        """

        def read() -> Iterator[Reading]:
            yield from self.read(*at())
            yield from read_stores((each.purpose, each.stats()) for each in servers_here())

        def ready() -> tuple[bool, str]:
            decisions, group = at()
            return readiness(decisions.stage, group, waits_for())

        health.tell_by(ready, MetricsPage((*AGENT, *STORE), read))

    def saw(self, event: RoundEvent) -> None:
        if event.kind == "over" and not self._over_cause:
            self._over_cause = event.cause

    def decided(self, event: Event, decisions: AgentStateMachine) -> None:
        before = self._times.stage
        if before in ("working", "barrier", "asking"):
            self._cause, self._by_others = self._cause_of(event)
        if decisions.stage in ("joining", "working"):
            self._in_round = decisions.stage == "working"
        if decisions.stage != before:
            moment = now()
            self._times = _Times(decisions.stage, moment, self._times.at(moment))

    def started(self, group: WorkerGroup) -> None:
        told = _BY_ROUND.get(self._over_cause, self._cause)
        self._rounds[told if self._by_others else self._cause] += 1
        self._over_cause = ""

    def _cause_of(self, event: Event) -> tuple[str, bool]:
        """What leads to the next round, and whether the rendezvous may know better."""
        match event:
            case events.WorkerEnded(exit_code=code) if code != 0:
                return "failure", False
            case events.GroupEnded():
                return "failure", False
            case events.Hung():
                return "hang", False
            case events.Fenced():
                return "fenced", False
            case events.NodesWait() | events.MustRunAgain():
                return "unknown", True
            case events.PeersAnswered(lost=True) if self._cause != "fenced":
                return "lost", True
        return self._cause, self._by_others

    def read(self, decisions: AgentStateMachine, group: WorkerGroup | None) -> Iterator[Reading]:
        """The current values of ``AGENT``."""
        times = self._times
        spent = times.at(now())
        works = self._in_round and times.stage in _IN_ROUND
        nodes = group.group_world_size if group is not None and works else 0
        yield reading(INFO, 1, **self._info)
        for stage in get_args(Stage):
            yield reading(STAGE, stage == times.stage, rdzv_agent_stage=stage)
            yield reading(STAGE_SECONDS, spent.get(stage, 0.0), stage=stage)
        for cause in CAUSES:
            yield reading(ROUNDS, self._rounds[cause], cause=cause)
        yield reading(RESTARTS, decisions.restarts_used)
        yield reading(RESTARTS_LIMIT, self._max_restarts)
        yield reading(ROUND_NODES, nodes)
        yield reading(MISSING_NODES, max(0, self._max_nodes - nodes))
        if group is not None:
            yield reading(NODE_RANK, group.group_rank)
        yield reading(WORKERS, len(decisions.running))
