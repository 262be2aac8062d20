"""Several endpoints: which of them a node goes to, by what it sees; and what is refused."""

from __future__ import annotations

import itertools
import queue
import socket
import struct
from collections.abc import Callable
from contextlib import ExitStack, closing
from types import SimpleNamespace
from typing import Any

import pytest
from kits.eventually import eventually
from msgspec.structs import replace

from rdzv_plugins import Backend
from rdzv_plugins.clock import now
from rdzv_plugins.coordination import Event
from rdzv_plugins.elastic import endpoint_monitor, failover
from rdzv_plugins.elastic.current_round import CurrentRound, NodeContext
from rdzv_plugins.elastic.endpoint_monitor import EndpointMonitor
from rdzv_plugins.elastic.failover import EpochVotes, FailoverBackend
from rdzv_plugins.elastic.failover_rules import (
    EndpointStatus,
    better_endpoint,
    read_init_claim,
    select_endpoint,
    write_init_claim,
)
from rdzv_plugins.elastic.join import MemberJoin
from rdzv_plugins.elastic.keys import INIT_CLAIM, PLACE_ID, ROUND, Assignment, Member, Round, encode, vote_of
from rdzv_plugins.elastic.liveness_probe import ProbePort
from rdzv_plugins.elastic.node_session import Registration
from rdzv_plugins.elastic.options import ElasticOptions, EndpointOptions, meeting_endpoints, validate_endpoint
from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.errors import (
    ConnectionLost,
    RunIdMismatch,
    SettingsDiffer,
    UsageError,
)
from rdzv_plugins.interfaces import Request
from rdzv_plugins.kvstore.coordination.sessions import NativeCoordination
from rdzv_plugins.kvstore.native.server import StoreServer
from rdzv_plugins.kvstore.sockets import reach
from rdzv_plugins.registry import PluginHost, PluginRecord
from rdzv_plugins.registry.catalog import Entry
from rdzv_plugins.registry.create import create_rendezvous
from rdzv_plugins.runtime import SYSTEM
from rdzv_plugins.testing.harness import free_port

TTL_S = 60.0
"""No session ends because its node, or the server, did not get to run for a while."""
THERE, REFUSED, SILENT = EndpointStatus(answers=True), EndpointStatus(refused=True), EndpointStatus()


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each place is seen as it is, and the first one is taken, however late the threads that look get to run."""
    for limit in ("_DIAL_S", "_OPEN_S", "_ASK_S"):
        monkeypatch.setattr(endpoint_monitor, limit, 60.0)
    for limit in ("_SETTLE_S", "_JOIN_S"):
        monkeypatch.setattr(failover, limit, 60.0)


def claimed_at(place: int) -> EndpointStatus:
    return EndpointStatus(answers=True, claimed_at=place)


@pytest.mark.parametrize(
    ("statuses", "knows", "step", "place"),
    [
        ([THERE, THERE, THERE], False, "claim", 0),
        ([REFUSED, THERE, THERE], False, "claim", 1),
        ([SILENT, THERE, THERE], False, "wait", 0),  # it may serve the job, cut off from here
        ([THERE, REFUSED, REFUSED], False, "wait", -1),  # who answers is not more than half
        ([THERE, THERE, REFUSED, REFUSED], False, "wait", -1),
        ([claimed_at(1), claimed_at(1), THERE], False, "join", 1),
        ([claimed_at(0), claimed_at(1), claimed_at(1)], False, "join", 1),  # two have begun at once
        ([claimed_at(1), SILENT, claimed_at(1)], False, "wait", 1),
        ([claimed_at(1), THERE, SILENT], False, "claim", 1),  # what one has begun is carried on
        ([SILENT, EndpointStatus(answers=True, initialized=True), THERE], False, "join", 1),
        ([THERE, EndpointStatus(answers=True, round=2), EndpointStatus(answers=True, round=3)], False, "join", 2),
        ([SILENT, SILENT, SILENT], True, "wait", -1),
        ([SILENT, THERE, THERE], True, "join", 1),
        ([SILENT, THERE, EndpointStatus(answers=True, members=2)], True, "join", 2),
        ([SILENT, SILENT, EndpointStatus(answers=True, initialized=True)], True, "join", 2),
    ],
)
def test_place_to_join(statuses: list[EndpointStatus], knows: bool, step: str, place: int):
    choice = select_endpoint(statuses, knows=knows)
    assert (choice.step, choice.place) == (step, place), choice
    assert bool(choice.why) == (step != "join")


def test_first_round_is_begun_at_one_place_whatever_two_nodes_see():
    """More than half remember one place: whoever else sees more than half is led there, or waits."""
    for remembered in itertools.product((-1, 0, 1, 2), repeat=3):
        seen = {
            select_endpoint(
                [claimed_at(at) if here else SILENT for at, here in zip(remembered, answers, strict=True)], knows=False
            )
            for answers in itertools.product((True, False), repeat=3)
        }
        assert len({choice.place for choice in seen if choice.step == "join"}) < 2, remembered


def test_a_place_is_left_for_a_newer_round_that_works_or_for_more_nodes():
    works = EndpointStatus(answers=True, round=2, works=True, members=2)
    assert better_endpoint([EndpointStatus(answers=True, round=1, works=True, members=3), works, THERE], 0) == 1
    assert better_endpoint([works, EndpointStatus(answers=True, round=2, works=True, members=9), THERE], 0) is None
    assert better_endpoint([works, EndpointStatus(answers=True, round=3, members=9), THERE], 0) is None, (
        "it works nowhere else"
    )
    over = EndpointStatus(answers=True, round=1, members=1)
    assert better_endpoint([over, EndpointStatus(answers=True, round=1, members=2), THERE], 0) == 1
    assert better_endpoint([over, EndpointStatus(answers=True, round=1, members=1), THERE], 0) is None
    assert better_endpoint([SILENT, works, works], 0) is None, "what is not seen may be newer"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a:1, b,[::1]:3", (Endpoint("a", 1), Endpoint("b", 29500), Endpoint("::1", 3))),
        ("a:1", Endpoint("a", 1)),
        ("a,a:29500", "a:29500 is given twice"),
        (",".join(f"a:{port}" for port in range(1, 9)), "at most 7"),
        ("a:0,b:1", "port 0 of a"),
        ("a:1,,b:1", "no valid host name"),
    ],
)
def test_lists_of_places(text: str, found: object):
    request = Request("parallel", "r", text, min_nodes=3, max_nodes=3, nproc_per_node=1)
    if not isinstance(found, str):
        assert meeting_endpoints(request) == found
        return
    with pytest.raises(UsageError, match=found):
        meeting_endpoints(request)


def test_a_node_does_not_say_that_it_serves_all_places():
    options = EndpointOptions(is_host=True)
    with pytest.raises(UsageError, match="is_host=true"):
        validate_endpoint(Request("parallel", "r", "a,b", min_nodes=2, max_nodes=2, nproc_per_node=1, options=options))


class Host:
    """The service of a place of which the test says what its host answers."""

    def __init__(self, closing: ExitStack) -> None:
        self._closing = closing
        self._listener = closing.enter_context(socket.create_server(("127.0.0.1", 0)))
        self.endpoint = Endpoint("127.0.0.1", self._listener.getsockname()[1])
        self.answers: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.held: list[socket.socket] = []
        self.tell: dict[str, Callable[[Any], None]] = {}
        """Who watches it, by prefix."""

    def look(self, timeout: float) -> tuple[socket.socket | None, str]:
        how = self.answers.get(timeout=60)
        if how == "accepts":
            connection = socket.create_connection((self.endpoint.host, self.endpoint.port))
            self.held.append(self._closing.enter_context(self._listener.accept()[0]))
            return connection, ""
        if how == "closes, then refuses":
            self.held[0].close()
        return None, "no answer" if how == "is silent" else reach.REFUSED

    def open_session(self, ttl: float, *, on_lost: Callable[[ConnectionLost], None], timeout: float) -> Any:
        watch = lambda prefix, told, **_: self.tell.update({prefix: told})  # noqa: E731
        return SimpleNamespace(list=lambda *_, **__: ([], 0), watch=watch, close=lambda: None)


@pytest.mark.parametrize(
    ("ends", "answers", "gone"),
    [
        ("in order", "refuses", True),
        ("in order", "is silent", False),  # cut off
        ("in order", "is silent; refuses", True),
        ("in order", "accepts", False),  # it was begun again
        ("by a reset", "refuses; refuses", False),  # a firewall that resets everything; the process lives
        ("not at all", "refuses; refuses", False),  # one that refuses what is new
        ("not at all", "closes, then refuses", False),  # the process may have closed it, and a firewall refuses
        ("not at all", "closes, then refuses; refuses", True),
        ("not at all", "accepts; refuses", False),  # the newest one counts
    ],
)
def test_what_proves_that_the_process_that_serves_a_place_has_ended(ends: str, answers: str, gone: bool):
    with ExitStack() as steps:
        host = Host(steps)
        host.answers.put("accepts")
        looked: queue.SimpleQueue[EndpointStatus] = queue.SimpleQueue()
        looking = EndpointMonitor(
            host.endpoint,
            host,  # type: ignore[arg-type]
            TTL_S,
            lambda: looking.status.tried and looked.put(looking.status),
            [str(host.endpoint)],
            SYSTEM,
        )
        steps.callback(host.answers.put, "refuses")
        steps.callback(looking.close)
        eventually(lambda: looking.status.answers)
        assert looking.is_witnessed()
        if ends == "by a reset":
            host.held[0].setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if ends != "not at all":
            host.held[0].close()
        eventually(lambda: looking.is_witnessed() == (ends == "not at all"))
        for each in answers.split("; "):
            if looking.status.answers:
                looking.recheck()
            host.answers.put(each)
            if each == "accepts":
                eventually(lambda: looking.status.answers)
            else:
                assert not looked.get(timeout=60).answers
        assert looking.status.gone is gone


def test_what_changes_at_a_place_is_told_at_once():
    with ExitStack() as steps:
        host, seen = Host(steps), queue.SimpleQueue[int]()
        host.answers.put("accepts")
        service: Any = host
        told = lambda: seen.put(looking.status.round)  # noqa: E731
        looking = EndpointMonitor(host.endpoint, service, TTL_S, told, [str(host.endpoint)], SYSTEM)
        steps.callback(host.answers.put, "refuses")
        steps.callback(looking.close)
        eventually(lambda: looking.status.answers and ROUND in host.tell)
        host.tell[ROUND]([Event(ROUND, encode(Round(5, "over", 2)), 1)])
        while seen.get(timeout=60) != 5:
            pass


def test_first_round_is_remembered_and_marked_and_other_runs_and_lists_are_refused():
    """By a node whose places are known as such behind the border to plug-ins."""
    with ExitStack() as stack:
        servers = [stack.enter_context(StoreServer("127.0.0.1", free_port(), run="r")) for _ in range(3)]
        endpoints = tuple(Endpoint("127.0.0.1", server.port) for server in servers)

        def service(endpoint: Endpoint, run: str = "r") -> NativeCoordination:
            return NativeCoordination(endpoint, run, name="parallel", who="the node that serves")

        def places(*at: Endpoint, run: str = "r") -> FailoverBackend:
            services = [service(each, run) for each in at]
            return stack.enter_context(closing(FailoverBackend(at, services, None, TTL_S, SYSTEM)))

        def joined(places: FailoverBackend | NativeCoordination) -> Any:
            return places.open_session(TTL_S, on_lost=lambda _: None, timeout=20)

        one = places(*endpoints)
        entry = Entry(Backend(name="toy", summary="", create=lambda _: one), PluginRecord("toy", "toy", "toy", "1"))
        request = Request("toy", "r", str(one), 1, 1, 1, options=ElasticOptions(ttl=TTL_S), target=endpoints)
        rendezvous = create_rendezvous(PluginHost([]), entry, request)
        stack.callback(rendezvous.shutdown)
        rendezvous.next_rendezvous()
        first, last = (joined(stack.enter_context(closing(service(endpoints[at])))) for at in (0, 2))
        assert first.list(PLACE_ID, timeout=20)[0], "its leader marks the rounds that are begun at a place"
        held, _ = last.list(INIT_CLAIM, timeout=20)
        assert [read_init_claim(kv.value, [str(each) for each in endpoints]) for kv in held] == [(0, "")]
        with pytest.raises(RunIdMismatch, match="serves run 'r', and this node belongs to run 'another'"):
            joined(places(*endpoints, run="another"))
        other = places(endpoints[1], endpoints[0], endpoints[2])
        with pytest.raises(SettingsDiffer, match=f"--rdzv-endpoint: here {other}, there {one}"):
            joined(other)
        assert other.at is None


@pytest.mark.parametrize(
    "said",
    [
        write_init_claim(1, "bac"),
        write_init_claim(4, "abcde"),
        "7",
        "1e999",
        "[[",
        '{"at": "z", "of": "a,b,c"}',
        '{"of": 1}',
        "\xff",
    ],
)
def test_first_round_of_another_list_is_none_of_this_one(said: str):
    at, others = read_init_claim(said.encode("latin-1"), "abc")
    assert at == -1
    assert others
    assert read_init_claim(write_init_claim(1, "abc").encode(), "abc") == (1, "")


class Carried:
    """What a node that has reached these rounds carries, its way into a round, and what it is told and says."""

    def __init__(self, *rounds: Assignment) -> None:
        self.said: list[dict[str, Any]] = []
        self.session: Any = SimpleNamespace(ttl=5.0, put=lambda items, **_: self.said.append(items))
        self.places = SimpleNamespace(at=0, left_gone=False, note_complete=lambda: None)
        votes = tuple(vote_of(place, complete=False) for place in rounds)
        member = Member("a", "a", "a", 1, "10.0.0.1", "", 1, votes=votes)
        self.told: Any = SimpleNamespace(
            version=0, round=Round(), leader=object(), newest=0, list=lambda *_, **__: ([], 0)
        )
        request = Request("parallel", "r", "a,b", min_nodes=1, max_nodes=5, nproc_per_node=1)
        backend: Any = SimpleNamespace(name="parallel")
        heard: Any = dict.fromkeys(("on_outage", "on_open", "on_lost"), lambda *_: None)
        self.registration = registration = Registration(
            backend, member, request, ElasticOptions(), self.told, SYSTEM, several=None, **heard
        )
        registration.session = self.session
        self.votes = EpochVotes(self.places, registration, ProbePort(None, SYSTEM))  # type: ignore[arg-type]
        self.votes.settled()
        self.own = CurrentRound(self.told, registration, 5.0, SYSTEM)
        store: Any = SimpleNamespace(patience=5.0, close=lambda _: None, attempt=None)
        ours: Any = self.own, store, ProbePort(None, SYSTEM), None, SYSTEM, self.votes
        node = NodeContext(request, ElasticOptions(), self.told, registration, *ours)
        self.joining = MemberJoin(node, None)  # type: ignore[arg-type]

    @property
    def me(self) -> Member:
        return self.registration.me

    def hears(self, declared: Round) -> Assignment | None:
        """Of its place in round 6, which it has reached, and of the round that was declared. Returns where it is."""
        self.told.assignment, self.told.round = PLACE, declared
        self.registration.update(store_ready_round=6)
        return self.joining._step(self.told)

    def carried(self) -> list[tuple[int, bool]]:
        return [(vote.round, vote.complete) for vote in self.me.votes]


PLACE = Assignment(6, 0, 3, "a", master_addr="10.0.0.2", master_port=4000, epoch="here")
COMPLETE = Round(6, "complete", 3, master_addr="10.0.0.2", master_port=4000, epoch="here", server_rank=2)


@pytest.mark.parametrize(
    "other",
    [
        {"master_port": 4001},
        {"master_addr": "10.0.0.3"},
        {"epoch": "there"},
        {"state": "over", "reason": "another one"},
    ],
)
def test_round_was_complete_only_if_that_one_was_declared(other: dict[str, Any]):
    before = Assignment(5, 0, 5, "a", master_addr="10.0.0.2", master_port=4000, epoch="once")
    job = Carried(before, PLACE)
    assert job.hears(replace(COMPLETE, **other)) != PLACE
    assert job.carried() == [(5, False), (6, False)], "undecided ones bind"
    assert job.own.number == (6 if "state" in other else 0)
    job = Carried(before, PLACE)
    assert (job.hears(COMPLETE), job.carried(), job.own.number) == (PLACE, [(6, True)], 6)


def test_node_that_has_reached_another_round_since_does_not_go_on_in_the_one_before():
    """It has come back before anybody has heard that it went; the other one may have been complete."""
    since = Assignment(7, 1, 2, "a", master_addr="10.0.0.3", master_port=4000, epoch="there")
    job = Carried(PLACE, since)
    assert job.hears(COMPLETE) is None
    assert (job.carried(), job.me.last_round) == ([(6, True), (7, False)], 6)
    assert len(job.said) == 1, "the others are told that it does not"


@pytest.mark.parametrize("leaving", ["", "done", "lost"])
def test_who_was_leaving_says_nothing_at_another_place(leaving: str):
    """Where it has said so its voice counts: it is not to count at two."""
    job = Carried(PLACE)
    job.registration.publish_within(5.0, leaving=leaving, store=(6, "10.0.0.2", 4000))
    assert len(job.said) == 1
    job.places.at = 1
    job.votes.settled()
    job.registration.publish(address="10.0.0.9", known_round=6)
    job.registration.publish_within(5.0, leaving="lost")
    assert len(job.said) == (1 if leaving else 3)
    assert job.me.store is None, "a round of that number is another one here"


@pytest.mark.parametrize("proved", [False, True])
def test_who_moves_says_which_node_served_what_it_has_left(proved: bool):
    job = Carried(PLACE)
    job.votes.complete(PLACE, COMPLETE)
    job.votes.settled()
    assert (job.me.server_rank, job.me.gone_server_rank) == (-1, -1)
    job.places.at, job.places.left_gone = 1, proved
    job.votes.settled()
    assert (job.me.server_rank, job.me.gone_server_rank) == (2, 2 if proved else -1)
    job.votes.complete(PLACE, replace(COMPLETE, number=7, epoch="there", server_rank=0))
    assert (job.me.server_rank, job.me.gone_server_rank) == (-1, -1)


def test_nothing_of_a_round_is_said_in_another_session():
    job = Carried()
    before, job.registration.session = job.session, SimpleNamespace(ttl=5.0, put=job.session.put)
    is_another = lambda mine: job.registration.session is not mine  # noqa: E731
    job.registration.publish(unless=lambda: is_another(before), store=(6, "10.0.0.2", 4000))
    assert (job.said, job.me.store) == ([], None)
    job.registration.publish(unless=lambda: is_another(job.registration.session), store=(6, "10.0.0.2", 4000))
    assert len(job.said) == 1


def test_place_is_left_when_it_counts_on_a_node_no_longer():
    """It counts from what it has heard last: up to a third of the time to live later than it has answered."""
    with ExitStack() as stack:
        endpoint = Endpoint("127.0.0.1", stack.enter_context(StoreServer("127.0.0.1", free_port(), run="r")).port)
        service = NativeCoordination(endpoint, "r", name="parallel", who="it")
        one = stack.enter_context(closing(FailoverBackend([endpoint], [service], None, TTL_S, SYSTEM)))
        lost: queue.SimpleQueue[ConnectionLost] = queue.SimpleQueue()
        session: Any = one.open_session(TTL_S, on_lost=lost.put, timeout=20)
        until = session.known_until
        session._connection.give_up("a relay has reset it")
        lost.get(timeout=20)
        assert until + TTL_S / 3 <= one._free_at <= now() + one.leaves_within
