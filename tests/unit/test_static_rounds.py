"""What ``static`` nodes hear of each other: who leaves, who is missing, and who has a rank already."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest

from rdzv_plugins import Outcome, errors
from rdzv_plugins.assemble.create import create_handler, prepare
from rdzv_plugins.assemble.hosted_handler import HostedHandler
from rdzv_plugins.backends.static.arrivals import Arrival, Go, Missing, Over, parse_over, this_agent
from rdzv_plugins.backends.static.peers import Peers
from rdzv_plugins.backends.static.rounds import Rounds
from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.host import PluginHost
from rdzv_plugins.interfaces import Request
from rdzv_plugins.kvstore.native.server import StoreServer
from rdzv_plugins.kvstore.sockets.interruption import Interruption
from rdzv_plugins.kvstore.sockets.reach import reach
from rdzv_plugins.kvstore.tcpstore.greeting import greet_store
from rdzv_plugins.kvstore.tcpstore.plain_client import PlainClient
from rdzv_plugins.rounds import exit_barrier
from rdzv_plugins.rounds.job_record import JobRecord
from rdzv_plugins.runtime import SYSTEM
from rdzv_plugins.store import Prefixed
from rdzv_plugins.testing.agents.processes import wait_until
from rdzv_plugins.testing.harness import free_port

PATIENCE_S = 60.0
RUN = "rdzv_plugins.static.job"


class Job:
    """The nodes of a job, in this process."""

    def __init__(self, nodes: int) -> None:
        self.nodes, self.port = nodes, free_port()
        self.handlers: dict[int, HostedHandler] = {}
        self._host = PluginHost.load()
        self._pool = ThreadPoolExecutor(16)
        self._stack = ExitStack()

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        for rank in sorted(self.handlers, reverse=True):  # node rank 0 waits for the others
            self.handlers[rank].shutdown()
        self._stack.close()
        self._pool.shutdown()

    def node(self, rank: int, timeout: float = PATIENCE_S) -> HostedHandler:
        entry = self._host.catalog.find("static")
        given = MappingProxyType({"timeout": str(timeout), "linger": "2"})
        request = Request(
            "static", "job", f"127.0.0.1:{self.port}", self.nodes, self.nodes, 1, node_rank=rank, conf=given
        )
        return create_handler(self._host, entry, prepare(entry, request))

    def start(self, *ranks: int, timeout: float = PATIENCE_S) -> list[Future[Any]]:
        """Nodes that join; returns when they are in the round that is next."""
        for rank in ranks:
            if rank in self.handlers:
                self.handlers[rank].shutdown()
            self.handlers[rank] = self.node(rank, timeout)
        return self.join(*ranks)

    def join(self, *ranks: int) -> list[Future[Any]]:
        return [self._pool.submit(self.handlers[rank].next_rendezvous) for rank in ranks]

    def complete(self, timeout: float = PATIENCE_S) -> list[Any]:
        """All nodes, in a complete round."""
        return [each.result(PATIENCE_S) for each in self.start(*range(self.nodes), timeout=timeout)]

    def rounds(self) -> Rounds:
        """The keys of the job, read from outside."""
        return Rounds(Prefixed(RUN, self.store()))

    def store(self) -> PlainClient:
        return self._stack.enter_context(closing(client(self.port)))


def client(port: int) -> PlainClient:
    connection = reach(Endpoint("127.0.0.1", port), PATIENCE_S, "the store", greet_store)
    return PlainClient(connection, prefix="", timeout=PATIENCE_S, interruption=Interruption())


@pytest.fixture
def two() -> Iterator[Job]:
    with Job(2) as job:
        yield job


@pytest.fixture
def three() -> Iterator[Job]:
    with Job(3) as job:
        yield job


def failed(future: Future[Any]) -> errors.RdzvError:
    error = future.exception(PATIENCE_S)
    assert isinstance(error, errors.RdzvError), error
    return error


def told(handler: HostedHandler) -> None:
    """It is to stop its workers."""
    wait_until(lambda: handler.num_nodes_waiting() > 0, PATIENCE_S, lambda: "nobody has told it")


@pytest.mark.parametrize("first", ["says so before its workers stop", "only leaves"])
def test_a_node_that_leaves_as_lost_is_waited_for_by_name(three: Job, first: str) -> None:
    three.complete(timeout=3)
    gone, others = three.handlers[1], [three.handlers[0], three.handlers[2]]
    assert not any(each.peer_lost() for each in others)
    if first == "says so before its workers stop":
        gone.note_leaving("it got SIGTERM")
        assert all(each.peer_lost() for each in others), "their workers may fail from now on"
        assert not gone.peer_lost()
    gone.leave(Outcome("lost", "it got SIGTERM"))
    for each in others:
        told(each)
        assert each.must_rejoin()
        assert each.peer_lost(), "that uses up no restart"
        assert not each.is_closed(), "leaving is not closing"
    for error in map(failed, three.join(0, 2)):
        assert error.exit_code == 75, error
        assert "missing: node rank 1" in str(error)
        assert "it got SIGTERM" in str(error), error


def test_one_in_its_place_is_enough(two: Job) -> None:
    two.complete()
    two.handlers[1].leave(Outcome("lost", "it was preempted"))
    told(two.handlers[0])
    assert [each.result(PATIENCE_S).rank for each in [*two.join(0), *two.start(1)]] == [0, 1]
    assert not two.handlers[0].peer_lost()
    assert two.handlers[0].num_nodes_waiting() == 0


def test_a_node_that_was_done_takes_nobody_with_it(two: Job) -> None:
    two.complete()
    two.handlers[1].note_done()
    two.handlers[1].note_leaving("it got SIGTERM")
    two.handlers[1].leave(Outcome("lost", "it got SIGTERM"))
    assert two.rounds().over(1) is None
    assert not two.handlers[0].peer_lost()


def test_a_node_that_leaves_before_the_round_is_complete_is_missing_again(three: Job) -> None:
    joining = three.start(0, 1)
    rounds = three.rounds()
    wait_until(lambda: rounds.published_missing(1) == Missing((2,)), PATIENCE_S, lambda: "node rank 0 says nothing")
    three.handlers[1].leave(Outcome("lost", "it got SIGTERM"))
    wait_until(lambda: rounds.published_missing(1) == Missing((2,), left=(1,)), PATIENCE_S, lambda: "its arrival stays")
    joining = [joining[0], *three.start(1, 2)]
    assert [each.result(PATIENCE_S).rank for each in joining] == [0, 1, 2]
    assert rounds.over(1) is None


def test_the_second_of_one_rank_is_refused_and_the_first_stays(three: Job) -> None:
    joining = three.start(0, 1)
    rounds = three.rounds()
    wait_until(lambda: rounds.published_missing(1) == Missing((2,)), PATIENCE_S, lambda: "node rank 0 says nothing")
    second = three.node(1)
    with pytest.raises(errors.SettingsDiffer, match=f"node rank 1 is .*pid {os.getpid()}"):
        second.next_rendezvous()
    second.shutdown()
    assert "was refused" in rounds.refused(1)
    assert [each.result(PATIENCE_S).rank for each in [*joining, *three.start(2)]] == [0, 1, 2]


def test_the_second_of_a_rank_that_is_at_work_disturbs_nobody(two: Job) -> None:
    two.complete()
    second = two.node(1)
    with pytest.raises(errors.SettingsDiffer, match="node rank 1 is "):
        second.next_rendezvous()
    second.shutdown()
    assert two.rounds().over(1) is None
    assert [each.num_nodes_waiting() for each in two.handlers.values()] == [0, 0]


def test_the_second_does_not_get_ahead_of_the_first_between_two_rounds(two: Job) -> None:
    two.complete()
    two.rounds().open(2, "somebody")
    for each in two.handlers.values():
        told(each)
    second = two.node(1)
    with pytest.raises(errors.SettingsDiffer, match="node rank 1 is "):
        second.next_rendezvous()
    second.shutdown()
    assert [each.result(PATIENCE_S).rank for each in two.join(0, 1)] == [0, 1]


def test_the_second_node_rank_0_is_told_by_the_first(two: Job) -> None:
    two.complete()
    second = two.node(0)
    with pytest.raises(errors.SettingsDiffer, match=f"node rank 0 is .*pid {os.getpid()}.*127.0.0.1:{two.port}"):
        second.next_rendezvous()
    second.shutdown()
    assert [each.num_nodes_waiting() for each in two.handlers.values()] == [0, 0]


@pytest.mark.parametrize("how", ["it has never answered", "its process has ended"])
def test_one_that_is_gone_is_replaced(three: Job, how: str) -> None:
    joining = three.start(0)
    rounds = three.rounds()
    wait_until(lambda: rounds.published_missing(1) == Missing((1, 2)), PATIENCE_S, lambda: "node rank 0 says nothing")
    holder = Arrival("x", "another", 7)
    if how == "its process has ended":
        child = os.fork()
        if child == 0:
            os._exit(0)
        holder = ended(child)
        wait_until(holder.has_ended, PATIENCE_S, lambda: "it lives")  # though nobody has waited for it
        os.waitpid(child, 0)
        rounds.store.set("presence/alive/x", "0")  # it would be asked, and waited for
    assert holder.has_ended() == (how == "its process has ended")
    assert rounds.arrive(1, 1, holder) is None
    joining += three.start(1)
    wait_until(lambda: rounds.holder(1, 1) not in (None, holder), PATIENCE_S, lambda: "it is not replaced")
    assert [each.result(PATIENCE_S).rank for each in [*joining, *three.start(2)]] == [0, 1, 2]


def ended(pid: int) -> Arrival:
    return Arrival("x", "here", pid, this_agent().machine)


def test_who_leaves_just_when_a_round_is_complete_ends_it() -> None:
    """Either node rank 0 sees that it has gone, or it sees that the round is complete."""
    with StoreServer("127.0.0.1") as server, closing(client(server.port)) as store:
        rounds = Rounds(Prefixed("r", store))
        me = this_agent()
        lost = Over("node rank 1", "it got SIGTERM", me.incarnation)
        rounds.arrive(1, 0, Arrival("zero", "h", 1))
        rounds.arrive(1, 1, me)
        assert rounds.wait_arrivals(1, 2, PATIENCE_S) is not None
        rounds.settle(1, Go(("zero", me.incarnation)))
        rounds.withdraw(1, 1, lost)
        assert rounds.over(1) == lost
        assert rounds.missing(1, 2) == Missing((), left=(1,))
        rounds.arrive(2, 1, me)
        rounds.withdraw(2, 1, lost)
        assert rounds.over(2) is None
        assert rounds.arrive(2, 1, Arrival("new", "h", 2)) is None, "its place is free"
        rounds.withdraw(2, 1, lost)
        assert rounds.missing(2, 2) == Missing((0,)), "another one's arrival stays"


@pytest.mark.parametrize("text", [b"node rank 1 (h (pid 7))", b"\xff{", b"[]", b'{"by": "x"}'])
def test_why_a_round_is_over_is_read_whatever_is_written(text: bytes) -> None:
    assert parse_over(text).lost == ""
    assert str(parse_over(text)).endswith("has asked for a new round")


class Counted:
    """A client that counts its requests."""

    def __init__(self, inner: PlainClient) -> None:
        self.inner, self.requests = inner, 0

    def __getattr__(self, name: str) -> Any:
        self.requests += 1
        return getattr(self.inner, name)


NODES = (4, 300)


def costs(cost: Callable[[PlainClient, Counted, int], None], nodes: int) -> int:
    with StoreServer("127.0.0.1") as server, closing(client(server.port)) as one, closing(client(server.port)) as other:
        counted = Counted(other)
        cost(one, counted, nodes)
        return counted.requests


def test_asking_who_is_missing_costs_the_same_however_many_there_are() -> None:
    def report(leads: PlainClient, asks: Counted, nodes: int) -> None:
        of_rank_0 = Rounds(leads)
        of_rank_0.publish_missing(1, of_rank_0.missing(1, nodes))
        assert Rounds(asks).published_missing(1) == Missing(tuple(range(nodes)))  # type: ignore[arg-type]

    assert [costs(report, nodes) for nodes in NODES] == [2, 2]


def test_asking_who_still_works_costs_the_same_however_many_there_are() -> None:
    def look(one: PlainClient, counted: Counted, nodes: int) -> None:
        done = [0, 1]
        host, port = one._connection.getpeername()[:2]

        def peers(store: Any, rank: int) -> Peers:
            control: Any = SimpleNamespace(client=store, host=host, port=port)
            return Peers(control, "r", JobRecord(store), f"agent-{rank}", rank, lambda error: None, SYSTEM)

        def who(ranks: Any) -> dict[int, Arrival]:
            return {rank: Arrival(f"agent-{rank}", "h", rank) for rank in ranks}

        for rank in done:
            one.set(exit_barrier.node_key(rank), "")
            one.add(exit_barrier.ARRIVALS, 1)
        with ExitStack() as stack:
            nodes_ = {rank: peers(one, rank) for rank in (0, nodes - 1)} | {1: peers(counted, 1)}
            for each in nodes_.values():
                stack.callback(each.close)
            nodes_[1].working(counted, 1, nodes, who)  # type: ignore[arg-type]
            before = counted.requests
            for _ in range(3):  # of the two who ask, the first looks
                assert nodes_[0].working(one, 1, nodes, who) == [f"node rank {nodes - 1} on h (pid {nodes - 1})"]
                assert len(nodes_[1].working(counted, 1, nodes, who)) == 1  # type: ignore[arg-type]
            counted.requests -= before

    few, many = (costs(look, nodes) for nodes in NODES)
    assert few == many
    assert few <= 3 * 10
