"""A link goes down: packets are lost, and nobody is told. Who notices, who goes on, and who says what."""

from __future__ import annotations

import pytest
from kits.eventually import eventually
from kits.hosts.fleet import PORT, TTL, Fleet, in_one_round, outputs, said
from kits.hosts.hosts import Host
from kits.launcher.harness import Agent

SOON = TTL + 60
"""Seconds: the time to live, one for a last question, and a margin for busy processors."""


def lost_endpoint(host: Host) -> str:
    return rf"error: .* at {host.address}:{PORT}"


def test_node_is_cut_off_and_comes_back(fleet: Fleet) -> None:
    alpha, beta, gamma = fleet.lan.add("alpha", "beta", "gamma")

    def node(host: Host) -> Agent:
        return fleet.node(host, f"{alpha.address}:{PORT}", "2:3", script="trains.py", rank=host.number - 1, ttl=TTL)

    first, second, third = agents = [node(host) for host in (alpha, beta, gamma)]
    before = in_one_round(*agents)
    (worker,) = fleet.cluster.workers(third, "trains.py")
    fleet.lan.cut(gamma)
    for agent in (first, second):
        agent.wait_for(rf"gamma \(.*pid {third.pid}\) was lost", SOON)
    smaller = in_one_round(first, second, after=before)
    assert third.wait(SOON) == 68, outputs(agents)
    said(third, lost_endpoint(alpha))
    assert worker not in fleet.cluster.processes()

    fleet.lan.mend(gamma)
    third = node(gamma)
    in_one_round(first, second, third, after=smaller)
    fleet.finish(first, second, third)
    for agent in (first, second):
        assert [report["WORLD_SIZE"] for report in agent.reports()] == ["3", "2", "3"]
        assert {report["TORCHELASTIC_RESTART_COUNT"] for report in agent.reports()} == {"0"}


@pytest.mark.thorough
def test_host_of_the_endpoint_is_cut_off(fleet: Fleet) -> None:
    alpha, beta, gamma = fleet.lan.add("alpha", "beta", "gamma")
    first, *others = agents = [
        fleet.node(host, f"{alpha.address}:{PORT}", "2:3", ttl=TTL) for host in (alpha, beta, gamma)
    ]
    before = in_one_round(*agents)
    fleet.lan.cut(alpha)
    for agent in others:
        assert agent.wait(SOON) == 68, outputs(agents)
        said(agent, lost_endpoint(alpha))
    for name in ("beta", "gamma"):
        first.wait_for(rf"waiting: .* missing: .*{name} \(was node \d\)", SOON)
    assert fleet.cluster.workers(first, "says.py") == []

    fleet.lan.mend(alpha)
    again = fleet.node(beta, f"{alpha.address}:{PORT}", "2:3", ttl=TTL)
    in_one_round(first, again, after=before)
    fleet.finish(first, again)


@pytest.mark.thorough
def test_leader_is_cut_off(fleet: Fleet) -> None:
    hub, alpha, beta = fleet.lan.add("hub", "alpha", "beta")
    endpoint = fleet.serve(hub)
    conf = "last_call_timeout=60"
    first = fleet.node(alpha, endpoint, "1:2", conf=conf, ttl=TTL)
    first.wait_for(r"1 of 1:2 nodes have joined", SOON)  # says the leader, and there is nobody else
    second = fleet.node(beta, endpoint, "1:2", conf=conf, ttl=TTL)
    before = in_one_round(first, second)
    fleet.lan.cut(alpha)
    second.wait_for(r"this node leads the rendezvous from round 1 on", SOON)
    alone = in_one_round(second, after=before)
    assert first.wait(SOON) == 68, outputs([first, second])
    said(first, lost_endpoint(hub))

    fleet.lan.mend(alpha)
    first = fleet.node(alpha, endpoint, "1:2", conf=conf, ttl=TTL)
    in_one_round(first, second, after=alone)
    fleet.finish(first, second)


@pytest.mark.thorough
def test_short_outage_disturbs_nobody(fleet: Fleet) -> None:
    alpha, beta = fleet.lan.add("alpha", "beta")
    agents = [
        fleet.node(host, f"{alpha.address}:{PORT}", "1:2", script="trains.py", rank=rank, ttl=60)
        for rank, host in enumerate((alpha, beta))
    ]
    in_one_round(*agents)
    fleet.lan.cut(beta)
    assert not beta.dials(alpha.address, PORT)
    fleet.lan.mend(beta)
    assert eventually(lambda: beta.dials(alpha.address, PORT), lambda: "no way to the endpoint")
    fleet.finish(*agents)
    for agent in agents:
        assert len(agent.reports()) == 1, "its worker was never stopped"


@pytest.mark.thorough
def test_node_is_cut_off_while_it_waits_for_others(fleet: Fleet) -> None:
    alpha, beta, gamma = fleet.lan.add("alpha", "beta", "gamma")

    def node(host: Host) -> Agent:
        return fleet.node(host, f"{alpha.address}:{PORT}", 3, rank=host.number - 1, ttl=TTL)

    first, third = node(alpha), node(gamma)
    for agent in (first, third):
        agent.wait_for(r"2 of 3 nodes have joined \(.*\); missing: node rank 1 ", SOON)
    fleet.lan.cut(gamma)
    assert third.wait(SOON) == 68, outputs([first, third])
    said(third, lost_endpoint(alpha))
    first.wait_for(r"1 of 3 nodes have joined \(alpha \(node rank 0, pid \d+\)\); missing: node rank 1-2 ", SOON)

    fleet.lan.mend(gamma)
    agents = [first, node(beta), node(gamma)]
    reports = in_one_round(*agents)
    assert [report["RANK"] for report in reports] == ["0", "1", "2"]
    fleet.finish(*agents)
