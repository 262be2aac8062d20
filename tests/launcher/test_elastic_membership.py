"""Nodes that come and go while a job runs: who is in a round, with which rank, and what it costs.

In other orders of events: the scenarios of tests/simulation; over etcd: the conformance suite.
"""

from __future__ import annotations

import os
import signal

from kits.eventually import eventually
from kits.launcher.elastic_kit import (
    Job,
    Meeting,
    in_one_round,
    last_rank,
    named,
    outputs,
    parallel_only,
    restarts,
    worlds,
)


@parallel_only
def test_node_that_comes_late_joins_and_node_that_is_stopped_leaves(meeting: Meeting) -> None:
    job = Job(meeting, "1:2", script="says.py", conf="last_call_timeout=0,allow_same_host=true")
    first = job.node()
    alone = in_one_round(first)
    first.wait_for(rf"warning: .* 1 of 1:2 nodes.* {meeting.endpoint} ")  # which no other machine can reach
    second = job.node()
    both = in_one_round(first, second)
    assert last_rank(first) == 0, "who stays keeps its rank"
    assert both[0]["PID"] != alone[0]["PID"], "everybody restarts"
    os.kill(second.pid, signal.SIGTERM)
    assert second.wait() == 143
    in_one_round(first)
    job.finish(first)
    assert worlds(first) == [1, 2, 1]
    assert restarts(first, second) == {"0"}
    assert meeting.processes() == {}


@parallel_only
def test_spare_takes_the_place_of_a_lost_node_and_another_one_ends_with_the_job(meeting: Meeting) -> None:
    job = Job(meeting, 2, script="says.py", conf="allow_same_host=true")
    first, second = job.node(), job.node()
    before = in_one_round(first, second)
    spares = [job.node(), job.node()]
    for spare in spares:
        spare.wait_for("this node is a spare")
    assert worlds(first) == worlds(second) == [2], "nobody has been disturbed"
    survivor, victim = (first, second) if meeting.listens(first) else (second, first)
    rank = last_rank(survivor)
    job.kill_node(victim)
    survivor.wait_for(f"round 1 is over: {named(victim)} was lost")
    used = eventually(lambda: next((spare for spare in spares if spare.reports()), None), lambda: outputs(spares))
    in_one_round(survivor, used, after=before)
    assert last_rank(survivor) == rank
    (left,) = (spare for spare in spares if spare is not used)
    job.finish(survivor, used, left)
    assert left.reports() == []
    assert restarts(survivor, used) == {"0"}
