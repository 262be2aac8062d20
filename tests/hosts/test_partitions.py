"""A link goes down: packets are lost, and nobody is told. Who notices, who goes on, and who says what."""

from __future__ import annotations

import pytest
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


def test_worker_that_fails_because_its_peer_was_cut_off_uses_up_no_restart(fleet: Fleet) -> None:
    """--max-restarts=0: the first failure of its own would end the job."""
    alpha, beta = fleet.lan.add("alpha", "beta")
    endpoint = f"{alpha.address}:{PORT}"
    first = fleet.node(alpha, endpoint, "1:2", script="trains.py", rank=0, ttl=TTL)
    second = fleet.node(beta, endpoint, "1:2", script="trains.py", rank=1, ttl=TTL)
    before = in_one_round(first, second)
    (worker,) = fleet.cluster.workers(first, "trains.py")
    fleet.lan.cut(beta)
    fleet.cluster.kill(worker)  # as NCCL's watchdog does when a peer is silent, sooner than the time to live
    alone = in_one_round(first, after=before)
    assert alone[0]["TORCHELASTIC_RESTART_COUNT"] == "0"
    assert second.wait(SOON) == 68
    fleet.finish(first)
