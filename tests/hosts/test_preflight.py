"""--preflight among hosts: one that is slow, frozen or has no way to another is named and left out, and nobody else."""

from __future__ import annotations

import os
import signal

import pytest
from kits.hosts.fleet import PORT, Fleet, in_one_round, outputs, said
from kits.launcher.harness import Agent

FLAGS = ("--preflight=store,network", "--max-restarts=1")
RATE = 2_000_000


def start(fleet: Fleet, least: int, *numbers: int) -> list[Agent]:
    """Agents on these of the hosts, of ``least`` or of all; the first serves the endpoint."""
    hosts = fleet.lan.hosts
    endpoint, nodes = f"{hosts[0].address}:{PORT}", f"{least}:{len(hosts)}"
    conf = "last_call_timeout=120"
    return [fleet.node(hosts[number], endpoint, nodes, conf=conf, flags=FLAGS) for number in numbers]


@pytest.mark.thorough
def test_a_throttled_host_is_left_out_until_the_round_is_over_and_tried_again_then(fleet: Fleet) -> None:
    *_, slow, _ = fleet.lan.add("alpha", "beta", "gamma", "delta", "epsilon")
    fleet.lan.slow(slow, 0.0, RATE)
    agents = start(fleet, 4, 0, 1, 2, 3, 4)
    spare = agents.pop(3)
    before = in_one_round(*agents)
    for agent in agents:
        said(agent, r"warning: delta \(pid \d+\) is slow")
        assert "beta (pid" not in said(agent, "warning: .*is slow.*")[0]
    assert not spare.reports()
    fleet.lan.hasten(slow)
    (worker,) = fleet.cluster.workers(agents[0], "says.py")
    fleet.cluster.kill(worker)
    in_one_round(*agents, spare, after=before)
    fleet.finish(*agents, spare)


def test_two_without_a_way_to_each_other_end_a_job_that_has_no_spare(fleet: Fleet) -> None:
    _, beta, gamma = fleet.lan.add("alpha", "beta", "gamma")
    fleet.lan.hide(gamma, beta)
    agents = start(fleet, 3, 0, 1, 2)
    assert [agent.wait() for agent in agents] == [83, 83, 83], outputs(agents)
    for agent in agents:
        said(
            agent,
            r"(beta|gamma) \(pid \d+\) and (beta|gamma) \(pid \d+\) have no way",
        )
        assert not agent.reports()
    fleet.check_gone()


@pytest.mark.thorough
def test_a_host_that_is_frozen_meanwhile_holds_nobody_up(fleet: Fleet) -> None:
    fleet.lan.add("alpha", "beta", "gamma", "delta")
    (first,) = start(fleet, 3, 0)
    first.wait_for(r"1 of 3:4 nodes have joined")  # it leads: else nobody would, for the time of a session
    (frozen,) = start(fleet, 3, 1)
    first.wait_for(r"2 of 3:4 nodes have joined")
    os.kill(frozen.pid, signal.SIGSTOP)
    try:
        agents = [first, *start(fleet, 3, 2, 3)]
        in_one_round(*agents)
        said(first, r"beta \(pid \d+\) (is left out for now: it has not answered|has no way to 3 of 3 other nodes)")
    finally:
        os.kill(frozen.pid, signal.SIGCONT)
    in_one_round(*agents, frozen)
    fleet.finish(*agents, frozen)
