"""Losses by either elastic backend: of the leader, of rank 0, of a node that was only asleep; of a served endpoint.

The loss of etcd itself is in test_etcd_cluster.py.
"""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest
from kits.launcher.elastic_kit import (
    Job,
    Meeting,
    Serve,
    in_one_round,
    last_rank,
    named,
    observing,
    outputs,
    parallel_only,
    restarts,
    trained,
    worlds,
)
from kits.launcher.harness import error_of, plug_in

from rdzv_plugins.errors import EndpointUnreachable

pytestmark = pytest.mark.thorough  # order: simulation

HOOKS = """
import os, time
from rdzv_plugins import hookimpl

@hookimpl
def rdzv_after_join(info):
    if "WAITS" in os.environ:
        print(f"waits as {info.rank}", flush=True)
        time.sleep(600)
"""


@pytest.fixture
def hooks(tmp_path: Path) -> str:
    return plug_in(tmp_path, "rdzv_test_hooks", HOOKS)


def test_leader_and_then_rank_0_are_lost_while_the_workers_run(meeting: Meeting) -> None:
    meeting.serve()
    job = Job(meeting, "1:3", conf="last_call_timeout=80")
    with observing(meeting) as observer:
        leader = job.node(2)
        observer.wait_members(leader)
        first, second = job.node(0), job.node(1)
        before = in_one_round(leader, first, second)
        job.wait_step(leader, first, second)
        assert observer.leader() == leader.pid
        job.kill_node(leader)
        in_one_round(first, second, after=before)
        assert [last_rank(node) for node in (first, second)] == [0, 1]
        job.kill_node(first)
        in_one_round(second)
        assert observer.leader() == second.pid
    job.finish(second)
    assert worlds(second) == [3, 2, 1]
    assert restarts(second) == {"0"}
    assert trained(second) > second.reports()[-1]["FROM"] > 0
    assert re.search(f"{named(leader)} was lost", second.text), outputs([first, second])
    assert re.search(f"{named(first)} was lost", second.text), outputs([first, second])


@parallel_only  # over etcd in the conformance suite
def test_agent_that_was_asleep_is_evicted_and_comes_back_in_a_round_of_its_own(meeting: Meeting) -> None:
    meeting.serve()
    job = Job(meeting, "1:2", conf="ttl=10,last_call_timeout=80")
    with observing(meeting) as observer:
        ranks = {"leader": 0, "other": 1}
        leader = job.node(ranks["leader"])
        observer.wait_members(leader)
        other = job.node(ranks["other"])
        before = in_one_round(leader, other)
        assert observer.leader() == leader.pid
        sleeper, awake = leader, other
        (old_worker,) = job.workers(sleeper)
        os.kill(sleeper.pid, signal.SIGSTOP)
        alone = in_one_round(awake)
        assert worlds(awake) == [2, 1]
        assert observer.members().keys() == {awake.pid}
        os.kill(sleeper.pid, signal.SIGCONT)
        after = in_one_round(leader, other, after=[*before, *alone])
        assert old_worker not in meeting.processes(), "its workers of the round from which it was evicted"
        assert [last_rank(leader), last_rank(other)] == [0, 1]
        numbers = [each.number for each in observer.rounds]
        assert numbers == sorted(numbers), "nothing was written into an older round"
        assert observer.rounds[-1].state == "complete"
        assert len(after) == observer.rounds[-1].world == 2
    job.finish(leader, other)
    assert worlds(awake) == [2, 1, 2]
    assert worlds(sleeper) == [2, 2]
    assert restarts(awake, sleeper) == {"0"}
    assert trained(awake) == trained(sleeper)


@parallel_only
def test_every_node_ends_and_names_the_endpoint_that_is_gone(meeting: Meeting) -> None:
    serve = Serve(meeting)
    job = Job(meeting, 2, script="says.py", conf="outage_timeout=3")
    nodes = [job.node(0), job.node(1)]
    in_one_round(*nodes)
    serve.kill()
    for node in nodes:
        assert node.wait(60) == EndpointUnreachable.exit_code, node.text
        assert meeting.endpoint in node.text.partition("rdzv-run: error: ")[2]
    meeting.check_gone()


@parallel_only
def test_service_that_comes_back_is_led_again_by_the_same_node(meeting: Meeting) -> None:
    """All that it writes to the new server may look as it did in the old one, revisions included."""
    serve = Serve(meeting)
    job = Job(meeting, 2, script="says.py", conf="ttl=60")
    leader = job.node(1)
    with observing(meeting) as observer:
        observer.wait_members(leader)
        other = job.node(0)
        in_one_round(leader, other)
    serve.kill()
    os.kill(other.pid, signal.SIGSTOP)
    Serve(meeting)
    with observing(meeting) as observer:
        observer.wait_members(leader)
        assert observer.rounds == [], "nothing is decided before the other is back"
        os.kill(other.pid, signal.SIGCONT)
        for node in (leader, other):
            node.wait_for("round 1 goes on")
        assert observer.leader() == leader.pid
    job.finish(leader, other)
    assert [worlds(node) for node in (leader, other)] == [[2], [2]]


@parallel_only  # it happens in the store of rank 0
def test_node_that_is_lost_between_the_round_and_its_workers(meeting: Meeting, hooks: str) -> None:
    """The agents exchange ranks in the store of rank 0; nobody is to wait there for one that is gone."""
    meeting.serve()
    job, lost = Job(meeting, "2:3", script="says.py", conf="last_call_timeout=80"), 0
    nodes = {rank: job.node(rank, PYTHONPATH=hooks, **({"WAITS": "1"} if rank == lost else {})) for rank in range(3)}
    victim = nodes.pop(lost)
    victim.wait_for(f"waits as {lost}")
    for node in nodes.values():
        node.wait_for(r"this is node \d of 3")
    meeting.kill(victim.pid)
    in_one_round(*nodes.values())
    job.finish(*nodes.values())
    for node in nodes.values():
        assert worlds(node) == [2], "no worker was started in the round that was never whole"
        assert restarts(node) == {"0"}


@parallel_only  # what it is about happens in the store of rank 0
def test_node_that_hangs_between_the_round_and_its_workers_is_named(meeting: Meeting, hooks: str) -> None:
    """It lives, so that it is not lost; but it does not take part in exchanging ranks."""
    meeting.serve()
    job = Job(meeting, 2, script="says.py", conf="read_timeout=2")
    hangs = job.node(0, PYTHONPATH=hooks, WAITS="1")
    other = job.node(1)
    hangs.wait_for("waits as 0")
    message = error_of(other, 76)
    assert "node rank 0" in message
    assert other.reports() == []
