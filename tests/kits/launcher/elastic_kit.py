"""Nodes of an elastic backend, what they say, and what the coordination service knows of them.

A ``Meeting`` is where they meet. A test that takes the fixture ``meeting`` runs once by each backend, unless it is
marked ``parallel_only``: with ``parallel`` a node or ``rdzv serve`` serves the endpoint, with etcd none of them does.
"""

from __future__ import annotations

import re
import socket
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from kits.etcd import etcd_kit
from kits.eventually import eventually
from kits.launcher.harness import Agent, Cluster
from rdzv_plugins.coordination import CoordinationBackend
from rdzv_plugins.elastic import keys
from rdzv_plugins.elastic.keys import Leading, Member, decode
from rdzv_plugins.endpoints import Endpoint, parse_endpoint
from rdzv_plugins.kvstore.coordination.sessions import NativeCoordination

parallel_only = pytest.mark.parametrize("backend", ["parallel"], indirect=True)


class Meeting(Cluster):
    """Agents that meet by ``parallel``: the first one that comes serves the endpoint, or ``serve`` does."""

    backend = "parallel"
    run_id = "none"
    conf = ""

    def serve(self) -> Agent | None:
        """From now on the service outlives each node: ``rdzv serve`` at the endpoint."""
        serving = self.start(["rdzv", "serve", f"--rdzv-endpoint={self.endpoint}"])
        serving.wait_for(r"serving a store at")
        return serving

    def coordination(self, run_id: str) -> CoordinationBackend:
        """As one more node of the run sees the service."""
        self.wait_listening()
        return NativeCoordination(Endpoint("127.0.0.1", self.port), run_id, name="parallel", who="the endpoint")


class TieredMeeting(Meeting):
    """The same by ``tiered``."""

    backend = "tiered"


class EtcdMeeting(Meeting):
    """Agents that meet at an etcd, which other tests use, too: the run has an id of its own."""

    backend = "etcd"
    conf = "ttl=10"  # longer than a busy machine makes anybody stand still

    def __init__(self, directory: Path, etcd: etcd_kit.Cluster) -> None:
        super().__init__(directory)
        self.etcd = etcd
        self.run_id = f"run-{uuid.uuid4().hex[:8]}"

    @property
    def endpoint(self) -> str:
        return self.etcd.endpoint

    def serve(self) -> None:
        """It is there."""

    def listens(self, agent: Agent) -> bool:
        """No node is special."""
        return False

    def coordination(self, run_id: str) -> CoordinationBackend:
        from rdzv_plugins.backends.etcd.coordination import EtcdCoordination

        return EtcdCoordination(self.etcd.endpoints, run_id)

    def held(self, run_id: str) -> dict[str, int]:
        """The keys of the run that are in etcd now, and the lease of each."""
        return self.etcd.keys(f"/rdzv-plugins/{quote(run_id, safe='')}/")


def merged(*confs: str) -> str:
    """Settings for --rdzv-conf; the last one counts where a name is given twice."""
    return ",".join({part.partition("=")[0]: part for conf in confs for part in conf.split(",") if part}.values())


class Job:
    """Agents of one job; its workers run until ``stop``."""

    def __init__(
        self,
        meeting: Meeting,
        nnodes: object,
        *,
        script: str = "trains.py",
        conf: str = "",
        run_id: str = "",
        args: Sequence[object] = (),
        flags: Sequence[str] = (),
        **options: Any,
    ) -> None:
        self.meeting, self.nnodes, self.script, self.options = meeting, nnodes, script, options
        self.conf = merged(meeting.conf, conf)
        self.run_id = run_id or meeting.run_id
        self._flags = [f"--rdzv-id={self.run_id}", *flags]
        self._stop = meeting.directory / f"stop-{quote(self.run_id, safe='')}"
        self._args = tuple(args) or ((self._stop,) if script == "trains.py" else (self._stop, 0))

    def node(self, rank: int | None = None, *, conf: str = "", flags: Sequence[str] = (), **env: str) -> Agent:
        """One more agent; ``conf`` comes on top of the job's."""
        options: dict[str, Any] = {"backend": self.meeting.backend, "nnodes": self.nnodes, "rank": rank}
        options |= self.options | {"conf": merged(self.conf, conf), "options": [*self._flags, *flags]}
        return self.meeting.run(self.script, *self._args, **options, **env)

    def stop(self) -> None:
        """The workers end."""
        self._stop.touch()

    def finish(self, *agents: Agent) -> None:
        """Let it end; all these agents succeed, and nothing of theirs stays behind."""
        self.stop()
        codes = [agent.wait() for agent in agents]
        assert codes == [0] * len(agents), outputs(agents)

    def wait_step(self, *agents: Agent) -> None:
        """Until trains.py has made a step: whoever starts now goes on from there."""
        eventually((self.meeting.directory / "checkpoint").exists, lambda: f"no step:\n{outputs(agents)}")

    def workers(self, agent: Agent) -> list[int]:
        return self.meeting.workers(agent, self.script)

    def kill_node(self, agent: Agent) -> None:
        """An agent and its workers, as when a machine goes."""
        workers = self.workers(agent)
        for pid in (agent.pid, *workers):
            self.meeting.kill(pid)
        agent.process.wait(30)


def outputs(agents: Iterable[Agent]) -> str:
    return "\n".join(f"--- pid {agent.pid}:\n{agent.text}" for agent in agents)


def in_one_round(*agents: Agent, after: Sequence[dict[str, Any]] = ()) -> list[dict[str, Any]]:
    """Wait until the workers of ``agents``, one each, are the whole of one round, another one than that of ``after``.

    Returns their reports in order of rank.
    """
    old = {report["PID"] for report in after}  # a port may be used again

    def together() -> list[dict[str, Any]] | None:
        last = [report for agent in agents for report in agent.reports()[-1:]]
        ports = {report.get("RDZV_ROOT_PORT") or report["MASTER_PORT"] for report in last}  # with proxies: the store's
        whole = sorted(int(report["RANK"]) for report in last) == list(range(len(agents)))
        sizes = {report["WORLD_SIZE"] for report in last}
        fresh = not old & {report["PID"] for report in last}
        return last if whole and len(ports) == 1 and fresh and sizes == {str(len(agents))} else None

    found: list[dict[str, Any]] = eventually(together, lambda: f"no round of all of these:\n{outputs(agents)}")
    return sorted(found, key=lambda report: int(report["RANK"]))


def root_of(agents: Sequence[Agent]) -> Endpoint:
    """Where the newest store is, as its own node says with -v."""

    def said() -> list[str]:
        return [each for agent in agents for each in re.findall(r"the workers' store is at (\S+) \(who", agent.text)]

    return parse_endpoint(eventually(said, lambda: outputs(agents))[-1], None)


def last_rank(agent: Agent) -> int:
    return int(agent.reports()[-1]["RANK"])


def worlds(agent: Agent) -> list[int]:
    """The size of each round that its worker was in."""
    return [int(report["WORLD_SIZE"]) for report in agent.reports()]


def restarts(*agents: Agent) -> set[str]:
    """What their workers were told of restarts used, in all rounds."""
    return {report["TORCHELASTIC_RESTART_COUNT"] for agent in agents for report in agent.reports()}


def named(agent: Agent) -> str:
    """A pattern for how messages of other nodes call it."""
    return rf"{re.escape(socket.gethostname())} \((node rank \d+, )?pid {agent.pid}\)"


class Observer:
    """A session of the test's own: who is a member, and who leads."""

    def __init__(self, service: CoordinationBackend) -> None:
        self._session = service.open_session(60, on_lost=lambda _: None, timeout=60)

    def members(self) -> dict[int, Member]:
        """Those that live, by pid."""
        held, _ = self._session.list(keys.MEMBERS, timeout=60)
        members = [decode(Member, kv.value) for kv in held]
        return {member.pid: member for member in members}

    def leader(self) -> int | None:
        """The pid of the agent that leads."""
        held, _ = self._session.list(keys.LEADER, timeout=60)
        ids = {decode(Leading, kv.value).node_id for kv in held}
        return next((pid for pid, member in self.members().items() if member.node_id in ids), None)

    def wait_members(self, *agents: Agent) -> None:
        """Until these are the members, and one of them leads."""
        pids = {agent.pid for agent in agents}
        eventually(
            lambda: self.members().keys() == pids and self.leader() in pids,
            lambda: f"members {sorted(self.members())}, leader {self.leader()}\n{outputs(agents)}",
        )


@contextmanager
def observing(meeting: Meeting) -> Iterator[Observer]:
    """An ``Observer`` of the run, once the service is there."""
    with closing(meeting.coordination(meeting.run_id)) as service:
        yield Observer(service)


def trained(agent: Agent) -> int:
    """How many steps trains.py has made in all rounds, after checking that none is missing or was made twice."""
    found = agent.wait_for(r"trained (\d+) steps: (\d+)")
    steps, total = map(int, found.groups())
    assert total == sum(range(12)) * steps * (steps + 1) // 2
    return steps
