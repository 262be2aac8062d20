"""``rdzv serve`` is started again while jobs work: their workers go on, and later losses are dealt with as ever."""

from __future__ import annotations

from typing import Any

import pytest
from kits.eventually import eventually
from kits.launcher.elastic_kit import (
    Job,
    Meeting,
    Serve,
    in_one_round,
    observing,
    outputs,
    parallel_only,
    restarts,
    trained,
    worlds,
)
from kits.launcher.harness import Agent

from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.kvstore.native.framing import ask_statistics

pytestmark = [pytest.mark.thorough, parallel_only]  # order: simulation
GOES_ON = r"round 1 goes on: all of its nodes have come back"


def goes_on(*agents: Agent) -> None:
    for agent in agents:
        agent.wait_for(GOES_ON)


def test_workers_go_on_and_a_later_loss_is_noticed(meeting: Meeting) -> None:
    serve = Serve(meeting)
    job = Job(meeting, "1:2", conf="last_call_timeout=80,outage_timeout=90")
    first, second = nodes = [job.node(0), job.node(1)]
    before = in_one_round(*nodes)
    workers = [*job.workers(first), *job.workers(second)]
    job.wait_step(*nodes)
    serve.kill()
    for node in nodes:
        node.wait_for("trying to reach it again")
    Serve(meeting)
    goes_on(*nodes)
    with observing(meeting) as observer:
        assert [(each.number, each.state, each.world) for each in observer.rounds] == [(1, "complete", 2)]
        assert observer.members().keys() == observer.placed() == {first.pid, second.pid}
        assert [*job.workers(first), *job.workers(second)] == workers, outputs(nodes)
        job.kill_node(second)
        in_one_round(first, after=before)
        assert [(each.number, each.state) for each in observer.rounds][1:] == [(1, "over"), (2, "complete")]
    job.finish(first)
    assert worlds(first) == [2, 1]
    assert restarts(first) == {"0"}
    assert trained(first) > first.reports()[-1]["FROM"] > 0


def test_node_that_was_lost_meanwhile_is_missed(meeting: Meeting) -> None:
    """The others wait for it as long as a lost one would be noticed, and then restart without it."""
    serve = Serve(meeting)
    job = Job(meeting, "2:3", conf="last_call_timeout=80,outage_timeout=90", script="says.py")
    nodes = [job.node(rank) for rank in range(3)]
    before = in_one_round(*nodes)
    serve.kill()
    for node in nodes:
        node.wait_for("trying to reach it again")
    job.kill_node(nodes[2])
    Serve(meeting)
    rest = nodes[:2]
    in_one_round(*rest, after=before)
    for node in rest:
        assert "goes on: all" not in node.text
    job.finish(*rest)
    assert restarts(*rest) == {"0"}


def test_nothing_of_a_run_stays_and_a_late_node_is_the_first_of_a_new_one(meeting: Meeting) -> None:
    Serve(meeting)
    job = Job(meeting, "2", script="says.py", conf="ttl=3")
    nodes = [job.node(0), job.node(1)]
    in_one_round(*nodes)
    assert [run["name"] for run in statistics(meeting)["runs"]] == [job.run_id]
    for node in nodes:
        job.kill_node(node)
    eventually(lambda: not statistics(meeting)["runs"], lambda: outputs(nodes))
    stats = statistics(meeting)
    assert (stats["runs_forgotten"], stats["bytes"]["stored"]) == (1, 0)
    late = job.node(0)
    late.wait_for(r"1 of 2 nodes have joined .*; missing: node rank 1")
    last = job.node(1)
    in_one_round(late, last)
    job.finish(late, last)


def statistics(meeting: Meeting) -> dict[str, Any]:
    return ask_statistics(Endpoint("127.0.0.1", meeting.port), 60)
