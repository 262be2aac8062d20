"""Jobs on an etcd of three members that are killed, stopped and started again."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from kits.etcd import etcd_kit
from kits.eventually import eventually
from kits.launcher.elastic_kit import EtcdMeeting, Job, in_one_round, observing, outputs, restarts, worlds
from kits.launcher.harness import Agent

pytestmark = pytest.mark.thorough  # order: simulation


@pytest.fixture(scope="module")
def members(tmp_path_factory: pytest.TempPathFactory) -> Iterator[etcd_kit.Cluster]:
    with etcd_kit.etcd(tmp_path_factory.mktemp("three"), members=3, heartbeat=50, election=500) as etcd:
        yield etcd


@pytest.fixture
def three(members: etcd_kit.Cluster) -> etcd_kit.Cluster:
    """All of its members live."""
    for member in members.members:
        if member.stopped:
            member.cont()
        if not member.alive:
            member.restart()
    members.wait_quorum()
    return members


@pytest.fixture
def meeting(three: etcd_kit.Cluster, tmp_path: Path) -> Iterator[EtcdMeeting]:
    with closing(EtcdMeeting(tmp_path, three)) as meeting:
        yield meeting


def wait_kept_alive(etcd: etcd_kit.Cluster, sessions: int) -> None:
    """Until the members that run have kept them alive for longer than a time to live."""
    before = etcd.count("LeaseKeepAlive")
    eventually(lambda: etcd.count("LeaseKeepAlive") >= before + 4 * sessions, lambda: "nobody keeps a lease alive")


def lose_quorum(etcd: etcd_kit.Cluster) -> list[etcd_kit.Member]:
    """Two of three are killed: those. The third knows of no leader."""
    leader = etcd.leader
    killed = [leader, next(member for member in etcd.members if member is not leader)]
    for member in killed:
        member.kill()
    return killed


def two_nodes(meeting: EtcdMeeting, waiting: bool, conf: str = "") -> tuple[Job, list[Agent]]:
    """That work, or wait for a third."""
    job = Job(meeting, 3 if waiting else 2, script="says.py", conf=conf)
    nodes = [job.node(0), job.node(1)]
    if waiting:
        with observing(meeting) as observer:
            observer.wait_members(*nodes)
    else:
        in_one_round(*nodes)
    return job, nodes


def check_nothing_but_etcd_was_lost(*nodes: Agent) -> None:
    for node in nodes:
        assert worlds(node) == [len(nodes)], f"the workers were not left alone:\n{outputs(nodes)}"
    assert restarts(*nodes) == {"0"}


def test_leader_of_etcd_is_killed_while_a_round_forms(meeting: EtcdMeeting, three: etcd_kit.Cluster) -> None:
    job = Job(meeting, 3, script="says.py", conf="ttl=60")
    with observing(meeting) as observer:
        first = job.node(2)
        observer.wait_members(first)
        sleeper = job.node(0)
        observer.wait_members(first, sleeper)
        os.kill(sleeper.pid, signal.SIGSTOP)  # so the round is halfway for as long as we like
        third = job.node(1)
        nodes = [sleeper, third, first]
        eventually(lambda: sleeper.pid in observer.placed(), lambda: outputs(nodes))
        leader = three.leader
        leader.kill()
        three.wait_quorum()
        assert observer.rounds == []
        os.kill(sleeper.pid, signal.SIGCONT)
        in_one_round(*nodes)
        leader.restart()
        three.wait_quorum()
        assert [(each.number, each.state, each.world) for each in observer.rounds] == [(1, "complete", 3)]
    job.finish(*nodes)
    check_nothing_but_etcd_was_lost(*nodes)


def test_leader_of_etcd_is_lost_and_comes_back_while_workers_run(meeting: EtcdMeeting, three: etcd_kit.Cluster) -> None:
    job = Job(meeting, 3, script="says.py")
    nodes = [job.node(rank) for rank in range(3)]
    in_one_round(*nodes)
    leader = three.leader
    leader.kill()
    three.wait_quorum()
    wait_kept_alive(three, len(nodes))
    check_nothing_but_etcd_was_lost(*nodes)
    leader.restart()
    three.wait_quorum()
    job.finish(*nodes)
    check_nothing_but_etcd_was_lost(*nodes)


@pytest.mark.parametrize("when", ["while nodes wait", "while workers run"])
def test_without_a_quorum_nodes_say_so_and_go_on_when_it_is_back(
    meeting: EtcdMeeting, three: etcd_kit.Cluster, when: str
) -> None:
    waiting = when == "while nodes wait"
    job, nodes = two_nodes(meeting, waiting)
    killed = lose_quorum(three)
    for node in nodes:
        node.wait_for("rdzv-run warning: etcd has not answered")
    killed[0].restart()
    three.wait_quorum()
    for node in nodes:
        node.wait_for("rdzv-run warning: etcd answers again")
    wait_kept_alive(three, len(nodes))
    if waiting:
        nodes.append(job.node(2))
        in_one_round(*nodes)
    job.finish(*nodes)
    check_nothing_but_etcd_was_lost(*nodes)


def test_without_a_quorum_for_too_long_every_node_ends_and_names_the_members(
    meeting: EtcdMeeting, three: etcd_kit.Cluster
) -> None:
    _, nodes = two_nodes(meeting, waiting=False, conf="outage_timeout=10")
    lose_quorum(three)
    for node in nodes:
        assert node.wait(60) == 68, node.text
        error = node.text.partition("rdzv-run: error: ")[2]
        assert all(str(member.endpoint) in error for member in three.members), error
    assert meeting.processes() == {}


def test_a_job_starts_whatever_member_is_down(meeting: EtcdMeeting, three: etcd_kit.Cluster) -> None:
    """A member that was stopped still accepts connections, and never answers."""
    three.members[0].stop()
    three.wait_quorum()
    job = Job(meeting, 2, script="says.py")
    nodes = [job.node(), job.node()]
    in_one_round(*nodes)
    job.finish(*nodes)
    assert meeting.held(job.run_id) == {}
    check_nothing_but_etcd_was_lost(*nodes)
