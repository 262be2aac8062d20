"""A node that is done never ends one that works: who serves stays, and the exit barrier's time-out is for the lost."""

from __future__ import annotations

import os
import signal

import pytest
from kits.launcher.harness import Agent, Cluster, wait_until

BARRIER = "--exit-barrier-timeout=1"


def start(
    cluster: Cluster, script: str, *args: object, backend: str, linger: float = 30, conf: str = ""
) -> list[Agent]:
    """A job of two nodes; node 0 serves the endpoint, and waits for ``linger`` seconds for one that was killed."""
    agents = []
    for rank in (0, 1):
        given = None if backend == "c10d" else rank
        given_conf = f"{'last_call_timeout=60,' if backend != 'static' else ''}linger={linger:g}{conf}"
        agents.append(
            cluster.run(script, *args, backend=backend, nnodes=2, rank=given, conf=given_conf, options=[BARRIER, "-v"])
        )
        cluster.wait_listening()
    return agents


@pytest.mark.parametrize("backend", ["static", "c10d", "parallel", "tiered"])
def test_who_works_is_waited_for_longer_than_the_time_out(cluster: Cluster, backend: str) -> None:
    stop = cluster.directory / "stop"
    agents = start(cluster, "waits.py", stop, 0, backend=backend)
    wait_until(lambda: all("begins" in agent.text for agent in agents), 90, lambda: agents[0].text + agents[1].text)
    done = next(agent for agent in agents if "rank 0 begins" in agent.text)
    done.wait_for(r"this node is done; waiting for node rank 1(.|\n)*this node is done; waiting for node rank 1")
    stop.touch()
    codes = [agent.wait() for agent in agents]
    assert codes == [0, 0], agents[0].text + agents[1].text
    assert "leaving without them" not in done.text


def test_who_is_lost_is_not_waited_for(cluster: Cluster) -> None:
    """``static`` hears of a lost node by asking for it: the time-out is what it is asked after."""
    agents = start(cluster, "waits.py", cluster.directory / "stop", 0, backend="static", linger=0.5)
    agents[1].wait_for("begins")
    kill_node(cluster, agents[1], "waits.py")
    assert agents[0].wait(90) == 0, agents[0].text
    assert "workers of node rank 1 were not done" in agents[0].text


def test_a_signal_ends_the_waiting(cluster: Cluster) -> None:
    agents = start(cluster, "waits.py", cluster.directory / "stop", 0, backend="static")
    agents[0].wait_for("this node is done; waiting for node rank 1")
    os.kill(agents[0].pid, signal.SIGTERM)
    assert agents[0].wait() == 143
    assert agents[1].wait() == 76, "it has lost the store, and is told why"
    assert "got SIGTERM" in agents[1].text


def test_a_lost_node_is_the_first_failure_not_who_fails_with_it(cluster: Cluster) -> None:
    agents = start(cluster, "reduces.py", backend="static", linger=0.5)
    for agent in agents:
        agent.wait_for("reduced")
    kill_node(cluster, agents[1], "reduces.py")
    message = lost(agents[0])
    assert f"node rank 1 on {os.uname().nodename} (pid {agents[1].pid}) was lost" in message


@pytest.mark.parametrize("script", ["reduces.py", "waits.py"], ids=["fails with it", "works on"])
def test_a_node_that_was_stopped_is_waited_for_by_name(cluster: Cluster, script: str) -> None:
    """Whether the workers of the other node fail with it or not: they are stopped, and that is no failure."""
    agents = start(
        cluster,
        script,
        *([cluster.directory / "stop", -1] * (script == "waits.py")),
        backend="static",
        conf=",timeout=20",
    )
    for agent in agents:
        agent.wait_for("reduced" if script == "reduces.py" else "begins")
    os.kill(agents[1].pid, signal.SIGTERM)
    assert agents[1].wait() == 143
    assert agents[0].wait(120) == 75, agents[0].text
    assert "first failure" not in agents[0].text
    message = agents[0].text.partition("rdzv-run: error: ")[2]
    assert "missing: node rank 1" in message
    assert f"(pid {agents[1].pid}) was lost: it got SIGTERM" in message


def test_node_rank_0_is_named_when_it_is_lost(cluster: Cluster) -> None:
    agents = start(cluster, "reduces.py", backend="static")
    for agent in agents:
        agent.wait_for("reduced")
    kill_node(cluster, agents[0], "reduces.py")
    assert "lost node rank 0" in lost(agents[1])


def lost(agent: Agent) -> str:
    """The error with which it ends; its worker has failed with its peer, and says so above."""
    assert agent.wait(90) == 68, agent.text
    assert "first failure" not in agent.text
    return agent.text.partition("rdzv-run: error: ")[2]


def kill_node(cluster: Cluster, agent: Agent, script: str) -> None:
    """Its agent and its workers, as when a machine goes."""
    for pid in (agent.pid, *cluster.workers(agent, script)):
        cluster.kill(pid)
    agent.process.wait(30)
