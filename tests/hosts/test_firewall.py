"""A host cannot reach the workers' store of the first: the round fails on all nodes, saying who cannot reach whom."""

from __future__ import annotations

import pytest
from kits.hosts.fleet import PORT, Fleet, outputs, said

STORE = 29600


@pytest.mark.parametrize("kind", ["drops", pytest.param("refuses", marks=pytest.mark.thorough)])
def test_workers_store_that_one_host_cannot_reach(fleet: Fleet, kind: str) -> None:
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
