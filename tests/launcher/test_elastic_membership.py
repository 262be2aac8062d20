"""Nodes that come and go while a job runs: who is in a round, with which rank, and what it costs.

Over etcd the conformance suite asks most of it, of processes that do without workers.
"""

from __future__ import annotations

import os
import signal

import pytest
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
    trained,
    worlds,
)


@parallel_only  # over etcd the next one
def test_node_that_comes_late_joins_and_node_that_is_stopped_leaves(meeting: Meeting) -> None:
    job = Job(meeting, "1:2", conf="last_call_timeout=0,allow_same_host=true")
    first = job.node()
    alone = in_one_round(first)
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
    assert trained(first) > 0
    assert meeting.processes() == {}


def test_spare_takes_the_place_of_a_lost_node_and_another_one_ends_with_the_job(meeting: Meeting) -> None:
    job = Job(meeting, 2, conf="allow_same_host=true")
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
    assert trained(survivor) == trained(used)


@pytest.mark.thorough
@parallel_only
def test_spare_of_the_same_domain_replaces_a_lost_node_and_ranks_stay_side_by_side(meeting: Meeting) -> None:
    job = Job(meeting, 4, conf="allow_same_host=true,min_per_domain=2,node_unit=2")
    names = ("r", "s", "r", "s")
    nodes = [job.node(conf=f"domain={name}") for name in names]
    before = in_one_round(*nodes)
    spares = {name: job.node(conf=f"domain={name}") for name in "sr"}
    for spare in spares.values():
        spare.wait_for("this node is a spare: all 4 places are taken")

    def domains() -> dict[str, list[int]]:
        ranks: dict[str, list[int]] = {}
        for node, name in zip(nodes, names, strict=True):
            ranks.setdefault(name, []).append(last_rank(node))
        return {name: sorted(each) for name, each in ranks.items()}

    was = domains()
    assert sorted(was.values()) == [[0, 1], [2, 3]]
    asked = meeting.start(["rdzv", "status", f"--rdzv-endpoint={meeting.endpoint}"])
    asked.wait_for(r"nodes: 0 on \S+ \(1 worker, domain [rs]\)")
    victim = next(at for at, node in enumerate(nodes) if names[at] == "r" and not meeting.listens(node))
    job.kill_node(nodes[victim])
    nodes[victim] = spares["r"]
    in_one_round(*nodes, after=before)
    assert domains() == was
    assert spares["s"].reports() == [], "it is of another domain, though it was there first"
    job.finish(*nodes, spares["s"])


@pytest.mark.thorough
@parallel_only
def test_given_ranks_survive_the_loss_and_the_return_of_a_node(meeting: Meeting) -> None:
    job = Job(meeting, "2:3", conf="last_call_timeout=60")
    nodes = {rank: job.node(rank) for rank in (2, 0, 1)}
    first = in_one_round(*nodes.values())
    assert {rank: last_rank(node) for rank, node in nodes.items()} == {0: 0, 1: 1, 2: 2}
    victim = nodes.pop(1)
    if meeting.listens(victim):  # the endpoint is to survive
        nodes[1], victim = victim, nodes.pop(0)
    lost = 3 - sum(nodes)
    job.kill_node(victim)
    fewer = in_one_round(*nodes.values(), after=first)
    assert [last_rank(nodes[rank]) for rank in sorted(nodes)] == [0, 1], "without gaps, in the order of the given ones"
    nodes[lost] = job.node(lost)
    in_one_round(*nodes.values(), after=fewer)
    assert {rank: last_rank(node) for rank, node in nodes.items()} == {0: 0, 1: 1, 2: 2}
    job.finish(*nodes.values())
    assert restarts(*nodes.values()) == {"0"}
    assert len({trained(node) for node in nodes.values()}) == 1


@pytest.mark.thorough
@parallel_only  # the same agents over etcd
def test_too_few_are_left_and_wait_for_a_replacement_saying_for_whom(meeting: Meeting) -> None:
    job = Job(meeting, 2, conf="allow_same_host=true")
    nodes = [job.node(), job.node()]
    before = in_one_round(*nodes)
    survivor, victim = nodes if meeting.listens(nodes[0]) else nodes[::-1]
    old, rank = last_rank(survivor), last_rank(victim)
    job.wait_step(*nodes)
    job.kill_node(victim)
    there = rf"1 of 2 nodes have joined \({named(survivor)}\)"
    survivor.wait_for(rf"waiting: run '{meeting.run_id}' at \S+: {there}; missing: \S+ \(was node {rank}\)")
    assert job.workers(survivor) == [], "nothing runs meanwhile"
    again = job.node()
    in_one_round(survivor, again, after=before)
    assert (last_rank(survivor), last_rank(again)) == (old, rank)
    job.finish(survivor, again)
    assert restarts(survivor, again) == {"0"}
    assert trained(again) > again.reports()[0]["FROM"] > 0
