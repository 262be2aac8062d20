"""Nodes that cannot take part: each is told what is wrong and with whom, the others go on."""

from __future__ import annotations

import re

import pytest
from kits.launcher.elastic_kit import Job, Meeting, in_one_round, last_rank, named, observing, parallel_only, worlds
from kits.launcher.harness import error_of

pytestmark = pytest.mark.thorough


@parallel_only  # over etcd in the conformance suite
def test_settings_that_differ_are_named_here_and_there_and_with_whom(meeting: Meeting) -> None:
    job = Job(meeting, 2, script="says.py")
    first = job.node()
    with observing(meeting) as observer:
        observer.wait_members(first)
        others = {
            "--nnodes: here 3": Job(meeting, 3, script="says.py").node(),
            "--nnodes: here 1:2": Job(meeting, "1:2", script="says.py").node(),
            "--rdzv-conf store": job.node(conf="store=torch"),
        }
        for setting, other in others.items():
            message = error_of(other, 78)
            assert all(each in message for each in (f"pid {first.pid}", meeting.endpoint, setting))
            assert other.reports() == []
        observer.wait_members(first)
    second = Job(meeting, 2, script="says.py", backend=meeting.alias).node()
    in_one_round(first, second)
    job.finish(first, second)
    (warned,) = (agent for agent in (first, second) if "on the same machine" in agent.text)
    assert all(f"(pid {agent.pid})" in warned.text for agent in (first, second))


def test_two_runs_at_one_server_do_not_meet(meeting: Meeting) -> None:
    meeting.serve()
    jobs = [
        Job(meeting, 2, script="says.py", run_id=f"{meeting.run_id}-{name}", conf="allow_same_host=true")
        for name in ("one", "two")
    ]
    pairs = [(job.node(), job.node()) for job in jobs]
    for job, pair in zip(jobs, pairs, strict=True):
        reports = in_one_round(*pair)
        assert {report["TORCHELASTIC_RUN_ID"] for report in reports} == {job.run_id}
    jobs[0].finish(*pairs[0])
    assert all(jobs[1].workers(agent) for agent in pairs[1]), "the other one's end is none of its"
    jobs[1].finish(*pairs[1])
    for agent in (*pairs[0], *pairs[1]):
        assert worlds(agent) == [2]


@parallel_only  # what refuses is the same over etcd
def test_second_agent_with_the_same_node_rank_is_told(meeting: Meeting) -> None:
    meeting.serve()
    job = Job(meeting, 2, script="says.py", conf="ttl=10")
    with observing(meeting) as observer:
        holder = job.node(1)
        observer.wait_members(holder)
        message = error_of(job.node(1), 78)
    assert re.search(f"node rank 1 is that of {named(holder)}", message)
    other = job.node(0)
    in_one_round(holder, other)
    job.finish(holder, other)
    assert (last_rank(holder), last_rank(other)) == (1, 0)
