"""Nodes that are killed at an etcd whose leases would last for ten minutes: the others go on at once all the same."""

from __future__ import annotations

import re

import pytest
from kits.launcher.elastic_kit import EtcdMeeting, Job, in_one_round, named, observing, outputs, restarts, worlds
from kits.launcher.harness import wait_until

LONG = "ttl=600,last_call_timeout=80"


@pytest.fixture
def backend() -> str:
    return "etcd"


@pytest.mark.parametrize("leads", [False, True], ids=["a node", "the leader"])
def test_killed_node_is_known_to_be_gone(meeting: EtcdMeeting, leads: bool) -> None:
    job = Job(meeting, "1:3", script="says.py", conf=LONG)
    nodes = [job.node(), job.node(), job.node()]
    in_one_round(*nodes)
    with observing(meeting) as observer:
        leader = observer.leader()
        killed = next(node for node in nodes if (node.pid == leader) is leads)
        rest = [node for node in nodes if node is not killed]
        job.kill_node(killed)
        in_one_round(*rest)
        wait_until(lambda: observer.members().keys() == {node.pid for node in rest}, 60, lambda: outputs(nodes))
        assert observer.leader() in {node.pid for node in rest}
    sessions = [key for key in meeting.held(job.run_id) if "/s/" in key]
    assert len(sessions) == 2, "its session was ended, and nobody else's"
    job.finish(*rest)
    for node in rest:
        assert worlds(node) == [3, 2]
        assert re.search(f"{named(killed)} was lost", node.text)
    assert restarts(*rest) == {"0"}
    assert any(re.search(rf"the agent on {named(killed)} has ended", node.text) for node in rest)
    assert meeting.held(job.run_id) == {}
