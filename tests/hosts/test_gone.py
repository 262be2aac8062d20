"""Agents at an etcd, each on a host of its own: one is killed, and the others know it long before its lease ends."""

from __future__ import annotations

from kits.hosts.fleet import Fleet, in_one_round
from kits.hosts.hosts import Host
from kits.launcher.harness import Agent


def node(fleet: Fleet, host: Host, hub: Host) -> Agent:
    command = ["rdzv-run", "--nnodes=2:3", "--nproc-per-node=1", "--rdzv-backend=etcd", "--rdzv-id=gone"]
    command += [f"--rdzv-endpoint={hub.address}", "--rdzv-conf=ttl=600,last_call_timeout=80", "--max-restarts=0"]
    return fleet.start(host, [*command, fleet.cluster.script("says.py"), fleet.cluster.directory / "stop", 0])


def test_killed_agent_on_another_host_is_known_to_be_gone(fleet: Fleet) -> None:
    hub, alpha, beta, gamma = fleet.lan.add("hub", "alpha", "beta", "gamma")
    fleet.serve_etcd(hub)
    agents = [node(fleet, host, hub) for host in (alpha, beta, gamma)]
    before = in_one_round(*agents)
    first, second, killed = agents
    fleet.cluster.kill(killed.pid)
    in_one_round(first, second, after=before)
    fleet.stop()
    assert [agent.wait() for agent in (first, second)] == [0, 0]
