"""Runs at an etcd: beside each other, after one that died, and what they leave there; how many requests they make."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
from kits.etcd import etcd_kit
from kits.eventually import eventually
from kits.launcher.elastic_kit import EtcdMeeting, Job, in_one_round, observing, outputs, restarts, worlds

from rdzv_plugins.backends.etcd.coordination import EtcdCoordination
from rdzv_plugins.elastic.handler import ElasticHandler
from rdzv_plugins.elastic.options import ElasticOptions
from rdzv_plugins.interfaces import Outcome, Request

pytestmark = pytest.mark.thorough  # order: simulation


def test_failure_of_a_run_ends_it_everywhere_and_is_none_of_another_runs(meeting: EtcdMeeting) -> None:
    fails = Job(meeting, 3, script="report.py", run_id=f"{meeting.run_id}-fails", args=("fail", 1, 7))
    other = Job(meeting, 2, script="says.py", run_id=f"{meeting.run_id}-fails-not")  # begins with the first one's id
    others = [other.node(rank) for rank in (0, 1)]
    reports = in_one_round(*others)
    nodes = [fails.node(rank) for rank in range(3)]
    assert [node.wait() for node in nodes] == [7, 7, 7], outputs(nodes)
    assert all("first failure: rank 1 (node 1 on " in node.text for node in nodes)
    assert meeting.held(fails.run_id) == {}, "the job has ended in order"
    again = Job(meeting, 1, script="says.py", run_id=fails.run_id)
    again.finish(again.node())
    assert [report["PID"] for node in others for report in node.reports()] == [report["PID"] for report in reports]
    assert all(other.workers(node) for node in others)
    other.finish(*others)
    assert meeting.held(other.run_id) == {}


def test_run_that_died_as_a_whole_is_started_again_at_once(meeting: EtcdMeeting) -> None:
    """The dead are members until their leases end, and the node ranks are theirs."""
    job = Job(meeting, 2, script="says.py")
    dead = [job.node(rank) for rank in (0, 1)]
    in_one_round(*dead)
    for node in dead:
        job.kill_node(node)
    nodes = [job.node(rank) for rank in (0, 1)]
    in_one_round(*nodes)
    job.finish(*nodes)
    assert [worlds(node) for node in nodes] == [[2], [2]]
    assert restarts(*nodes) == {"0"}
    assert meeting.held(job.run_id) == {}


def test_run_that_died_as_a_whole_leaves_nothing_to_one_that_begins_later(meeting: EtcdMeeting) -> None:
    job = Job(meeting, 3, script="says.py")
    dead = [job.node() for _ in range(3)]
    in_one_round(*dead)
    for node in dead:
        job.kill_node(node)
    eventually(lambda: not any("/s/" in key for key in meeting.held(job.run_id)), lambda: "leases do not end")
    left = meeting.held(job.run_id)
    assert left, "or this test shows nothing"
    assert all(left.values()), "all hang on a lease"
    smaller = Job(meeting, 2, script="says.py", run_id=job.run_id)  # other settings than the dead had agreed on
    with observing(meeting) as observer:
        nodes = [smaller.node(), smaller.node()]
        in_one_round(*nodes)
        assert [(each.number, each.state, each.world) for each in observer.rounds] == [(1, "complete", 2)]
    smaller.finish(*nodes)
    assert meeting.held(job.run_id) == {}


def test_lost_node_costs_no_restart_where_etcd_grants_longer_leases_than_asked_for(tmp_path: Path) -> None:
    """Its neighbour's worker fails at once, and has to wait for etcd to say why."""
    with ExitStack() as stack:
        etcd = stack.enter_context(etcd_kit.etcd(tmp_path, heartbeat=400, election=4000))  # leases of 6 s
        meeting = EtcdMeeting(tmp_path, etcd)
        stack.callback(meeting.close)
        job = Job(meeting, "1:2", conf="ttl=3,last_call_timeout=80")
        first, second = job.node(0), job.node(1)
        in_one_round(first, second)
        job.kill_node(second)
        in_one_round(first)
        job.finish(first)
    assert worlds(first) == [2, 1]
    assert restarts(first) == {"0"}


def requests_of_a_round(etcd: etcd_kit.Cluster, run_id: str, size: int) -> tuple[int, int]:
    """What ``size`` nodes ask etcd for: to be in a round, and in one more. Keeping leases alive is left out."""

    def counted() -> int:
        return etcd.count() - etcd.count("LeaseKeepAlive")

    request = Request("etcd", f"{run_id}-{size}", etcd.endpoint, min_nodes=size, max_nodes=size, nproc_per_node=1)
    options = ElasticOptions(timeout=120, ttl=60, reach_timeout=60, allow_same_host=True)
    services = [EtcdCoordination(etcd.endpoints, request.run_id) for _ in range(size)]
    nodes = [ElasticHandler(service, request, options) for service in services]
    with ThreadPoolExecutor(size) as pool:
        start = counted()
        list(pool.map(lambda node: node.next_rendezvous(), nodes))
        first = counted()
        nodes[0].note_leaving("so that the others have to meet again")
        for node in nodes[1:]:
            eventually(node.num_nodes_waiting, lambda: "the round is not over")
        nodes[0].shutdown()
        nodes[0] = ElasticHandler(EtcdCoordination(etcd.endpoints, request.run_id), request, options)
        list(pool.map(lambda node: node.next_rendezvous(), nodes))
        second = counted()
        for node in nodes:
            node.leave(Outcome("done"))
            node.shutdown()
    return first - start, second - first


def test_requests_per_node_and_round_do_not_grow_with_the_number_of_nodes(meeting: EtcdMeeting) -> None:
    """By etcd's own count; one node in four more would show that each asks for each other."""
    few = requests_of_a_round(meeting.etcd, meeting.run_id, 4)
    many = requests_of_a_round(meeting.etcd, meeting.run_id, 16)
    for count_of_few, count_of_many in zip(few, many, strict=True):
        assert count_of_many / 16 <= count_of_few / 4 + 1
