"""The rendezvous does not answer for longer than a session lives, and comes back: whoever works goes on."""

from __future__ import annotations

import os
import signal
import time

import pytest
from kits.hosts.fleet import PORT, TTL, Fleet, in_one_round, outputs
from kits.hosts.hosts import Host

pytestmark = pytest.mark.thorough  # order: simulation

SOON = TTL + 60
OUTAGE = 120


def test_server_that_stands_still_disturbs_nobody(fleet: Fleet) -> None:
    hub, alpha, beta = fleet.lan.add("hub", "alpha", "beta")
    endpoint = f"{hub.address}:{PORT}"
    serve = fleet.start(hub, ["rdzv", "serve", f"--rdzv-endpoint={endpoint}"])
    serve.wait_for("serving a store at")
    agents = [
        fleet.node(
            host, endpoint, "1:3", script="trains.py", rank=rank, ttl=TTL, outage=OUTAGE, conf="last_call_timeout=60"
        )
        for rank, host in enumerate((alpha, beta))
    ]
    gamma, *_ = fleet.lan.add("gamma")
    agents.append(fleet.node(gamma, endpoint, "1:3", script="trains.py", rank=2, ttl=TTL, outage=OUTAGE))
    in_one_round(*agents)
    os.kill(serve.pid, signal.SIGSTOP)
    stopped = time.monotonic()
    try:
        for agent in agents:
            agent.wait_for(r"does not answer", SOON)
        while time.monotonic() < stopped + 2 * TTL:  # that long is the outage: it is what is tested
            time.sleep(0.1)
    finally:
        os.kill(serve.pid, signal.SIGCONT)
    for agent in agents:
        agent.wait_for(r"answers again", SOON)
    fleet.finish(*agents)
    for agent in agents:
        assert len(agent.reports()) == 1, "its worker was never stopped"


def test_newcomer_that_cannot_reach_the_workers_store_disturbs_nobody(fleet: Fleet) -> None:
    hub, alpha, beta, gamma = fleet.lan.add("hub", "alpha", "beta", "gamma")
    endpoint = fleet.serve(hub)
    gamma.ip(f"route add blackhole {alpha.address}")

    def node(host: Host) -> object:
        return fleet.node(
            host, endpoint, "2:3", rank=host.number - 2, ttl=TTL, conf="last_call_timeout=0,reach_timeout=2"
        )

    first, second = node(alpha), node(beta)
    before = in_one_round(first, second)
    third = node(gamma)
    for agent in (first, second):
        agent.wait_for(rf"gamma \(node rank 2, pid {third.pid}\) is left out: it cannot reach the workers' store", SOON)
    third.wait_for(r"this node cannot enter round 1: the workers' store at .* cannot be reached", SOON)
    assert [len(agent.reports()) for agent in (first, second)] == [1, 1], outputs([first, second, third])
    gamma.ip(f"route del blackhole {alpha.address}")
    in_one_round(first, second, third, after=before)
    fleet.finish(first, second, third)
