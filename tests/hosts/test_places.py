"""Several endpoints, each on a host of its own: the one that serves is killed, frozen, cut off; the others go on."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from kits.hosts.fleet import PORT, TTL, Fleet, in_one_round, outputs
from kits.hosts.hosts import Host
from kits.launcher.harness import Agent
from kits.wire.tls_kit import Issued

from rdzv_plugins.errors import AccessRefused

SOON = TTL + 60
OUTAGE = 120
TOKEN = "0123456789abcdef-of-places"


class Job:
    """Nodes on hosts, which meet at places."""

    def __init__(
        self, fleet: Fleet, places: list[Host], nnodes: str, backend: str = "parallel", *, closed: bool = False
    ) -> None:
        self.fleet, self._nnodes, self._flags = fleet, nnodes, [f"--rdzv-backend={backend}"]
        self._conf = "last_call_timeout=60" + (",worker_transport=direct" if backend == "tiered" and not closed else "")
        self.endpoint = ",".join(f"{host.address}:{PORT}" for host in places)

    def node(
        self, host: Host, ttl: float = TTL, rank: int | None = None, endpoint: str = "", conf: str = "", **env: str
    ) -> Agent:
        return self.fleet.node(
            host,
            endpoint or self.endpoint,
            self._nnodes,
            ttl=ttl,
            outage=OUTAGE,
            conf=f"{self._conf},{conf}" if conf else self._conf,
            rank=rank,
            flags=self._flags,
            **env,
        )


def no_restart(*agents: Agent) -> bool:
    return {report["TORCHELASTIC_RESTART_COUNT"] for agent in agents for report in agent.reports()} == {"0"}


def test_serving_agent_is_killed_and_its_host_comes_back(fleet: Fleet) -> None:
    hosts = fleet.lan.add("alpha", "beta", "gamma")
    job = Job(fleet, hosts, "2:3")
    first, second, third = agents = [job.node(host, 60, rank) for rank, host in enumerate(hosts)]
    before = in_one_round(*agents)
    os.kill(first.pid, signal.SIGKILL)
    smaller = in_one_round(second, third, after=before)  # long before the time to live: its host refuses connections
    assert [len(agent.reports()) for agent in (second, third)] == [2, 2], outputs(agents)
    assert no_restart(second, third)

    late = job.node(hosts[0], 60, 0)  # dials its own place first, which stands by now
    in_one_round(late, second, third, after=smaller)
    fleet.finish(late, second, third)
    assert no_restart(late, second, third)


@pytest.mark.thorough
def test_under_tls_with_a_token_the_next_place_serves(fleet: Fleet, tmp_path: Path) -> None:
    hosts = fleet.lan.add("alpha", "beta", "gamma")
    own = {host: Issued(tmp_path / host.name, hosts=(host.address,)) for host in hosts}  # no other host's place
    job = Job(fleet, hosts, "2:3", "tiered", closed=True)
    first, second, third = agents = [
        job.node(host, 60, rank, conf=own[host].conf, RDZV_TOKEN=TOKEN) for rank, host in enumerate(hosts)
    ]
    before = in_one_round(*agents)
    os.kill(first.pid, signal.SIGKILL)
    smaller = in_one_round(second, third, after=before)
    for agent in (second, third):
        assert f"the rendezvous is served at {hosts[1].address}:{PORT} now" in agent.text

    theirs = Issued(tmp_path / "theirs", by="theirs", hosts=(hosts[0].address,))
    token = {"RDZV_TOKEN": TOKEN}
    for conf, env in (("", token), (f",{theirs.conf}", token), (f",{own[hosts[0]].conf}", {})):
        stranger = job.node(hosts[0], 60, 0, conf=f"is_host=false{conf}", **env)
        assert stranger.wait(SOON) == AccessRefused.exit_code, stranger.text

    late = job.node(hosts[0], 60, 0, conf=own[hosts[0]].conf, RDZV_TOKEN=TOKEN)
    in_one_round(late, second, third, after=smaller)
    fleet.finish(late, second, third)
    assert no_restart(late, second, third)


@pytest.mark.thorough
def test_serving_host_is_cut_off(fleet: Fleet) -> None:
    hosts = fleet.lan.add("alpha", "beta", "gamma")
    job = Job(fleet, hosts, "1:3")
    first, *others = agents = [job.node(host) for host in hosts]
    before = in_one_round(*agents)
    fleet.lan.cut(hosts[0])
    smaller = in_one_round(*others, after=before)
    first.wait_for("waiting: .*missing: (beta|gamma) .*more than half", SOON)
    assert fleet.cluster.workers(first, "says.py") == []
    assert len(first.reports()) == 1, "one node would be enough, but it is not more than half"
    fleet.lan.mend(hosts[0])
    in_one_round(*agents, after=smaller)
    fleet.finish(*agents)
    assert no_restart(*agents)


@pytest.mark.thorough
def test_places_that_no_node_serves(fleet: Fleet) -> None:
    hosts = fleet.lan.add("hub", "hob", "hab", "alpha", "beta")
    hubs, nodes = hosts[:3], hosts[3:]
    served = {}
    for host in hubs:
        served[host] = fleet.start(host, ["rdzv", "serve", f"--rdzv-endpoint={host.address}:{PORT}"])
        served[host].wait_for("serving a store at")
    job = Job(fleet, hubs, "2")
    agents = [job.node(host, 60) for host in nodes]
    in_one_round(*agents)
    os.kill(served[hubs[0]].pid, signal.SIGKILL)
    for agent in agents:
        agent.wait_for("round 1 goes on: all of its nodes have come back", SOON)
        assert f"the rendezvous is served at {hubs[1].address}:{PORT} now" in agent.text
    fleet.finish(*agents)
    for agent in agents:
        assert len(agent.reports()) == 1, "its worker was never stopped"
