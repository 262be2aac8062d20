"""A host cannot reach the workers' store of the first: the round fails on all nodes, saying who cannot reach whom."""

from __future__ import annotations

import pytest
from kits.hosts.fleet import PORT, Fleet, outputs, said

STORE = 29600


@pytest.mark.parametrize("kind", ["refuses", "drops"])
def test_workers_store_that_one_host_cannot_reach(fleet: Fleet, kind: str) -> None:
    alpha, beta, gamma = fleet.lan.add("alpha", "beta", "gamma")
    if kind == "refuses":
        gamma.ip(f"rule add to {alpha.address} ipproto tcp dport {STORE} prohibit")
        reason = "permission denied"
    else:  # the answers are lost
        alpha.ip(f"rule add to {gamma.address} ipproto tcp sport {STORE} blackhole")
        reason = r"no answer \(machine down, or a firewall drops the packets\)"
    conf = f"worker_ports={STORE},reach_timeout=2"
    agents = [
        fleet.node(host, f"{alpha.address}:{PORT}", 3, rank=rank, conf=conf, ttl=10)
        for rank, host in enumerate((alpha, beta, gamma))
    ]
    assert [agent.wait() for agent in agents] == [76, 76, 76], outputs(agents)
    for agent in agents:
        seconds = said(
            agent,
            rf"error: run 'none': round 1 failed: gamma \(node rank 2, pid {agents[2].pid}\) cannot reach the workers' "
            rf"store of alpha \(node 0\) at {alpha.address} port {STORE}: {reason}, for (\d+) s\n"
            r"rdzv-run: .*firewall",
        )
        assert int(seconds.group(1)) >= 2
        assert agent.reports() == []
    fleet.check_gone()


def test_address_given_by_hand_that_leads_nowhere(fleet: Fleet) -> None:
    alpha, beta = fleet.lan.add("alpha", "beta")
    beta.ip("route add unreachable 10.99.9.9")
    endpoint, conf = f"{alpha.address}:{PORT}", "reach_timeout=2"
    wrong = ["--local-addr=10.99.9.9"]
    agents = [
        fleet.node(alpha, endpoint, 2, rank=0, conf=conf, flags=wrong, ttl=10),
        fleet.node(beta, endpoint, 2, rank=1, conf=conf, ttl=10),
    ]
    assert [agent.wait() for agent in agents] == [76, 76], outputs(agents)
    for agent in agents:
        said(agent, r"cannot reach the workers' store of alpha \(node 0\) at 10.99.9.9 port \d+: ")
        said(agent, r"name the right address with --local-addr")
