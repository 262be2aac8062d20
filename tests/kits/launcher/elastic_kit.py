"""Nodes of an elastic backend, and what they say.

A ``Meeting`` is where they meet: with ``parallel``, which the fixture ``meeting`` takes unless it is told another, a
node or ``rdzv serve`` serves the endpoint, with etcd none of them does.
"""

from __future__ import annotations

import re
import socket
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from kits.etcd import etcd_kit
from kits.eventually import eventually
from kits.launcher.harness import AgentProcess, Cluster
from rdzv_plugins.endpoints import Endpoint, parse_endpoint
from rdzv_plugins.testing.launched import outputs


class Meeting(Cluster):
    """Agents that meet by ``parallel``: the first one that comes serves the endpoint, or ``serve`` does."""

    backend = "parallel"
    run_id = "none"
    conf = ""

    def serve(self) -> AgentProcess:
        """From now on the service outlives each node: ``rdzv serve`` at the endpoint."""
        serving = self.start(["rdzv", "serve", f"--rdzv-endpoint={self.endpoint}"])
        serving.wait_for(r"serving a store at")
        return serving


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

    def node(self, rank: int | None = None, *, conf: str = "", flags: Sequence[str] = (), **env: str) -> AgentProcess:
        """One more agent; ``conf`` comes on top of the job's."""
        options: dict[str, Any] = {"backend": self.meeting.backend, "nnodes": self.nnodes, "rank": rank}
        options |= self.options | {"conf": merged(self.conf, conf), "options": [*self._flags, *flags]}
        return self.meeting.run(self.script, *self._args, **options, **env)

    def stop(self) -> None:
        self._stop.touch()

    def finish(self, *agents: AgentProcess) -> None:
        """Let it end; all these agents succeed, and nothing of theirs stays behind."""
        self.stop()
        codes = [agent.wait() for agent in agents]
        assert codes == [0] * len(agents), outputs(agents)

    def workers(self, agent: AgentProcess) -> list[int]:
        return self.meeting.workers(agent, self.script)

    def kill_node(self, agent: AgentProcess) -> None:
        """An agent and its workers, as when a machine goes."""
        workers = self.workers(agent)
        for pid in (agent.pid, *workers):
            self.meeting.kill(pid)
        agent.process.wait(30)


def in_one_round(*agents: AgentProcess, after: Sequence[dict[str, Any]] = ()) -> list[dict[str, Any]]:
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


def root_of(agents: Sequence[AgentProcess]) -> Endpoint:
    """Where the newest store is, as its own node says with -v."""

    def said() -> list[str]:
        return [each for agent in agents for each in re.findall(r"the workers' store is at (\S+) \(who", agent.text)]

    return parse_endpoint(eventually(said, lambda: outputs(agents))[-1], None)


def last_rank(agent: AgentProcess) -> int:
    return int(agent.reports()[-1]["RANK"])


def worlds(agent: AgentProcess) -> list[int]:
    """The size of each round that its worker was in."""
    return [int(report["WORLD_SIZE"]) for report in agent.reports()]


def restarts(*agents: AgentProcess) -> set[str]:
    """What their workers were told of restarts used, in all rounds."""
    return {report["TORCHELASTIC_RESTART_COUNT"] for agent in agents for report in agent.reports()}


def named(agent: AgentProcess) -> str:
    """A pattern for how messages of other nodes call it."""
    return rf"{re.escape(socket.gethostname())} \((node rank \d+, )?pid {agent.pid}\)"
