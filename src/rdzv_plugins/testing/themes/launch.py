"""The backend as its users see it: real launchers, real workers over gloo, exit codes and messages.

Each test starts two nodes on this machine. Test processes must be able to use the loopback interface ``lo``.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from contextlib import closing
from typing import Any, ClassVar

import pytest

from rdzv_plugins.interfaces import Capability
from rdzv_plugins.testing.launched import WAIT_S, AgentProcess, AgentsJob, outputs
from rdzv_plugins.testing.parts import wait_until
from rdzv_plugins.testing.processes import send
from rdzv_plugins.testing.suite import Theme

FAILED = r"first failure: rank (\d+) \(node (\d+) on \S+, local rank 0, pid (\d+)\) ended with exit code (\d+)"
CODE = 9
STOPPED = 128 + signal.SIGTERM
SHORT_S = 5
"""How many seconds a node waits that will not be let in."""


class LaunchTheme(Theme):
    """Tests launches: restarts, failures, plain torchrun, sizes from MIN to MAX, signals."""

    theme: ClassVar[str] = "launch"

    @pytest.fixture
    def job(self) -> Iterator[AgentsJob]:
        with closing(AgentsJob(self.harness, self.directory)) as job:
            yield job
            print(outputs(job.agents))  # pytest shows it with a failure

    def test_worker_that_is_killed_costs_one_restart_and_all_meet_in_a_fresh_store(self, job: AgentsJob) -> None:
        """A worker is killed once: all restart in one round, with a store that has no key of the first."""
        agents = [job.node(rank, "crash", restarts=1) for rank in range(2)]
        for agent in agents:
            agent.wait()  # with whatever code: a stale key tells more
        reports = [agent.reports() for agent in agents]
        for report in reports[0] + reports[1]:
            assert "STALE" not in report, (
                f"rank {report['RANK']} has found its key of an earlier round in the store of this one "
                f"({report['STALE']}): each call of next_rendezvous has to give the workers a new store"
            )
        job.finish(*agents)
        assert [len(each) for each in reports] == [2, 2], "not two rounds on each node"
        check_world(*agents, number=0)
        assert [report["SUM"] for report in check_world(*agents)] == [3, 3], "wrong sums"

    def test_failure_for_good_ends_the_job_on_every_node_with_its_exit_code(self, job: AgentsJob) -> None:
        """A worker that always fails: both nodes end with its exit code, and say which rank it was and where."""
        agents = [job.node(rank, job.stop, 1, CODE, restarts=1) for rank in range(2)]
        codes = [agent.wait() for agent in agents]
        assert codes == [CODE, CODE], (
            f"a worker ended with {CODE} for good, the launchers with {codes}: the handler's note_failure, "
            f"raise_if_ended and leave tell the other nodes"
        )
        failed = [report for agent in agents for report in agent.reports() if report["RANK"] == "1"]
        assert len(failed) == 2, "not one restart before the end"
        last = {str(report["PID"]): report for report in failed}
        for agent in agents:
            found = re.search(FAILED, agent.text)
            assert found, f"agent {agent.pid} does not say who failed first"
            rank, node, pid, code = found.groups()
            assert pid in last, f"agent {agent.pid} blames pid {pid}, which has not failed"
            assert (rank, node, code) == ("1", last[pid]["GROUP_RANK"], str(CODE))
            assert f"| the last words of pid {pid}" in agent.text
        job.nothing_left()

    def test_plain_torchrun_launches_it(self, job: AgentsJob) -> None:
        """Plain torchrun, with --rdzv-backend=rdzv-plugins.NAME: two nodes, whose workers meet in one store."""
        agents = [job.torchrun(rank) for rank in range(2)]
        job.finish(*agents)
        assert [len(agent.reports()) for agent in agents] == [1, 1], "not one round"
        check_world(*agents)

    def test_nodes_from_min_to_max(self, job: AgentsJob) -> None:
        """--nnodes=1:2: the first node runs alone, the second joins later and both restart; or it is said to wait."""
        elastic = self.declares(Capability.ELASTIC)
        conf = {"last_call_timeout": "1"} if self.accepts("last_call_timeout") else {}
        first = job.node(0, nnodes="1:2", conf=conf)
        if elastic:
            wait_for_world(first, 1)
        else:
            first.wait_for("is not elastic: it waits for all 2 nodes")
        agents = [first, job.node(1, nnodes="1:2", conf=conf)]
        for agent in agents:
            wait_for_world(agent, 2)
        job.finish(*agents)
        check_world(*agents)
        worlds = [[report["WORLD_SIZE"] for report in agent.reports()] for agent in agents]
        assert worlds == [["1"] * elastic + ["2"], ["2"]], f"worlds {worlds}"
        if not elastic:
            assert f"backend {self.harness.backend!r} is not elastic" in agents[1].text
            self.gap("elastic is not declared: --nnodes=1:2 waits for 2 nodes, and every node says so")

    def test_nodes_of_torch_in_the_same_job(self, job: AgentsJob) -> None:
        """A node that plain torchrun has started by torch's own backend is part of the job; or it is kept out."""
        if self.declares(Capability.TORCHRUN_PEERS):
            agents = [job.node(0, "gloo"), job.torchs_own(self.harness.backend, "gloo")]
            job.finish(*agents)
            assert [report["SUM"] for report in check_world(*agents)] == [3, 3], "wrong sums"
            return
        if not self.harness.dialled:
            self.gap("not tried: torchrun_peers is not declared, and torch's c10d cannot dial the endpoint")
            return
        first = job.node(0)
        if not job.is_torchs_store():
            job.finish(first, job.node(1))
            self.gap("torchrun_peers is not declared: without a torch store there, torch's c10d cannot join")
            return
        conf = {"is_host": "false", "join_timeout": f"{SHORT_S}", "read_timeout": f"{SHORT_S}"}
        stranger = job.torchs_own("c10d", job.stop, conf=conf)
        assert stranger.wait() != 0
        assert not stranger.reports(), "a node of torch's c10d was let in"
        second = job.node(1)
        job.finish(first, second)
        check_world(first, second)
        self.gap("torchrun_peers is not declared: a node of torch's c10d at the endpoint is kept out")

    def test_agent_that_is_told_to_stop(self, job: AgentsJob) -> None:
        """SIGTERM to the agent of the first node: its worker ends with it, the other node is told, nothing is left."""
        first = job.node(0)
        first.wait_for("joining at")  # so that it serves the endpoint, if any node does
        second = job.node(1)
        for agent in (first, second):
            wait_for_world(agent, 2)
        worker = first.reports()[0]["PID"]
        send(first.pid, signal.SIGTERM)
        assert first.wait() == STOPPED
        assert worker not in job.processes(), "the worker outlives its agent"
        if self.harness.kind == "state" and self.harness.service is not None:
            self.gap("not tried: with a separate service torch's rendezvous does not report nodes that leave")
        else:
            told = rf"pid {first.pid}\b.*SIGTERM"
            wait_until(
                lambda: re.search(told, second.text) or second.process.poll() is not None, "the second is told", WAIT_S
            )
            assert re.search(told, second.text), "the second node is not told that the first has got SIGTERM"
        if second.process.poll() is None:
            send(second.pid, signal.SIGTERM)
        assert second.wait() not in (0, 1)
        job.nothing_left()


def check_world(*agents: AgentProcess, number: int = -1) -> list[dict[str, Any]]:
    """Check that two ranks on two nodes report one and the same world, whose ranks have met in one store.

    Returns their reports of that round, the last one by default.
    """
    assert all(agent.reports() for agent in agents), "a node has run no worker"
    reports = sorted((agent.reports()[number] for agent in agents), key=lambda report: str(report["RANK"]))
    for rank, report in enumerate(reports):
        expected = {"RANK": str(rank), "GROUP_RANK": str(rank), "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
        expected |= {"WORLD_SIZE": "2", "GROUP_WORLD_SIZE": "2"}
        found = {name: report.get(name) for name in expected}
        assert found == expected, f"rank {rank} was given {found}, not {expected}"
    met = [report["MET"] for report in reports]
    assert met == [[f"written by pid {report['PID']}" for report in reports]] * 2, f"met {met}"
    return reports


def wait_for_world(agent: AgentProcess, nodes: int) -> None:
    """Wait until the worker of ``agent`` runs in a round of ``nodes`` nodes."""
    size = str(nodes)
    wait_until(lambda: size in {each["WORLD_SIZE"] for each in agent.reports()}, f"a round of {size} node(s)", WAIT_S)
