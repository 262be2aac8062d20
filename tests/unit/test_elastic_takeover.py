"""The leader goes, or the service does not answer, at every step of a round: the others go on."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Literal

import pytest
from kits.eventually import eventually
from kits.unit.elastic_nodes import PATIENCE_S, Job, Node, in_round
from kits.unit.memory_coordination import MemorySession, Stage

from rdzv_plugins import errors
from rdzv_plugins.elastic.keys import Assignment, Round, decode
from rdzv_plugins.interfaces import Outcome

STEPS = {"serve": "node/", "reach": "node/", "complete": "all/round"}


def times_out(session: MemorySession) -> None:
    raise TimeoutError("no answer")


def at_step(job: Job, step: str, stage: Stage, action: Callable[[MemorySession], None]) -> None:
    """Call ``action`` when the leader writes what begins this step of a round."""
    first = lambda session: job.service.on("put", STEPS[step], stage, action)  # noqa: E731
    if step == "reach":  # the first write of assignments asks rank 0 to serve
        job.service.on("put", "node/", "after", first)
    else:
        job.service.on("put", STEPS[step], stage, action)


def in_some_round(job: Job, nodes: list[Node]) -> None:
    """All of these join, again whenever they have to, until they are in one round."""
    waiting = {node.id: node.join() for node in nodes}

    def together() -> bool:
        for node in nodes:
            future = waiting[node.id]
            if future.done():
                future.result()
                if node.handler.num_nodes_waiting():
                    waiting[node.id] = node.join()
        infos = [future.result() for future in waiting.values() if future.done()]
        return len(infos) == len(nodes) and {info.world_size for info in infos} == {len(nodes)}

    eventually(together, lambda: f"{len(nodes)} nodes in one round; now {job.round}")


def is_lost(node: Node) -> bool:
    """Its agent has been told that it has lost the service."""
    try:
        node.handler.raise_if_ended()
    except errors.EndpointUnreachable as error:
        return isinstance(error, errors.EndpointLost) and "lost the rendezvous of run 'job' at here:1" in str(error)
    return False


@pytest.mark.parametrize("stage", ["before", "after"])
@pytest.mark.parametrize("step", STEPS)
def test_leaders_node_is_lost(step: str, stage: Stage):
    with Job("2:3", outage_timeout=1) as job:
        nodes = [job.node() for _ in range(3)]
        dead: list[Node] = []

        def die(session: MemorySession) -> None:
            dead.append(next(node for node in nodes if node.backend is session.backend))
            dead[0].die()

        at_step(job, step, stage, die)
        futures = {node.id: node.join() for node in nodes}
        eventually(lambda: dead, lambda: "the leader dies")
        eventually(lambda: is_lost(dead[0]), lambda: "the dead node's own agent finds out")
        rest = [node for node in nodes if node is not dead[0]]
        newcomer = job.node()
        last = newcomer.join()

        def together() -> bool:
            for node in rest:
                if futures[node.id].done() and node.handler.num_nodes_waiting():
                    futures[node.id] = node.join()
            infos = [futures[node.id].result() for node in rest if futures[node.id].done()]
            return [info.world_size for info in infos] == [3, 3] and last.done()

        eventually(together, lambda: "the others and a newcomer are together")
        assert job.leader() is not dead[0]


@pytest.mark.parametrize("stage", ["before", "after"])
@pytest.mark.parametrize("step", STEPS)
def test_leader_loses_its_session_and_comes_back(step: str, stage: Stage):
    with Job("3") as job:
        nodes = [job.node() for _ in range(3)]
        at_step(job, step, stage, lambda session: session.backend.lose())
        in_some_round(job, nodes)


@pytest.mark.parametrize("stage", ["before", "after"])
@pytest.mark.parametrize(
    ("request_", "key"),
    [
        ("create", "all/leader"),
        ("list", ""),
        ("watch", "members/"),
        ("put", "node/"),
        ("put", "all/round"),
        ("put", "members/"),
        ("delete", "node/"),
    ],
)
def test_service_does_not_answer_once(request_: str, key: str, stage: Stage):
    """What was asked may have been done, or not: in both cases the job goes on."""
    with Job("2") as job:
        nodes = [job.node(), job.node()]
        timed_out: list[bool] = []

        def silent(session: MemorySession) -> None:
            timed_out.append(True)
            times_out(session)

        job.service.on(request_, key, stage, silent)
        in_some_round(job, nodes)
        if request_ == "delete":  # of a node that is lost for good, once another has its place
            nodes[0].die()
            nodes[0] = job.node()
            in_some_round(job, nodes)
            eventually(lambda: timed_out, lambda: "its key is deleted")
            in_some_round(job, nodes)
        assert timed_out


def test_leader_that_was_replaced_writes_nothing():
    """Its writes are guarded by its key."""
    with Job("2") as job:
        nodes = [job.node(), job.node()]
        held: list[bytes | None] = []

        def replaced(session: MemorySession) -> None:
            job.service.lock.acquire()
            job.service.write("all/leader", None, None)

        def look(session: MemorySession) -> None:
            held.append(job.service.value("all/round"))
            job.service.lock.release()

        job.service.on("put", "all/round", "before", replaced)
        job.service.on("put", "all/round", "after", look)
        in_some_round(job, nodes)
        assert held == [None]
        assert job.round.number > 1


def test_loss_of_the_leaders_node_ends_the_round_of_the_others():
    with Job("1:3") as job:
        nodes = job.start(3)
        leader = job.leader()
        rest = [node for node in nodes if node is not leader]
        leader.die()
        for node in rest:
            eventually(node.handler.num_nodes_waiting, lambda: "the others are to begin again")
            assert job.pool.submit(node.handler.peer_lost).result(PATIENCE_S) is True
        assert job.round.cause == "lost"
        in_round(rest)


@pytest.mark.parametrize(("end", "level"), [("lost", logging.INFO), ("done", logging.DEBUG), ("failed", logging.DEBUG)])
def test_next_leader_is_news_unless_the_job_ends(
    end: Literal["done", "failed", "lost"], level: int, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.DEBUG, logger="rdzv_plugins")
    with Job("1:3", linger=0.01) as job:
        nodes = job.start(3)
        if end == "done":
            for node in nodes:
                node.handler.note_done()
        job.leader().leave(Outcome(end, "says the test"))

        def levels() -> list[int]:
            return [each.levelno for each in caplog.records if "leads the rendezvous from round 1 on" in each.message]

        eventually(levels, lambda: "another leads")
        assert levels() == [level]


def test_over_is_heard_before_complete():
    """A node is lost when all have reached the store: the leader hears both at once, and says but the second."""
    with Job("1:2") as job:
        nodes = [job.node(), job.node()]
        doomed: list[Node] = []

        def lose_the_other(session: MemorySession) -> None:
            for node in nodes:
                key = f"members/{node.id}"
                eventually(lambda key=key: b'"reached":1' in (job.service.value(key) or b""), lambda: "it is reached")
            doomed.append(next(node for node in nodes if node.backend is not session.backend))
            doomed[0].die()
            session.flush()

        at_step(job, "reach", "after", lose_the_other)
        futures = {node.id: node.join() for node in nodes}
        eventually(lambda: doomed, lambda: "a node is lost")
        stays = next(node for node in nodes if node is not doomed[0])
        assert futures[stays.id].result(PATIENCE_S).world_size == 1
        rounds = [decode(Round, value) for key, value in job.service.history if key == "all/round" and value]
        assert [(each.number, each.state) for each in rounds] == [(1, "over"), (2, "complete")]


def test_end_of_a_round_is_written_before_the_places_of_the_next():
    """A service may split what the leader writes, and the leader be lost in between."""
    with Job("1") as job:
        (node,) = job.start(1)
        node.join().result(PATIENCE_S)
        over = next(n for n, (key, value) in enumerate(job.service.history) if key == "all/round" and b"over" in value)
        key, value = job.service.history[over + 1]
        assert (key, decode(Assignment, value).round) == (f"node/{node.id}", 2)


def test_node_that_comes_back_has_its_rank_again():
    with Job("3") as job:
        nodes = job.start(3)
        ranks = {node.id: decode(Assignment, job.service.value(f"node/{node.id}") or b"").rank for node in nodes}
        job.leader().backend.lose()
        eventually(lambda: all(node.handler.num_nodes_waiting() for node in nodes), lambda: "all are to begin again")
        infos = [future.result(PATIENCE_S) for future in [node.join() for node in nodes]]
        assert [info.rank for info in infos] == [ranks[node.id] for node in nodes]


def test_service_is_lost_for_good():
    with Job("2") as job:
        nodes = job.start(2)
        for node in nodes:
            node.die()
        for node in nodes:
            eventually(lambda: is_lost(node), lambda: "it is said")  # noqa: B023
