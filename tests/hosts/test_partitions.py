"""Packets are lost, or a process is, and nobody is told. Who notices, who goes on, and who says what."""

from __future__ import annotations

import pytest
from kits.hosts.fleet import PORT, SOON, TTL, Fleet, said
from kits.hosts.hosts import Host
from kits.launcher.elastic_kit import in_one_round, restarts, worlds
from kits.launcher.harness import AgentProcess

from rdzv_plugins.testing.launched import outputs

STORE = 29600


def test_node_is_cut_off_and_comes_back(fleet: Fleet) -> None:
    alpha, beta, gamma = fleet.lan.add("alpha", "beta", "gamma")

    def node(host: Host) -> AgentProcess:
        return fleet.node(host, f"{alpha.address}:{PORT}", "2:3", script="trains.py", rank=host.number - 1, ttl=TTL)

    first, second, third = agents = [node(host) for host in (alpha, beta, gamma)]
    before = in_one_round(*agents)
    (worker,) = fleet.cluster.workers(third, "trains.py")
    fleet.lan.cut(gamma)
    for agent in (first, second):
        agent.wait_for(rf"gamma \(.*pid {third.pid}\) was lost", SOON)
    smaller = in_one_round(first, second, after=before)
    assert third.wait(SOON) == 68, outputs(agents)
    said(third, rf"error: .* at {alpha.address}:{PORT}")
    assert worker not in fleet.cluster.processes()

    fleet.lan.mend(gamma)
    third = node(gamma)
    in_one_round(first, second, third, after=smaller)
    fleet.finish(first, second, third)
    for agent in (first, second):
        assert worlds(agent) == [3, 2, 3]
    assert restarts(first, second) == {"0"}


@pytest.mark.parametrize("kind", ["drops", pytest.param("refuses", marks=pytest.mark.thorough)])
def test_workers_store_that_one_host_cannot_reach(fleet: Fleet, kind: str) -> None:
    """The round fails on all nodes, saying who cannot reach whom."""
    alpha, beta, gamma = fleet.lan.add("alpha", "beta", "gamma")
    if kind == "refuses":
        gamma.ip(f"rule add to {alpha.address} ipproto tcp dport {STORE} prohibit")
    else:  # the answers are lost
        alpha.ip(f"rule add to {gamma.address} ipproto tcp sport {STORE} blackhole")
    conf = f"worker_ports={STORE},reach_timeout=2"
    agents = [
        fleet.node(host, f"{alpha.address}:{PORT}", 3, rank=rank, conf=conf, ttl=10)
        for rank, host in enumerate((alpha, beta, gamma))
    ]
    assert [agent.wait() for agent in agents] == [76, 76, 76], outputs(agents)
    for agent in agents:
        said(agent, rf"gamma \(node rank 2, pid {agents[2].pid}\) .* alpha \(node 0\) at {alpha.address} port {STORE}")
        assert agent.reports() == []
    fleet.check_gone()


def test_killed_agent_on_another_host_is_known_to_be_gone(fleet: Fleet) -> None:
    """Long before its lease at an etcd ends."""
    hub, alpha, beta, gamma = fleet.lan.add("hub", "alpha", "beta", "gamma")
    fleet.serve_etcd(hub)
    command = ["rdzv-run", "--nnodes=2:3", "--nproc-per-node=1", "--rdzv-backend=etcd", "--rdzv-id=gone"]
    command += [f"--rdzv-endpoint={hub.address}", "--rdzv-conf=ttl=600,last_call_timeout=80", "--max-restarts=0"]
    script = [fleet.cluster.script("says.py"), fleet.cluster.directory / "stop", 0]
    agents = [fleet.start(host, [*command, *script]) for host in (alpha, beta, gamma)]
    before = in_one_round(*agents)
    first, second, killed = agents
    fleet.cluster.kill(killed.pid)
    in_one_round(first, second, after=before)
    fleet.stop()
    assert [agent.wait() for agent in (first, second)] == [0, 0]
