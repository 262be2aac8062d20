"""A real job of agents, with one worker each, to which something happens; and what its workers say about it."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from rdzv_launcher.bench.faults.worker import PREFIX
from rdzv_launcher.bench.jobs.launchers import JobFailed, Launcher, last_words, meet
from rdzv_launcher.bench.method.readings import cpu_seconds
from rdzv_launcher.bench.processes.guard import Guard, end_all, environment, marked
from rdzv_plugins.kvstore.sockets.listening import port_holder
from rdzv_plugins.testing.launched import Agent, cold

_LOOK_EVERY_S = 0.02
_END_S = 30.0
_SAID = re.compile(rf"^{PREFIX}(\{{.*\}})$", re.MULTILINE)


@dataclass
class Round:
    """The first collective of a group of workers, as far as they have got."""

    world: int
    ranks: dict[int, int] = field(default_factory=dict)
    """The rank of each node."""
    at: float = 0.0
    """When the last of them had its result, according to ``time.monotonic``."""
    started: float = 0.0
    """When the last of these workers was started."""
    starts: int = 0
    """The most times that the workers of one node were started since: 1 unless rounds have failed in between."""


@dataclass(frozen=True)
class JobsAlike:
    """How jobs are run, the same for all targets."""

    nodes: int
    worker: Path
    guard: Guard
    before: Sequence[str]
    limit_s: float
    """How long a job may take from the fault to the next collective."""
    start_limit_s: float
    collective_timeout_s: float


class FaultyJob:
    """A context manager: none of its processes outlives it. For one thread."""

    def __init__(self, how: JobsAlike, target: Launcher, least: int, endpoints: int = 1) -> None:
        """``least``: with how many nodes it may go on. The first of several ``endpoints`` serves at the beginning."""
        self.how, self.target = how, target
        self._mark, self._directory = how.guard.new_job()
        meeting = self._directory / "meeting"
        meeting.mkdir()
        self._meeting = meet(target, meeting, endpoints)
        self._nnodes = str(how.nodes) if least == how.nodes else f"{least}:{how.nodes}"
        self.agents: list[Agent] = []
        """The agents by node; one that was started in place of another comes at the end."""

    def __enter__(self) -> FaultyJob:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        end_all(self._mark)
        for agent in self.agents:
            agent.process.wait(_END_S)

    def start(self) -> Round:
        """Start all nodes, and wait for their first collective. If a node serves, it should be the first.

        Raises ``JobFailed``.
        """
        begun, limit_s = time.monotonic(), self.how.start_limit_s
        self.start_agent(0)
        if (port := self._port()) is not None:
            self._wait(lambda: _answers(port), {0}, begun, limit_s, "nobody serves the endpoint")
        for node in range(1, self.how.nodes):
            self.start_agent(node)
        found: Round = self._wait(
            lambda: self._round_of(set(range(self.how.nodes)), 0.0),
            set(range(self.how.nodes)),
            begun,
            limit_s,
            "the job did not start",
        )
        return found

    def start_agent(self, node: int) -> int:
        """Start the command that ``node`` had at the beginning; returns its place in ``agents``."""
        place = len(self.agents)
        output = self._directory / f"agent{place}.log"
        variables = environment(self._mark_of(place)) | {"GLOO_SOCKET_IFNAME": "lo"} | {**self.target.environment}
        script = [self.how.worker, self.how.collective_timeout_s]
        command = self._meeting.command(node, self._nnodes, 1, script, "--max-restarts=100")
        self.agents.append(Agent(cold([*self.how.before, *command], output, variables), output))
        return place

    def wait_collective(self, nodes: Iterable[int], fault_at: float) -> Round:
        """The first collective of exactly these nodes, begun after the fault. Raises ``JobFailed``."""
        wanted, limit_s = set(nodes), self.how.limit_s
        found: Round = self._wait(lambda: self._round_of(wanted, fault_at), wanted, fault_at, limit_s, "did not go on")
        return found

    def serving(self) -> int | None:
        """The node that serves the endpoint; None if none of them does."""
        if (port := self._port()) is None:
            return None
        found = re.match(r"pid (\d+) ", port_holder(port))
        pids = [agent.pid for agent in self.agents]
        return pids.index(int(found[1])) if found and int(found[1]) in pids else None

    def worker(self, node: int) -> int:
        """The process id of a node's newest worker."""
        return int(self._said(node)[-1]["pid"])

    def signal_node(self, node: int, number: signal.Signals) -> None:
        """Send a signal to an agent and then to all that it has started, as when a machine fails."""
        agent = self.agents[node].pid
        for pid in [agent, *(each for each in marked(self._mark_of(node)) if each != agent)]:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue

    def cpu(self, nodes: Iterable[int]) -> float:
        """Seconds used so far by the agents of these nodes, and by the service that they dial."""
        return sum(cpu_seconds(self.agents[node].pid) for node in nodes) + self.target.service_cpu()

    def _mark_of(self, node: int) -> str:
        return f"{self._mark}-{node}"

    def _port(self) -> int | None:
        found = re.match(r"127\.0\.0\.1:(\d+)(,|$)", self._meeting.endpoint)
        return int(found[1]) if found else None

    def _wait(self, condition: Callable[[], Any], nodes: set[int], begun: float, limit_s: float, what: str) -> Any:
        """Wait until the condition is true, which it cannot become without all of ``nodes``. Raises ``JobFailed``."""
        while not (value := condition()):
            for node in sorted(nodes):
                code = self.agents[node].process.poll() if node < len(self.agents) else None
                if code is not None:
                    words = last_words(self.agents[node].text)
                    raise JobFailed(f"{what}: exit code {code} of node {node}", words)
            if time.monotonic() > begun + limit_s:
                raise JobFailed(f"{what} within {limit_s:g} s", last_words(self.agents[min(nodes)].text))
            time.sleep(_LOOK_EVERY_S)
        return value

    def _round_of(self, nodes: set[int], after: float) -> Round | None:
        """The round with exactly these members, once all of them have had their first collective."""
        rounds: dict[int, Round] = {}
        started: dict[int, float] = {}
        starts = 0
        for node in range(len(self.agents)):
            own = 0
            for said in self._said(node):
                if "round" not in said:
                    started[said["pid"]] = said["at"]
                    own += said["at"] > after
                    starts = max(starts, own)
                elif said["at"] > after:
                    each = rounds.setdefault(said["round"], Round(said["world"]))
                    each.ranks[node] = said["rank"]
                    each.at = max(each.at, said["at"])
                    each.started = max(each.started, started[said["pid"]])
        for each in rounds.values():
            if each.ranks.keys() == nodes and each.world == len(nodes):
                each.starts = starts
                return each
        return None

    def _said(self, node: int) -> list[dict[str, Any]]:
        return [json.loads(found) for found in _SAID.findall(self.agents[node].text)]


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
