"""Elastic nodes that meet, wait, lose each other and leave: ``ElasticHandler`` on a service in memory."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import wait

import pytest
from kits.eventually import eventually
from kits.unit.elastic_nodes import PATIENCE_S, Job, asked_at_rest, done, in_round

from rdzv_plugins import errors
from rdzv_plugins.interfaces import Failure, Outcome

REQUESTS_PER_NODE = 8
"""Two watches, the settings, leading, joining, having reached the store, and two to spare for rank 0 and its table."""
REQUESTS_OF_LEADER = 16


def test_two_nodes_meet_in_one_store():
    with Job("2") as job:
        nodes = [job.node(), job.node()]
        infos = in_round(nodes)
        infos[0].store.set("from", "rank")
        assert infos[1].store.get("from") == b"rank"
        assert [node.handler.num_nodes_waiting() for node in nodes] == [0, 0]


def test_store_of_a_later_round_is_empty():
    with Job("2") as job:
        nodes = job.start(2)
        old = in_round(nodes)[0]
        old.store.set("stale", "1")
        assert not in_round(nodes)[0].store.check(["stale"])


def test_latecomer_is_a_spare_and_enters_when_there_is_room():
    with Job("2") as job:
        first, second = job.start(2)
        third = job.node()
        spare = third.join()
        eventually(third.has_joined, lambda: "the spare has joined")
        assert first.handler.num_nodes_waiting() == 0
        second.die()
        eventually(first.handler.num_nodes_waiting, lambda: "the first hears that the second is lost")
        assert {first.join().result(PATIENCE_S).rank, spare.result(PATIENCE_S).rank} == {0, 1}
        assert job.round.number == 2


def test_newcomer_enters_where_there_is_room():
    with Job("1:2", last_call_timeout=0) as job:
        (first,) = job.start(1)
        newcomer = job.node()
        joined = newcomer.join()
        eventually(first.handler.num_nodes_waiting, lambda: "the first hears of the newcomer")
        assert first.join().result(PATIENCE_S).world_size == joined.result(PATIENCE_S).world_size == 2


def test_spare_goes_home_when_a_node_is_done():
    with Job("2") as job:
        first, second = job.start(2)
        third = job.node()
        spare = third.join()
        eventually(lambda: third.handler._joining.is_spare, lambda: "it knows that it is a spare")
        for node in (first, second):
            node.handler.note_done()
        leaving = [job.pool.submit(node.leave, done()) for node in (first, second)]
        with pytest.raises(errors.SpareReleased, match=r"is done without this node, which was a spare"):
            spare.result(PATIENCE_S)
        third.handler.shutdown()
        wait(leaving, PATIENCE_S)
        assert job.round.state == "complete"


def test_who_comes_when_the_job_is_about_to_end_has_come_too_late():
    with Job("2") as job:
        first, second = job.start(2)
        for node in (first, second):
            node.handler.note_done()
        job.pool.submit(first.leave, done()).result(PATIENCE_S)
        late = job.node()
        with pytest.raises(errors.NotNeeded, match=r"is about to end .*come too late to take part"):
            late.join().result(PATIENCE_S)


@pytest.mark.parametrize("size", [4, 16, 64])
def test_requests_per_node_are_the_same_for_any_number_of_nodes(size: int, monkeypatch):
    """I3. Nobody asks for anything while a round lasts."""
    # neither a standstill nor a slow start makes anybody ask
    monkeypatch.setattr("rdzv_plugins.elastic.leading.leader._PROGRESS_S", PATIENCE_S)
    with Job(str(size), ttl=PATIENCE_S) as job:
        nodes = job.start(size)
        leader = job.leader()
        asked = asked_at_rest(nodes)
        assert max(count for id_, count in asked.items() if id_ != leader.id) <= REQUESTS_PER_NODE
        assert asked[leader.id] <= REQUESTS_OF_LEADER
        for _ in range(100):
            assert [node.handler.num_nodes_waiting() for node in nodes] == [0] * size
        assert {node.id: node.asked for node in nodes} == asked
        in_round(nodes)  # a later round: to join it, and to have reached its store
        assert max(node.asked - asked[node.id] for node in nodes if node is not leader) <= 4


@pytest.mark.parametrize(
    ("differs", "flag"),
    [
        ({"max_nodes": 3}, "--nnodes: here 2:3, there 2"),
        ({"options": {"store": "torch"}}, "--rdzv-conf store: here torch"),
    ],
)
def test_settings_that_differ_are_named_with_whose_they_are(differs, flag):
    with Job("2") as job:
        nodes = job.start(2)
        with pytest.raises(errors.SettingsDiffer, match="first node of the job at here:1") as raised:
            job.node(**differs).handler.next_rendezvous()
        assert flag in str(raised.value)
        assert f"than {nodes[0].handler._self.me.host} (pid " in str(raised.value)
        assert nodes[0].handler.num_nodes_waiting() == 0


def test_same_given_rank_is_refused_by_name():
    with Job("2", ttl=0.5) as job:
        kept, refused = job.node(node_rank=0), job.node(node_rank=0)
        first = kept.join()
        eventually(kept.has_joined, lambda: "the first has joined")
        with pytest.raises(errors.SettingsDiffer, match=r"node rank 0 is that of .*node rank 0, pid"):
            refused.handler.next_rendezvous()
        refused.handler.shutdown()
        other = job.node(node_rank=1).join()
        assert (first.result(PATIENCE_S).rank, other.result(PATIENCE_S).rank) == (0, 1)


def test_time_out_names_the_missing_ranks(monkeypatch):
    monkeypatch.setattr("rdzv_plugins.elastic.leading.leader._PROGRESS_S", 0.01)  # long before the time is up
    with Job("3", timeout=3) as job:
        missing = r"1 of 3 nodes have joined .*missing: node rank 0, 2"
        with pytest.raises(errors.RendezvousTimeout, match=missing) as raised:
            job.node(node_rank=1).handler.next_rendezvous()
        assert isinstance(raised.value, errors.RendezvousTimeout)


def test_failed_worker_without_a_lost_node_is_its_own_fault():
    with Job("3") as job:
        nodes = job.start(3)
        assert job.pool.submit(nodes[1].handler.peer_lost).result(PATIENCE_S) is False
        assert [node.handler.num_nodes_waiting() for node in nodes] == [0] * 3


def test_worker_that_fails_because_a_node_was_lost():
    with Job("2:3") as job:
        nodes = job.start(3)
        asks = job.pool.submit(nodes[1].handler.peer_lost)
        nodes[2].die()
        asks.result(PATIENCE_S)  # either: the probe may have been answered before
        eventually(nodes[1].handler.must_rejoin, lambda: "the loss is known")
        assert nodes[1].handler.peer_lost() is True


def test_worker_that_fails_because_another_node_restarts():
    with Job("2") as job:
        first, second = job.start(2)
        again = first.join()
        eventually(second.handler.must_rejoin, lambda: "the other hears of it")
        assert second.handler.peer_lost() is False
        assert {second.join().result(PATIENCE_S).rank, again.result(PATIENCE_S).rank} == {0, 1}


def test_node_that_says_why_it_leaves_is_quoted(caplog):
    with Job("1:2") as job, caplog.at_level(logging.INFO):
        first, second = job.start(2)
        second.handler.note_leaving("it was preempted")
        eventually(first.handler.num_nodes_waiting, lambda: "the first hears of it")
        assert "was lost: it was preempted" in job.round.reason
        eventually(lambda: "it was preempted" in caplog.text, lambda: "it is logged")


def test_leader_that_leaves_says_why_though_it_decides_late(monkeypatch):
    monkeypatch.setattr("rdzv_plugins.elastic.leaving._BEFORE_WORKERS_S", PATIENCE_S)
    with Job("1:2") as job:
        nodes = job.start(2)
        leader = job.leader()
        (other,) = (node for node in nodes if node is not leader)
        decides, may_decide = threading.Event(), threading.Event()

        def hold(_: object) -> None:
            decides.set()
            may_decide.wait(PATIENCE_S)

        job.service.on("put", "all/round", "before", hold)
        left = job.pool.submit(leader.leave, Outcome("lost", "it got SIGTERM"))
        assert decides.wait(PATIENCE_S)
        wait([left], 0.5)
        may_decide.set()
        left.result(PATIENCE_S)
        eventually(other.handler.must_rejoin, lambda: "the other hears of it")
        assert job.round.reason.endswith("was lost: it got SIGTERM")


def test_failed_ends_the_job_on_all_nodes_with_its_cause():
    with Job("2") as job:
        first, second = job.start(2)
        failure = Failure(1, "h", 3, 0, 7, 9)
        second.handler.note_failure(failure)
        second.handler.leave(Outcome("failed", "a worker failed", failure))
        eventually(first.handler.is_closed, lambda: "the first hears of it")
        with pytest.raises(errors.PeerFailed, match="a worker failed"):
            first.handler.raise_if_ended()
        assert first.handler.first_failure() == failure


def test_who_serves_the_others_leaves_last():
    with Job("2", linger=PATIENCE_S) as job:
        nodes = [job.node(hosts_service=True), job.node()]
        in_round(nodes)
        last = job.pool.submit(nodes[0].handler.leave, done())
        key = f"members/{nodes[0].id}"
        eventually(lambda: b'"leaving":"done"' in (job.service.value(key) or b""), lambda: "it wants to go")
        assert not last.done()
        nodes[1].leave(done())
        last.result(PATIENCE_S)


def test_others_go_on_without_a_node_that_does_not_join_again(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.WARNING, "rdzv_plugins")
    with Job("2:3", rejoin_timeout=6) as job:
        first, second, late = job.start(3)
        infos = [future.result(PATIENCE_S) for future in (first.join(), second.join())]
        assert {info.world_size for info in infos} == {2}
        assert "is left out for now: it has not joined again after round 1 for 6 s" in caplog.text
        eventually(late.handler.must_rejoin, lambda: "the late one knows that its round is over")
        comes = late.join()
        for node in (first, second):
            eventually(node.handler.must_rejoin, lambda: "it has come, and can reach the store")
        again = [node.join() for node in (first, second)]
        assert {future.result(PATIENCE_S).world_size for future in (comes, *again)} == {3}


def test_job_goes_on_though_somebody_writes_nonsense():
    """Row of a member that cannot be: it is not waited for, and nobody is harmed."""
    with Job("2:3", last_call_timeout=1) as job:
        first, second = job.node(), job.node()
        futures = [first.join()]
        eventually(first.has_joined, lambda: "the first has joined")
        session = first.handler._link.session
        for number, record in enumerate(
            [
                b'{"node_id":"x0","host":"h","machine":"m","pid":1,"address":"a","public":"a","nproc":1,"node_rank":-5}',
                b'{"node_id":"x1","host":"h","machine":"m","pid":1,"address":"a","public":"a","nproc":1,"node_rank":77}',
                b"[]",
                b"\xff",
            ]
        ):
            session.put({f"members/x{number}": record}, timeout=PATIENCE_S)
        futures.append(second.join())
        assert {future.result(PATIENCE_S).world_size for future in futures} == {2}


def test_those_who_wait_hear_of_a_node_that_was_refused(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.WARNING, "rdzv_plugins")
    with Job("2") as job:
        first = job.node()
        first.join()
        eventually(first.has_joined, lambda: "the first has joined")
        with pytest.raises(errors.SettingsDiffer, match=r"this node .* --nnodes: here 2:3, there 2"):
            job.node(max_nodes=3).handler.next_rendezvous()
        told = "has come and was refused: "
        eventually(lambda: told in caplog.text, lambda: "the first says so")
        assert "--nnodes: there 2:3, here 2" in caplog.text
        assert caplog.text.count(told) == 1, "the refused node has its error"
        first.handler.set_closed()  # else the end would wait for its time-out


def test_round_begins_though_the_service_does_not_say_who_is_in_it(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO)
    with Job("2") as job:
        asked = []

        def silent(session: object) -> None:
            asked.append(session)
            raise TimeoutError("no answer")

        job.service.on("list", "node/", "before", silent)
        in_round([job.node(), job.node()])
        assert asked
    assert "round 1, 2 nodes (who they are cannot be asked now: no answer)" in caplog.text
