"""What the user reads when nodes do not find each other: one message, the right exit code, no traceback."""

from __future__ import annotations

import os
import re
import signal
import socket

import pytest
from kits.launcher.harness import Agent, Cluster, error_of, server

BACKENDS = ["static", "c10d"]
ALL_BACKENDS = [*BACKENDS, "parallel"]


@pytest.mark.parametrize("backend", ALL_BACKENDS)
def test_nobody_listens(cluster: Cluster, backend: str) -> None:
    conf = "timeout=2" if backend == "static" else "join_timeout=2,is_host=false"
    message = error_of(cluster.run("plain.py", "sleep", backend=backend, nnodes=2, rank=1, conf=conf), 68)
    assert f"at {cluster.endpoint} could not be reached within 2 s: connection refused" in message


def test_name_does_not_resolve(cluster: Cluster) -> None:
    command = ["rdzv-run", "--nnodes=2", "--node-rank=1", "--rdzv-endpoint=no-such-host.invalid:29500"]
    agent = cluster.start([*command, "--rdzv-conf=timeout=1", cluster.script("plain.py"), "sleep"])
    assert "the name does not resolve" in error_of(agent, 68)


@pytest.mark.parametrize("backend", BACKENDS)
def test_port_belongs_to_another_program(cluster: Cluster, backend: str) -> None:
    with server(cluster.port, b"HTTP/1.1 400 Bad Request\r\n\r\n"):
        conf = "is_host=false" if backend == "c10d" else ""
        message = error_of(cluster.run("plain.py", "sleep", backend=backend, nnodes=2, rank=1, conf=conf), 68)
    assert f"{cluster.endpoint} is not a torch TCPStore: it answered b'HTTP'" in message


def test_something_that_never_answers_is_not_waited_for_without_end(cluster: Cluster) -> None:
    with server(cluster.port, None):
        message = error_of(cluster.run("plain.py", "sleep", backend="static", nnodes=2, rank=1, conf="timeout=2"), 68)
    assert "does not answer as a torch TCPStore" in message


@pytest.mark.parametrize("backend", BACKENDS)
def test_port_in_use_names_the_process_that_holds_it(cluster: Cluster, backend: str) -> None:
    with server(cluster.port, b""):
        conf = "is_host=true" if backend == "c10d" else ""
        message = error_of(cluster.run("plain.py", "sleep", backend=backend, nnodes=2, rank=0, conf=conf), 68)
    assert f"cannot listen on port {cluster.port}" in message
    assert f"in use by pid {os.getpid()} (" in message


def test_static_timeout_names_the_missing_node_ranks(cluster: Cluster) -> None:
    agents = [
        cluster.run("plain.py", "sleep", backend="static", nnodes=4, rank=rank, conf="timeout=10,linger=30")
        for rank in (0, 2)
    ]
    for agent in agents:  # whose own time is up at the same moment, unless they hear first that the other has given up
        message = error_of(agent, 75)
        assert re.search(r"[12] of 4 nodes are in round 1 at \S+; missing: node rank 1, 3[,;].*after 10 s", message)


def test_c10d_timeout_names_who_is_there(cluster: Cluster) -> None:
    agent = cluster.run("plain.py", "sleep", backend="c10d", nnodes=2, conf="join_timeout=10")
    assert re.search(rf"1 of 2 nodes are in round 0 at \S+ \(127.0.0.1 \(pid {agent.pid}\)\)", error_of(agent, 75))


def test_static_refuses_another_run_by_name(cluster: Cluster) -> None:
    host = cluster.run("plain.py", "sleep", backend="static", nnodes=2, rank=0, options=["--rdzv-id=mine"])
    cluster.wait_listening()
    stranger = cluster.run("plain.py", "sleep", backend="static", nnodes=2, rank=1, options=["--rdzv-id=other"])
    assert f"serves run 'mine' (node rank 0 on {socket.gethostname()} (pid {host.pid})), not 'other'" in error_of(
        stranger, 76
    )


def test_static_refuses_another_number_of_nodes(cluster: Cluster) -> None:
    cluster.run("plain.py", "sleep", backend="static", nnodes=2, rank=0)
    cluster.wait_listening()
    stranger = cluster.run("plain.py", "sleep", backend="static", nnodes=3, rank=1)
    message = error_of(stranger, 78)
    assert "this node was started with --nnodes=3" in message
    assert "with --nnodes=2" in message


@pytest.mark.parametrize("backend", ["static", "parallel"])
def test_node_with_another_torch_is_told(cluster: Cluster, backend: str) -> None:
    info = cluster.directory / "torch-99.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 99.0\n")
    first = cluster.run("asked.py", backend=backend, nnodes=2, rank=0)
    cluster.wait_listening()
    if backend == "parallel":  # its key is there
        first.wait_for("1 of 2 nodes have joined")
    second = cluster.run("asked.py", backend=backend, nnodes=2, rank=1, PYTHONPATH=str(cluster.directory))
    assert [each.wait() for each in (first, second)] == [0, 0], first.text + second.text
    warnings = re.findall("warning: this node has torch .*", second.text)
    assert len(warnings) == 1, second.text
    assert "has torch 99.0, " in warnings[0]
    assert f"(pid {first.pid}" in warnings[0]
    assert "this node has torch" not in first.text


@pytest.mark.parametrize("rank", [0, 1])
def test_the_second_agent_with_one_node_rank_is_told_by_the_first(cluster: Cluster, rank: int) -> None:
    nodes = [cluster.run("plain.py", "sleep", backend="static", nnodes=3, rank=each) for each in (0, 1)]
    nodes[0].wait_for("missing: node rank 2")
    message = error_of(cluster.run("plain.py", "sleep", backend="static", nnodes=3, rank=rank), 78)
    assert f"node rank {rank} is {os.uname().nodename} (pid {nodes[rank].pid})" in message
    assert [each.process.poll() for each in nodes] == [None, None]


def test_a_frozen_agent_is_replaced_and_told_so(cluster: Cluster) -> None:
    host, replaced = (cluster.run("plain.py", "sleep", backend="static", nnodes=3, rank=rank) for rank in (0, 1))
    host.wait_for("missing: node rank 2")
    os.kill(replaced.pid, signal.SIGSTOP)
    cluster.run("plain.py", "sleep", backend="static", nnodes=3, rank=1).wait_for("node rank 1 of round 1 was")
    cluster.run("plain.py", "sleep", backend="static", nnodes=3, rank=2)
    host.wait_for("this is node 0 of 3")
    os.kill(replaced.pid, signal.SIGCONT)
    assert "node rank 1 of run 'none' was taken by another agent in round 1" in error_of(replaced, 78)


def running_pair(cluster: Cluster, backend: str) -> tuple[Agent, Agent]:
    """Two nodes whose workers run: the one that serves the endpoint, and the other."""
    conf = "outage_timeout=15" if backend == "parallel" else ""
    agents = cluster.pair("apart_forever.py", backend=backend, conf=conf)
    for agent in agents:
        agent.wait_for("I go on")
    host = next(agent for agent in agents if cluster.listens(agent))
    (other,) = (agent for agent in agents if agent is not host)
    return host, other


@pytest.mark.parametrize("backend", ALL_BACKENDS)
def test_loss_of_the_host_is_named(cluster: Cluster, backend: str) -> None:
    host, other = running_pair(cluster, backend)
    for pid in (host.pid, *cluster.workers(host, "apart_forever.py")):
        cluster.kill(pid)
    message = error_of(other, 68)
    assert re.search(rf"lost .*at {cluster.endpoint}", message)
    cluster.check_gone()


@pytest.mark.parametrize("backend", ALL_BACKENDS)
def test_host_that_is_stopped_says_so(cluster: Cluster, backend: str) -> None:
    host, other = running_pair(cluster, backend)
    os.kill(host.pid, signal.SIGTERM)
    assert host.wait() == 143
    assert re.search(rf"has ended: the agent on \S+ \(pid {host.pid}, node \d\) got SIGTERM", error_of(other, 76))


def test_npu_without_torch_npu_says_how_to_install_it(cluster: Cluster) -> None:
    agent = cluster.start(["rdzv-run", "--nproc-per-node=npu", cluster.script("plain.py"), "sleep"])
    message = error_of(agent, 69)
    assert "needs torch_npu" in message
    assert "pip install torch_npu" in message


def test_verbose_shows_the_traceback(cluster: Cluster) -> None:
    agent = cluster.start(["rdzv-run", "-v", "--nnodes=3:2", cluster.script("plain.py"), "sleep"])
    assert agent.wait() == 2
    assert "Traceback" in agent.text
    assert "the minimum 3 is above the maximum 2" in agent.text


def test_script_that_does_not_exist(cluster: Cluster) -> None:
    agent = cluster.start(["rdzv-run", "no-such-script.py"])
    assert agent.wait() == 2
    assert "the script no-such-script.py cannot be run: there is no such file" in agent.text
