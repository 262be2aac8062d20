"""Agents at an etcd, each on a host of its own: one is killed, one is cut off. Only the first is known at once."""

from __future__ import annotations

from kits.hosts.fleet import TTL, Fleet, in_one_round
from kits.hosts.hosts import Host
from kits.launcher.harness import Agent


def node(fleet: Fleet, host: Host, hub: Host, ttl: float) -> Agent:
    command = ["rdzv-run", "--nnodes=2:3", "--nproc-per-node=1", "--rdzv-backend=etcd", "--rdzv-id=gone"]
    command += [f"--rdzv-endpoint={hub.address}", f"--rdzv-conf=ttl={ttl:g},last_call_timeout=80", "--max-restarts=0"]
    return fleet.start(host, [*command, fleet.cluster.script("says.py"), fleet.cluster.directory / "stop", 0])


def test_killed_agent_on_another_host_is_known_to_be_gone(fleet: Fleet) -> None:
    hub, alpha, beta, gamma = fleet.lan.add("hub", "alpha", "beta", "gamma")
    fleet.serve_etcd(hub)
    agents = [node(fleet, host, hub, 600) for host in (alpha, beta, gamma)]
    before = in_one_round(*agents)
    first, second, killed = agents
    fleet.cluster.kill(killed.pid)
    in_one_round(first, second, after=before)
    assert any("gamma" in agent.text and "its host refuses connections to it" in agent.text for agent in agents)
    fleet.stop()
    assert [agent.wait() for agent in (first, second)] == [0, 0]


def test_host_that_is_cut_off_is_given_its_time_to_live(fleet: Fleet) -> None:
    hub, alpha, beta, gamma = fleet.lan.add("hub", "alpha", "beta", "gamma")
    fleet.serve_etcd(hub)
    agents = [node(fleet, host, hub, TTL) for host in (alpha, beta, gamma)]
    before = in_one_round(*agents)
    fleet.lan.cut(gamma)
    in_one_round(*agents[:2], after=before)
    assert not any("its host refuses" in agent.text for agent in agents)
    fleet.lan.mend(gamma)
    in_one_round(*agents, after=before)
    fleet.stop()
    assert [agent.wait() for agent in agents] == [0, 0, 0]
