"""Several endpoints, each on a host of its own: the one that serves is killed, frozen, cut off; the others go on."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from kits.hosts.fleet import PORT, SOON, TTL, Fleet
from kits.hosts.hosts import Host
from kits.launcher.elastic_kit import in_one_round, restarts
from kits.launcher.harness import AgentProcess
from kits.wire.tls_kit import Issued

from rdzv_plugins.errors import AccessRefused
from rdzv_plugins.testing.launched import outputs

OUTAGE = 120
TOKEN = "0123456789abcdef-of-places"


def node(fleet: Fleet, places: list[Host], nnodes: str, host: Host, ttl: float = TTL, **how: Any) -> AgentProcess:
    """An agent on ``host`` of a job that meets at ``places``."""
    conf = f"last_call_timeout=60{how.pop('conf', '')}"
    return fleet.node(host, places, nnodes, ttl=ttl, outage=OUTAGE, conf=conf, **how)


def test_serving_agent_is_killed_and_its_host_comes_back(fleet: Fleet) -> None:
    hosts = fleet.lan.add("alpha", "beta", "gamma")
    first, second, third = agents = [node(fleet, hosts, "2:3", host, 60, rank=rank) for rank, host in enumerate(hosts)]
    before = in_one_round(*agents)
    os.kill(first.pid, signal.SIGKILL)
    smaller = in_one_round(second, third, after=before)  # long before the time to live: its host refuses connections
    assert [len(agent.reports()) for agent in (second, third)] == [2, 2], outputs(agents)
    assert restarts(second, third) == {"0"}

    late = node(fleet, hosts, "2:3", hosts[0], 60, rank=0)  # dials its own place first, which stands by now
    in_one_round(late, second, third, after=smaller)
    fleet.finish(late, second, third)
    assert restarts(late, second, third) == {"0"}


@pytest.mark.thorough
def test_under_tls_with_a_token_the_next_place_serves(fleet: Fleet, tmp_path: Path) -> None:
    hosts = fleet.lan.add("alpha", "beta", "gamma")
    own = {host: Issued(tmp_path / host.name, hosts=(host.address,)) for host in hosts}  # no other host's place

    def tiered(host: Host, rank: int, conf: str, **env: str) -> AgentProcess:
        flags = ["--rdzv-backend=tiered"]
        return node(fleet, hosts, "2:3", host, 60, rank=rank, conf=f",{conf}", flags=flags, **env)

    first, second, third = agents = [
        tiered(host, rank, own[host].conf, RDZV_TOKEN=TOKEN) for rank, host in enumerate(hosts)
    ]
    before = in_one_round(*agents)
    os.kill(first.pid, signal.SIGKILL)
    smaller = in_one_round(second, third, after=before)
    for agent in (second, third):
        assert f"the rendezvous is served at {hosts[1].address}:{PORT} now" in agent.text

    theirs = Issued(tmp_path / "theirs", by="theirs", hosts=(hosts[0].address,))
    token = {"RDZV_TOKEN": TOKEN}
    for conf, env in (("", token), (f",{theirs.conf}", token), (f",{own[hosts[0]].conf}", {})):
        stranger = tiered(hosts[0], 0, f"is_host=false{conf}", **env)
        assert stranger.wait(SOON) == AccessRefused.exit_code, stranger.text

    late = tiered(hosts[0], 0, own[hosts[0]].conf, RDZV_TOKEN=TOKEN)
    in_one_round(late, second, third, after=smaller)
    fleet.finish(late, second, third)
    assert restarts(late, second, third) == {"0"}


@pytest.mark.thorough
def test_serving_host_is_cut_off(fleet: Fleet) -> None:
    hosts = fleet.lan.add("alpha", "beta", "gamma")
    first, *others = agents = [node(fleet, hosts, "1:3", host) for host in hosts]
    before = in_one_round(*agents)
    fleet.lan.cut(hosts[0])
    smaller = in_one_round(*others, after=before)
    first.wait_for("waiting: .*missing: (beta|gamma) .*more than half", SOON)
    assert fleet.cluster.workers(first, "says.py") == []
    assert len(first.reports()) == 1, "one node would be enough, but it is not more than half"
    fleet.lan.mend(hosts[0])
    in_one_round(*agents, after=smaller)
    fleet.finish(*agents)
    assert restarts(*agents) == {"0"}


@pytest.mark.thorough
def test_places_that_no_node_serves(fleet: Fleet) -> None:
    hosts = fleet.lan.add("hub", "hob", "hab", "alpha", "beta")
    hubs, nodes = hosts[:3], hosts[3:]
    served = {}
    for host in hubs:
        served[host] = fleet.start(host, ["rdzv", "serve", f"--rdzv-endpoint={host.address}:{PORT}"])
        served[host].wait_for("serving a store at")
    agents = [node(fleet, hubs, "2", host, 60) for host in nodes]
    in_one_round(*agents)
    os.kill(served[hubs[0]].pid, signal.SIGKILL)
    for agent in agents:
        agent.wait_for("round 1 goes on: all of its nodes have come back", SOON)
        assert f"the rendezvous is served at {hubs[1].address}:{PORT} now" in agent.text
    fleet.finish(*agents)
    for agent in agents:
        assert len(agent.reports()) == 1, "its worker was never stopped"
