"""A node that is done never ends one that works: who serves stays, and the exit barrier's time-out is for the lost."""

from __future__ import annotations

import os
import signal

import pytest
from kits.eventually import eventually
from kits.launcher.harness import Agent, Cluster

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


@pytest.mark.parametrize("backend", ["parallel", pytest.param("c10d", marks=pytest.mark.thorough)])
def test_who_works_is_waited_for_longer_than_the_time_out(cluster: Cluster, backend: str) -> None:
    stop = cluster.directory / "stop"
    agents = start(cluster, "waits.py", stop, 0, backend=backend)
    eventually(lambda: all("begins" in agent.text for agent in agents), lambda: agents[0].text + agents[1].text)
    done = next(agent for agent in agents if "rank 0 begins" in agent.text)
    done.wait_for("waiting for node rank 1(.|\n)*waiting for node rank 1")  # said again when a time-out is over
    stop.touch()
    codes = [agent.wait() for agent in agents]
    assert codes == [0, 0], agents[0].text + agents[1].text


@pytest.mark.thorough
def test_a_node_that_was_stopped_is_waited_for_by_name(cluster: Cluster) -> None:
    """The workers of the other node fail with it, and that is no failure of their own."""
    agents = start(cluster, "reduces.py", backend="static", conf=",timeout=20")
    for agent in agents:
        agent.wait_for("reduced")
    os.kill(agents[1].pid, signal.SIGTERM)
    assert agents[1].wait() == 143
    assert agents[0].wait(120) == 75, agents[0].text
    message = agents[0].text.partition("rdzv-run: error: ")[2]
    assert "missing: node rank 1" in message
    assert f"(pid {agents[1].pid}) was lost" in message


@pytest.mark.thorough
def test_node_rank_0_is_named_when_it_is_lost(cluster: Cluster) -> None:
    agents = start(cluster, "reduces.py", backend="static")
    for agent in agents:
        agent.wait_for("reduced")
    kill_node(cluster, agents[0], "reduces.py")
    assert agents[1].wait(90) == 68, agents[1].text
    assert "node rank 0" in agents[1].text.partition("rdzv-run: error: ")[2]


def kill_node(cluster: Cluster, agent: Agent, script: str) -> None:
    """Its agent and its workers, as when a machine goes."""
    for pid in (agent.pid, *cluster.workers(agent, script)):
        cluster.kill(pid)
    agent.process.wait(30)
