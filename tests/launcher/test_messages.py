"""What the user reads when nodes do not find each other: one message, the right exit code, no traceback."""

from __future__ import annotations

import os
import re
import signal

import pytest
from kits.launcher.harness import Agent, Cluster, error_of, server

BACKENDS = ["static", "c10d", "parallel"]


def test_port_in_use_names_the_process_that_holds_it(cluster: Cluster) -> None:
    with server(cluster.port, b""):
        message = error_of(cluster.run("plain.py", "sleep", backend="static", nnodes=2, rank=0), 68)
    assert f"port {cluster.port} " in message
    assert f"pid {os.getpid()} (" in message


def test_static_timeout_names_the_missing_node_ranks(cluster: Cluster) -> None:
    agents = [
        cluster.run("plain.py", "sleep", backend="static", nnodes=4, rank=rank, conf="timeout=10,linger=30")
        for rank in (0, 2)
    ]
    for agent in agents:  # whose own time is up at the same moment, unless they hear first that the other has given up
        message = error_of(agent, 75)
        assert "missing: node rank 1, 3" in message


@pytest.mark.thorough
def test_node_with_another_torch_is_told(cluster: Cluster) -> None:
    info = cluster.directory / "torch-99.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 99.0\n")
    first = cluster.run("asked.py", backend="static", nnodes=2, rank=0)
    cluster.wait_listening()
    second = cluster.run("asked.py", backend="static", nnodes=2, rank=1, PYTHONPATH=str(cluster.directory))
    assert [each.wait() for each in (first, second)] == [0, 0], first.text + second.text
    (warning,) = re.findall("warning: .*torch 99.0.*", second.text)
    assert f"(pid {first.pid}" in warning


@pytest.mark.thorough
def test_the_second_agent_with_one_node_rank_is_told_by_the_first(cluster: Cluster) -> None:
    nodes = [cluster.run("plain.py", "sleep", backend="static", nnodes=3, rank=each) for each in (0, 1)]
    nodes[0].wait_for("missing: node rank 2")
    message = error_of(cluster.run("plain.py", "sleep", backend="static", nnodes=3, rank=1), 78)
    assert f"(pid {nodes[1].pid})" in message
    assert [each.process.poll() for each in nodes] == [None, None]


@pytest.mark.thorough
def test_a_frozen_agent_is_replaced_and_told_so(cluster: Cluster) -> None:
    host, replaced = (cluster.run("plain.py", "sleep", backend="static", nnodes=3, rank=rank) for rank in (0, 1))
    host.wait_for("missing: node rank 2")
    os.kill(replaced.pid, signal.SIGSTOP)
    cluster.run("plain.py", "sleep", backend="static", nnodes=3, rank=1).wait_for("node rank 1 of round 1 was")
    cluster.run("plain.py", "sleep", backend="static", nnodes=3, rank=2)
    host.wait_for("this is node 0 of 3")
    os.kill(replaced.pid, signal.SIGCONT)
    assert "node rank 1 " in error_of(replaced, 78)


def running_pair(cluster: Cluster, backend: str) -> tuple[Agent, Agent]:
    """Two nodes whose workers run: the one that serves the endpoint, and the other."""
    conf = "outage_timeout=15" if backend == "parallel" else ""
    agents = cluster.pair("apart_forever.py", backend=backend, conf=conf)
    for agent in agents:
        agent.wait_for("I go on")
    host = next(agent for agent in agents if cluster.listens(agent))
    (other,) = (agent for agent in agents if agent is not host)
    return host, other


@pytest.mark.thorough
@pytest.mark.parametrize("backend", BACKENDS)
def test_loss_of_the_host_is_named(cluster: Cluster, backend: str) -> None:
    host, other = running_pair(cluster, backend)
    for pid in (host.pid, *cluster.workers(host, "apart_forever.py")):
        cluster.kill(pid)
    assert cluster.endpoint in error_of(other, 68)
    cluster.check_gone()


@pytest.mark.thorough
@pytest.mark.parametrize("backend", BACKENDS)
def test_host_that_is_stopped_says_so(cluster: Cluster, backend: str) -> None:
    host, other = running_pair(cluster, backend)
    os.kill(host.pid, signal.SIGTERM)
    assert host.wait() == 143
    assert f"(pid {host.pid}, node " in error_of(other, 76)
