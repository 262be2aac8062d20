"""A node's process is gone, and the service does not know it: the others go on all the same."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from kits.eventually import eventually
from kits.unit.elastic_nodes import PATIENCE_S, Job, Node, asked_at_rest, in_round
from kits.unit.memory_coordination import MemorySession

from rdzv_plugins.elastic.keys import FINISHING, Member, decode


class EndingSession(MemorySession):
    """One of a service that can end other sessions."""

    def end_session(self, key: str, *, timeout: float) -> bool:
        held = self.service.keys.get(key)
        if held is None or held[1] in (None, self):
            return False
        self.service.expire(held[1])
        return True


class FailingSession(MemorySession):
    """One of a service that can, and does not answer."""

    def end_session(self, key: str, *, timeout: float) -> bool:
        raise TimeoutError("no answer")


class HalfSession(MemorySession):
    """One of a service whose author has yet to write it."""

    def end_session(self, key: str, *, timeout: float) -> bool:
        raise NotImplementedError


class HangingSession(MemorySession):
    """One of a service that can, and takes for ever."""

    goes_on = threading.Event()

    def end_session(self, key: str, *, timeout: float) -> bool:
        self.goes_on.wait(PATIENCE_S)
        return False


def watched(job: Job, nodes: list[Node]) -> None:
    """Wait until the leader sees all others live, and they see the leader."""
    leader = job.leader()
    for node in nodes:
        if node is not leader:
            eventually(lambda node=node: leader.sees(node), lambda: "the leader sees a node")  # type: ignore[misc]
            eventually(lambda node=node: node.sees(leader), lambda: "a node sees the leader")  # type: ignore[misc]


@pytest.mark.parametrize("leads", [False, True], ids=["a node", "the leader"])
@pytest.mark.parametrize("kind", [MemorySession, EndingSession, FailingSession, HalfSession, HangingSession])
def test_node_whose_process_is_gone(kind: type[MemorySession], leads: bool) -> None:
    with Job("1:3") as job:
        job.service.session = kind
        nodes = job.start(3)
        watched(job, nodes)
        victim = next(node for node in nodes if (node is job.leader()) is leads)
        rest = [node for node in nodes if node is not victim]
        victim.vanish()
        eventually(lambda: all(node.handler.num_nodes_waiting() for node in rest), lambda: "the round is over")
        in_round(rest)
        assert job.leader() in rest
        key = f"members/{victim.id}"
        if kind is EndingSession:
            eventually(lambda: job.service.value(key) is None, lambda: "its session has ended")
        else:
            assert job.service.value(key) is not None
            job.service.expire(victim.backend.session)
            job.leader().backend.session.flush()
        newcomer = job.node()
        joined = newcomer.join()
        eventually(lambda: all(node.handler.num_nodes_waiting() for node in rest), lambda: "the newcomer is let in")
        again = [node.join() for node in rest]
        assert {future.result(PATIENCE_S).world_size for future in (*again, joined)} == {3}
        assert job.round.number == 3, "the end of its session was no news"


def test_last_word_of_a_process_that_is_gone_is_heard_before_its_end() -> None:
    """Its workers had succeeded: that its agent was killed after it is no loss, and the others are not disturbed."""
    with Job("1:3") as job:
        nodes = job.start(3)
        watched(job, nodes)
        leader = job.leader()
        victim = next(node for node in nodes if node is not leader)
        with leader.backend.session.calling:  # what the victim says reaches the leader's watch late
            victim.handler.note_done()
            victim.vanish()
            eventually(lambda: not leader.sees(victim), lambda: "the leader knows")
            eventually(lambda: leader.has_heard_all(), lambda: "and has decided")
            assert job.round.state == "complete"
        leader.backend.session.flush()
        eventually(lambda: leader.has_heard_all(), lambda: "its late words are heard")
        assert (job.round.number, job.round.state) == (1, "complete")
        assert job.service.value(FINISHING) is None


def test_what_a_process_has_said_before_it_went_brings_nobody_back() -> None:
    """Else the others would wait for it to join again."""
    with Job("1:3") as job:
        nodes = job.start(3)
        watched(job, nodes)
        leader = job.leader()
        victim = next(node for node in nodes if node is not leader)
        with leader.backend.session.calling:
            victim.handler._self.say(probe=1)
            victim.vanish()
            eventually(lambda: job.round.state == "over", lambda: "the leader knows")
        in_round([node for node in nodes if node is not victim])


def test_what_was_under_way_when_the_process_went_brings_nobody_back() -> None:
    """A kernel sends what it was given, and a service may take it late: after the node's end was heard."""
    with Job("1:3") as job:
        nodes = job.start(3)
        watched(job, nodes)
        leader = job.leader()
        victim = next(node for node in nodes if node is not leader)
        victim.vanish()
        eventually(lambda: job.round.state == "over", lambda: "the leader knows")
        with job.service.lock:
            held, owner = job.service.keys[f"members/{victim.id}"]
            job.service.write(held.key, held.value, owner)
        leader.backend.session.flush()
        in_round([node for node in nodes if node is not victim])


def test_however_many_processes_are_gone_at_once_their_last_words_are_one_request() -> None:
    with Job("1:3") as job:
        nodes = job.start(3)
        leader = job.leader()
        ids = [node.id for node in nodes if node is not leader]
        asked_at_rest([leader])
        before = leader.backend.requests["list"]
        words = leader.handler._link._leader._seen.last_words([*ids, "nobody"], timeout=1)
        assert {node: decode(Member, kv.value).node_id for node, kv in words.items()} == {node: node for node in ids}
        assert leader.backend.requests["list"] == before + 1


def test_a_node_that_leaves_in_order_is_no_process_that_is_gone() -> None:
    with Job("1:2") as job:
        nodes = job.start(2)
        watched(job, nodes)
        leaves = next(node for node in nodes if node is not job.leader())
        asked: list[str] = []
        take_leave: Callable[..., bool] = type(job.leader().handler._link._leader)._take_leave
        job.leader().handler._link._leader._take_leave = lambda *args: asked.append(args[0]) or take_leave(*args)
        leaves.handler._joining.close()
        eventually(lambda: not job.leader().sees(leaves), lambda: "the connection has ended")
        leaves.handler.shutdown()
        eventually(lambda: job.round.state == "over", lambda: "it has left")
        assert asked == []
