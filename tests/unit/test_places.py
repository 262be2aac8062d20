"""Several endpoints: which of them a node goes to, by what it sees; and what is refused."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import logging
import queue
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from types import SimpleNamespace
from typing import Any

import pytest
from kits.eventually import eventually

from rdzv_plugins.assemble.border import CheckedCoordination
from rdzv_plugins.clock import now
from rdzv_plugins.elastic import keys
from rdzv_plugins.elastic.endpoint_options import EndpointOptions, meeting_places, validate
from rdzv_plugins.elastic.insisting import Outage
from rdzv_plugins.elastic.joining import Joining
from rdzv_plugins.elastic.keys import BEGUN, BORN, Assignment, Member, Round, encode
from rdzv_plugins.elastic.leading.quorum import seat_of
from rdzv_plugins.elastic.link import Link
from rdzv_plugins.elastic.myself import Myself
from rdzv_plugins.elastic.options import ElasticOptions
from rdzv_plugins.elastic.places import outlook, places
from rdzv_plugins.elastic.places.carrying import Carrying
from rdzv_plugins.elastic.places.outlook import Outlook, read_born, say_born
from rdzv_plugins.elastic.places.places import Places
from rdzv_plugins.elastic.places.sight import Sight, choose, is_better
from rdzv_plugins.elastic.view import View
from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.errors import (
    AccessRefused,
    ConnectionLost,
    EndpointUnreachable,
    RdzvError,
    RunIdMismatch,
    SettingsDiffer,
    UsageError,
)
from rdzv_plugins.interfaces import Request
from rdzv_plugins.job_token import JobToken
from rdzv_plugins.kvstore.coordination.sessions import NativeCoordination
from rdzv_plugins.kvstore.native.server import StoreServer
from rdzv_plugins.kvstore.sockets import reach
from rdzv_plugins.runtime import SYSTEM
from rdzv_plugins.testing.harness import free_port
from rdzv_plugins.testing.parts import stop

TTL_S = 60.0
"""No session ends because its node, or the server, did not get to run for a while."""
THERE, REFUSED, SILENT = Sight(answers=True), Sight(refused=True), Sight()


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each place is seen as it is, and the first one is taken, however late the threads that look get to run."""
    for limit in ("_DIAL_S", "_OPEN_S", "_ASK_S"):
        monkeypatch.setattr(outlook, limit, 60.0)
    for limit in ("_SETTLE_S", "_JOIN_S"):
        monkeypatch.setattr(places, limit, 60.0)


def born(place: int) -> Sight:
    return Sight(answers=True, born=place)


@pytest.mark.parametrize(
    ("sights", "knows", "step", "place"),
    [
        ([THERE, THERE, THERE], False, "claim", 0),
        ([REFUSED, THERE, THERE], False, "claim", 1),
        ([SILENT, THERE, THERE], False, "wait", 0),  # it may serve the job, cut off from here
        ([THERE, REFUSED, REFUSED], False, "wait", -1),  # who answers is not more than half
        ([THERE, THERE, REFUSED, REFUSED], False, "wait", -1),
        ([born(1), born(1), THERE], False, "join", 1),
        ([born(0), born(1), born(1)], False, "join", 1),  # two have begun at once
        ([born(1), SILENT, born(1)], False, "wait", 1),
        ([born(1), THERE, SILENT], False, "claim", 1),  # what one has begun is carried on
        ([SILENT, Sight(answers=True, begun=True), THERE], False, "join", 1),
        ([THERE, Sight(answers=True, round=2), Sight(answers=True, round=3)], False, "join", 2),
        ([SILENT, SILENT, SILENT], True, "wait", -1),
        ([SILENT, THERE, THERE], True, "join", 1),
        ([SILENT, THERE, Sight(answers=True, members=2)], True, "join", 2),
        ([SILENT, SILENT, Sight(answers=True, begun=True)], True, "join", 2),
    ],
)
def test_place_to_join(sights: list[Sight], knows: bool, step: str, place: int):
    choice = choose(sights, knows=knows)
    assert (choice.step, choice.place) == (step, place), choice
    assert bool(choice.why) == (step != "join")


def test_first_round_is_begun_at_one_place_whatever_two_nodes_see():
    """More than half remember one place: whoever else sees more than half is led there, or waits."""
    for remembered in itertools.product((-1, 0, 1, 2), repeat=3):
        seen = {
            choose([born(at) if here else SILENT for at, here in zip(remembered, answers, strict=True)], knows=False)
            for answers in itertools.product((True, False), repeat=3)
        }
        assert len({choice.place for choice in seen if choice.step == "join"}) < 2, remembered


def test_a_place_is_left_for_a_newer_round_that_works_or_for_more_nodes():
    works = Sight(answers=True, round=2, works=True, members=2)
    assert is_better([Sight(answers=True, round=1, works=True, members=3), works, THERE], 0) == 1
    assert is_better([works, Sight(answers=True, round=2, works=True, members=9), THERE], 0) is None
    assert is_better([works, Sight(answers=True, round=3, members=9), THERE], 0) is None, "it works nowhere else"
    over = Sight(answers=True, round=1, members=1)
    assert is_better([over, Sight(answers=True, round=1, members=2), THERE], 0) == 1
    assert is_better([over, Sight(answers=True, round=1, members=1), THERE], 0) is None
    assert is_better([SILENT, works, works], 0) is None, "what is not seen may be newer"


def test_lists_of_places():
    def places(text: str) -> object:
        request = Request("parallel", "r", text, min_nodes=3, max_nodes=3, nproc_per_node=1)
        return meeting_places(request)

    assert places("a:1, b,[::1]:3") == (Endpoint("a", 1), Endpoint("b", 29500), Endpoint("::1", 3))
    assert places("a:1") == Endpoint("a", 1)
    for text, why in {
        "a:1,b:1,a:1": "a:1 is there twice",
        "a,a:29500": "a:29500 is there twice",
        ",".join(f"a:{port}" for port in range(1, 9)): "8 places are too many: at most 7",
        "a:0,b:1": "port 0 of a is for one node and one place",
        "a:1,,b:1": "has no valid host name",
    }.items():
        with pytest.raises(UsageError, match=why):
            places(text)
    request = Request(
        "parallel", "r", "a,b", min_nodes=2, max_nodes=2, nproc_per_node=1, options=EndpointOptions(is_host=True)
    )
    with pytest.raises(UsageError, match="is_host=true does not say which of 2 places"):
        validate(request)


@pytest.fixture
def servers() -> Iterator[list[StoreServer]]:
    with ExitStack() as stack:
        held = [StoreServer(host="127.0.0.1", port=free_port(), run="r") for _ in range(3)]
        for server in held:
            stack.callback(server.close)
        yield held


def places_of(servers: Sequence[Any], run: str = "r", token: JobToken | None = None) -> Places:
    endpoints = [Endpoint("127.0.0.1", server.port) for server in servers]
    services = [
        NativeCoordination(each, run, name="parallel", who="the node that serves", token=token) for each in endpoints
    ]
    return Places(endpoints, services, None, TTL_S, SYSTEM)


def joined(places: Places | NativeCoordination, lost: queue.SimpleQueue[ConnectionLost] | None = None) -> Any:
    """A session at the place that was chosen."""
    return places.open_session(TTL_S, on_lost=lost.put if lost is not None else lambda _: None, timeout=20)


def by_itself(server: StoreServer | Endpoint) -> NativeCoordination:
    """Somebody who looks at one place alone."""
    return NativeCoordination(Endpoint("127.0.0.1", server.port), "r", name="parallel", who="it")


def knows(places: Places) -> Places:
    """Of a node that has been in a round."""
    places.carried_by(lambda: True)
    return places


def test_another_place_serves_when_one_has_ended(servers: list[StoreServer]):
    with closing(knows(places_of(servers))) as one, closing(knows(places_of(servers))) as other:
        lost = queue.SimpleQueue[ConnectionLost]()
        for each in (one, other):
            joined(each, lost)
            assert each.at == 0
        servers[0].close()
        assert not any(lost.get(timeout=20).silent for _ in range(2))
        for each in (one, other):
            session = joined(each)
            assert each.at == 1
            assert each.left_gone, "its host refuses connections"
            session.put({f"members/{id(each)}": b"{}"}, timeout=20)


SERVES = """
import sys
from rdzv_plugins.kvstore.native.server import StoreServer
server = StoreServer(host="127.0.0.1", port=0, run="r")
print(server.port, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("unread", [("session",), ("session", "outlook"), ("session", "outlook", "witness")])
def test_process_that_is_killed_with_unread_bytes_is_known_to_be_gone(
    servers: list[StoreServer], unread: tuple[str, ...]
):
    """Its kernel resets those connections. What proves its end is the one on which nothing was sent."""
    with ExitStack() as stack:
        child = stack.enter_context(
            subprocess.Popen([sys.executable, "-c", SERVES], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        )
        stack.callback(child.kill)
        assert child.stdout is not None
        one = knows(places_of([SimpleNamespace(port=int(child.stdout.readline())), *servers[1:]]))
        stack.callback(one.close)
        lost = queue.SimpleQueue[ConnectionLost]()
        session = joined(one, lost)
        looking = one._outlooks[0]
        stop(child.pid)
        said: dict[str, Any] = {"session": session, "outlook": looking._session}
        for name in unread:
            if name == "witness":
                assert looking._witness is not None
                looking._witness.send(b"more")
            else:
                with contextlib.suppress(TimeoutError):
                    said[name].list("members/", timeout=0.05)
        child.kill()
        lost.get(timeout=60)
        if "witness" in unread:  # all that is left is a reset, which may be sent by anything on the way
            eventually(lambda: looking.sight.refused)
            assert not one._may_leave()
            return
        joined(one)
        assert (one.at, one.left_gone) == (1, True)


class Host:
    """The service of a place of which the test says what its host answers."""

    def __init__(self, closing: ExitStack) -> None:
        self._closing = closing
        self._listener = closing.enter_context(socket.create_server(("127.0.0.1", 0)))
        self.endpoint = Endpoint("127.0.0.1", self._listener.getsockname()[1])
        self.answers: queue.SimpleQueue[Callable[[], tuple[socket.socket | None, str]]] = queue.SimpleQueue()
        self.held: list[socket.socket] = []

    def accepts(self) -> tuple[socket.socket, str]:
        connection = socket.create_connection((self.endpoint.host, self.endpoint.port))
        self.held.append(self._closing.enter_context(self._listener.accept()[0]))
        return connection, ""

    def refuses(self) -> tuple[None, str]:
        return None, reach.REFUSED

    def is_silent(self) -> tuple[None, str]:
        return None, "no answer"

    def closes_then_refuses(self) -> tuple[None, str]:
        self.held[0].close()
        return None, reach.REFUSED

    def look(self, timeout: float) -> tuple[socket.socket | None, str]:
        return self.answers.get(timeout=60)()

    def open_session(self, ttl: float, *, on_lost: Callable[[ConnectionLost], None], timeout: float) -> Any:
        self.lose = on_lost
        return SimpleNamespace(list=lambda *_, **__: ([], 0), watch=lambda *_, **__: None, close=lambda: None)

    def reset(self) -> None:
        self.held[0].setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.held[0].close()


@pytest.mark.parametrize(
    ("ends", "answers", "gone"),
    [
        ("in order", ["refuses"], True),
        ("in order", ["is_silent"], False),  # cut off
        ("in order", ["is_silent", "refuses"], True),
        ("in order", ["accepts"], False),  # it was begun again
        ("by a reset", ["refuses", "refuses"], False),  # a firewall that resets everything; the process lives
        ("not at all", ["refuses", "refuses"], False),  # one that refuses what is new
        ("not at all", ["closes_then_refuses"], False),  # the process may have closed it, and a firewall refuses
        ("not at all", ["closes_then_refuses", "refuses"], True),
        ("not at all", ["accepts", "refuses"], False),  # the newest one counts
    ],
)
def test_what_proves_that_the_process_that_serves_a_place_has_ended(ends: str, answers: list[str], gone: bool):
    with ExitStack() as steps:
        host = Host(steps)
        host.answers.put(host.accepts)
        looked: queue.SimpleQueue[Sight] = queue.SimpleQueue()
        looking = Outlook(
            host.endpoint,
            host,  # type: ignore[arg-type]
            TTL_S,
            lambda: looking.sight.tried and looked.put(looking.sight),
            [str(host.endpoint)],
            SYSTEM,
        )
        steps.callback(host.answers.put, host.refuses)
        steps.callback(looking.close)
        eventually(lambda: looking.sight.answers)
        assert looking.is_witnessed()
        if ends == "in order":
            host.held[0].close()
        elif ends == "by a reset":
            host.reset()
        eventually(lambda: looking.is_witnessed() == (ends == "not at all"))
        for each in answers:
            if looking.sight.answers:
                looking.doubt()
            host.answers.put(getattr(host, each))
            if each == "accepts":
                eventually(lambda: looking.sight.answers)
            else:
                sight = looked.get(timeout=60)
                assert not sight.answers
        assert looking.sight.gone is gone


def test_newcomer_does_not_stay_where_a_round_is_over_and_newer_ones_are_elsewhere(
    servers: list[StoreServer], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(places, "_ALONE_S", 0.05)
    with ExitStack() as stack:
        sides = [stack.enter_context(closing(by_itself(each))) for each in servers]
        newcomer = stack.enter_context(closing(places_of(servers)))
        sessions = [joined(side) for side in sides]
        sessions[0].put({keys.ROUND: encode(Round(5, "over", 2))}, timeout=20)
        lost = queue.SimpleQueue[ConnectionLost]()
        joined(newcomer, lost)
        assert newcomer.at == 0
        sessions[2].put({keys.ROUND: encode(Round(6, "over", 2))}, timeout=20)
        assert str(lost.get(timeout=30)).endswith(f"more nodes are at {newcomer._endpoints[2]}")


def test_places_that_stand_by_need_the_token_too():
    mine, other = JobToken((b"m" * 32,)), JobToken((b"o" * 32,))
    with ExitStack() as stack:
        held = [
            stack.enter_context(StoreServer("127.0.0.1", free_port(), run="r", tokens=mine.accepted("r")))
            for _ in range(2)
        ]
        one = stack.enter_context(closing(knows(places_of(held, token=mine))))
        lost = queue.SimpleQueue[ConnectionLost]()
        joined(one, lost)
        held[0].close()
        lost.get(timeout=20)
        joined(one)
        assert one.at == 1
        stranger = stack.enter_context(closing(places_of(held[1:], token=other)))
        with pytest.raises(AccessRefused, match="does not accept this node's token"):
            joined(stranger)
        # the server counts a refusal once it has told it
        eventually(lambda: held[1].stats()["refused"].keys() == {"wrong token"}, lambda: held[1].stats())


def test_first_round_is_remembered_and_other_runs_and_lists_are_refused(servers: list[StoreServer]):
    with ExitStack() as stack:
        one = stack.enter_context(closing(places_of(servers)))
        joined(one)
        session = joined(stack.enter_context(closing(by_itself(servers[2]))))
        held, _ = session.list(BORN, timeout=20)
        names = [f"127.0.0.1:{server.port}" for server in servers]
        assert [read_born(kv.value, names) for kv in held] == [(0, "")]
        stranger = stack.enter_context(closing(places_of(servers, "another")))
        with pytest.raises(RunIdMismatch, match="serves run 'r', and this node belongs to run 'another'"):
            joined(stranger)
        other = stack.enter_context(closing(places_of([servers[1], servers[0], servers[2]])))
        with pytest.raises(SettingsDiffer, match=f"--rdzv-endpoint: here {other}, there {one}"):
            joined(other)
        assert other.at is None


@pytest.mark.parametrize(
    "said",
    [
        say_born(1, "bac"),
        say_born(4, "abcde"),
        b"7",
        b"1e999",
        b"[[",
        b'{"at": "z", "of": "a,b,c"}',
        b'{"of": 1}',
        b"\xff",
    ],
)
def test_first_round_of_another_list_is_none_of_this_one(said: str | bytes):
    text = said.encode() if isinstance(said, str) else said
    at, others = read_born(text, "abc")
    assert at == -1
    assert others
    assert read_born(say_born(1, "abc").encode(), "abc") == (1, "")


class Sessions:
    """A link whose session takes down what is said."""

    def __init__(self) -> None:
        self.said: list[dict[str, Any]] = []
        self.session: Any = SimpleNamespace(ttl=5.0, put=lambda items, **_: self.said.append(items))
        self.outage = Outage("r", 60.0, lambda: True, lambda _: None, lambda _: None, SYSTEM)


def carrying_of(*rounds: Assignment) -> tuple[Carrying, Myself, Sessions, SimpleNamespace]:
    """A node that has reached these."""
    places, link = SimpleNamespace(at=0, left_gone=False, carried_by=lambda _: None), Sessions()
    seats = tuple(seat_of(place, complete=False) for place in rounds)
    myself = Myself(Member("a", "a", "a", 1, "10.0.0.1", "", 1, seats=seats), link, SYSTEM)  # type: ignore[arg-type]
    carrying = Carrying(places, myself)  # type: ignore[arg-type]
    carrying.settled()
    return carrying, myself, link, places


def test_what_a_node_knows_is_heard_of_behind_the_border_around_plugins():
    inner = Places([], [], None, TTL_S, SYSTEM)
    service: Any = CheckedCoordination(inner, SimpleNamespace())  # type: ignore[arg-type]
    myself = Myself(Member("a", "a", "a", 1, "10.0.0.1", "", 1), Sessions(), SYSTEM)  # type: ignore[arg-type]
    Carrying(service, myself)
    assert not inner.knows()
    myself.change(seats=(seat_of(PLACE, complete=True),))
    assert inner.knows()


PLACE = Assignment(6, 0, 3, "a", master_addr="10.0.0.2", master_port=4000, begun="here")


@pytest.mark.parametrize(
    ("declared", "mine"),
    [
        (Round(6, "complete", 3, master_addr="10.0.0.2", master_port=4000, begun="here"), True),
        (Round(6, "complete", 3, master_addr="10.0.0.2", master_port=4001, begun="here"), False),
        (Round(6, "complete", 3, master_addr="10.0.0.3", master_port=4000, begun="here"), False),
        (Round(6, "complete", 3, master_addr="10.0.0.2", master_port=4000, begun="there"), False),
        (Round(6, "over", 3, "another one was begun"), False),
    ],
)
def test_round_was_complete_only_if_that_one_was_declared(declared: Round, mine: bool):
    before = Assignment(5, 0, 5, "a", master_addr="10.0.0.2", master_port=4000, begun="once")
    carrying, myself, _, _ = carrying_of(before, PLACE)
    joining, told = joining_of(carrying, myself)
    told.assignment, told.round = PLACE, declared
    myself.change(reached=6)
    place = joining._step(told)
    seats = [(seat.round, seat.complete) for seat in myself.me.seats]
    assert seats == ([(6, True)] if mine else [(5, False), (6, False)]), "undecided ones bind"
    assert (place == PLACE) is mine
    assert joining.round == (0 if declared.state == "complete" and not mine else 6)


@pytest.mark.parametrize("came_back", [False, True])
def test_node_that_has_reached_another_round_since_does_not_go_on_in_the_one_before(came_back: bool):
    """It has come back before anybody has heard that it went; the other one may have been complete."""
    since = Assignment(7, 1, 2, "a", master_addr="10.0.0.3", master_port=4000, begun="there")
    carrying, myself, link, _ = carrying_of(PLACE, *[since] * came_back)
    joining, told = joining_of(carrying, myself)
    told.assignment, told.round = PLACE, Round(6, "complete", 3, "", "", "10.0.0.2", 4000, "here")
    myself.change(reached=6)
    assert joining._step(told) == (None if came_back else PLACE)
    assert [(seat.round, seat.complete) for seat in myself.me.seats] == [(6, True), (7, False)][: 1 + came_back]
    assert myself.me.after == (6 if came_back else 0)
    assert len(link.said) == came_back, "the others are told that it does not"


@pytest.mark.parametrize("leaving", ["", "done", "lost"])
def test_who_was_leaving_says_nothing_at_another_place(leaving: str):
    """Where it has said so its voice counts: it is not to count at two."""
    _, myself, link, places = found = carrying_of(PLACE)
    myself.say_once(5.0, leaving=leaving, store=(6, "10.0.0.2", 4000))
    assert len(link.said) == 1
    places.at = 1
    found[0].settled()
    myself.say(address="10.0.0.9", known=6)
    myself.say_once(5.0, leaving="lost")
    assert len(link.said) == (1 if leaving else 3)
    assert myself.me.store is None, "a round of that number is another one here"


@pytest.mark.parametrize("proved", [False, True])
def test_who_moves_says_which_node_served_what_it_has_left(proved: bool):
    carrying, myself, _, places = carrying_of(PLACE)
    carrying.complete(PLACE, Round(6, "complete", 3, "", "", "10.0.0.2", 4000, "here", server=2))
    carrying.settled()
    assert (myself.me.server, myself.me.gone) == (-1, -1)
    places.at, places.left_gone = 1, proved
    carrying.settled()
    assert (myself.me.server, myself.me.gone) == (2, 2 if proved else -1)
    carrying.complete(PLACE, Round(7, "complete", 2, "", "", "10.0.0.3", 4000, "there", server=0))
    assert (myself.me.server, myself.me.gone) == (-1, -1)


def test_nothing_of_a_round_is_said_in_another_session():
    _, myself, link, _ = carrying_of()
    before, link.session = link.session, SimpleNamespace(ttl=5.0, put=link.session.put)
    myself.say(during=before, store=(6, "10.0.0.2", 4000))
    assert (link.said, myself.me.store) == ([], None)
    myself.say(during=link.session, store=(6, "10.0.0.2", 4000))
    assert len(link.said) == 1


def joining_of(carrying: Carrying, myself: Myself) -> tuple[Joining, SimpleNamespace]:
    """A node's way into a round, and what it is told."""
    told = SimpleNamespace(assignment=None, round=Round(), has_leader=True, newest=0, list=lambda *_, **__: ([], 0))
    link = SimpleNamespace(session=told, opened=0)
    request = Request("parallel", "r", "a,b", min_nodes=1, max_nodes=5, nproc_per_node=1)
    store = SimpleNamespace(patience=5.0, close=lambda _: None, attempt=None)
    joining = Joining(request, ElasticOptions(), told, link, myself, store, None, SYSTEM)  # type: ignore[arg-type]
    joining.carry(carrying, lambda: None)
    return joining, told


class Faulty:
    """The service of a place that lets nobody read, or ends each session as soon as it was opened."""

    def __init__(self, real: NativeCoordination, how: str) -> None:
        self._real, self._how = real, how
        self.look = real.look
        self.opened: queue.SimpleQueue[float] = queue.SimpleQueue()

    def open_session(self, ttl: float, *, on_lost: Callable[[ConnectionLost], None], timeout: float) -> Any:
        self.opened.put(time.monotonic())
        session: Any = self._real.open_session(ttl, on_lost=on_lost, timeout=timeout)
        watched: list[str] = []

        def refuse(*_: object, **__: object) -> None:
            raise RdzvError("it is full")

        def ends_soon(prefix: str, *_: object, **__: object) -> None:
            watched.append(prefix)
            if len(watched) == 2:  # nothing more is asked of it when it is opened
                session._connection.give_up("it ends at once")

        if self._how == "refuses":
            session.list = refuse
        else:
            session.watch = ends_soon
        return session


def test_what_changes_at_a_place_is_told_at_once(servers: list[StoreServer]) -> None:
    told: queue.SimpleQueue[int] = queue.SimpleQueue()
    with closing(by_itself(servers[0])) as service, closing(by_itself(servers[0])) as other:
        there = Endpoint("127.0.0.1", servers[0].port)
        looking = Outlook(there, service, TTL_S, lambda: told.put(looking.sight.round), [str(there)], SYSTEM)
        with closing(looking):
            eventually(lambda: looking.sight.answers)
            session = other.open_session(TTL_S, on_lost=lambda _: None, timeout=20)
            session.put({keys.ROUND: encode(Round(5, "over", 2))}, timeout=20)
            while told.get(timeout=60) != 5:
                pass


@pytest.mark.parametrize("how", ["refuses", "ends"])
def test_faulty_place_is_tried_with_growing_pauses(
    servers: list[StoreServer], how: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(outlook, "_LASTS_S", 60.0)
    endpoint = Endpoint("127.0.0.1", servers[0].port)
    with closing(by_itself(endpoint)) as real:
        service = Faulty(real, how)
        looking = Outlook(endpoint, service, TTL_S, lambda: None, [str(endpoint)], SYSTEM)  # type: ignore[arg-type]
        with closing(looking):
            at = [service.opened.get(timeout=60) for _ in range(5)]
    assert at[-1] - at[0] >= 0.1 + 0.2 + 0.4 + 0.8


def test_place_that_cannot_be_reached_is_said_once(
    servers: list[StoreServer], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(outlook, "_PATIENCE_S", 0.0)
    servers[2].close()
    with closing(places_of(servers)) as one:
        joined(one)
        gone, tried = one._outlooks[2], queue.SimpleQueue[None]()
        missed = gone._missed
        gone._missed = lambda **how: (missed(**how), tried.put(None))  # type: ignore[method-assign,assignment]
        for _ in range(4):
            tried.get(timeout=60)
    [said] = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert said.startswith(str(gone.endpoint))


def test_place_that_remembers_nothing_stops_nobody(servers: list[StoreServer], caplog: pytest.LogCaptureFixture):
    with closing(places_of(servers)) as one, closing(by_itself(servers[2])) as side:
        told, asked = threading.Event(), set[str]()

        def refused(key: str, value: str) -> str:
            asked.add(key)
            if asked == {BORN, BEGUN}:
                told.set()
            raise RdzvError(f"it refuses writing {key}: it is full")

        one._outlooks = [
            Outlook(endpoint, service, TTL_S, one._wake, one._names, SYSTEM)
            for endpoint, service in zip(one._endpoints, one._services, strict=True)
        ]
        one._outlooks[0].remember = refused  # type: ignore[method-assign]
        watching = threading.Thread(target=one._watch, daemon=True)
        watching.start()
        joined(one)
        knows(one)._wake()
        assert told.wait(20)
        begun = threading.Event()
        joined(side).watch(BEGUN, lambda _: begun.set(), timeout=20)
        assert begun.wait(20), "this node knows of a round, though no place shows one"
        assert watching.is_alive()
        assert "does not remember it: it refuses writing place/born: it is full" in caplog.text


def test_who_finds_no_place_says_what_is_wrong_with_each(servers: list[StoreServer]):
    token = JobToken((b"m" * 32,))
    with ExitStack() as stack:
        closed = stack.enter_context(StoreServer("127.0.0.1", free_port(), run="r", tokens=token.accepted("r")))
        here = stack.enter_context(closing(places_of([closed, *servers[1:]])))
        here.at = 1  # it was a member there
        for each in servers[1:]:
            each.close()

        def error() -> str:
            with pytest.raises(EndpointUnreachable) as raised:
                here.open_session(TTL_S, on_lost=lambda _: None, timeout=1)
            return str(raised.value)

        error()
        eventually(lambda: all(each.wrong for each in here._outlooks))
        assert "needs the job's token" in (said := error())
        assert said.count("refused") == 2


def test_place_is_left_when_it_counts_on_a_node_no_longer(servers: list[StoreServer]):
    """It counts from what it has heard last: up to a third of the time to live later than it has answered."""
    with closing(places_of(servers)) as one:
        lost = queue.SimpleQueue[ConnectionLost]()
        session = joined(one, lost)
        until = session.known_until
        session._connection.give_up("a relay has reset it")
        lost.get(timeout=20)
        assert until + TTL_S / 3 <= one._free_at <= now() + one.leaves_within


@pytest.mark.parametrize("several", [True, False])
def test_outage_lasts_until_a_place_may_be_left(several: bool):
    opened: list[float] = []

    def open_session(ttl: float, *, on_lost: object, timeout: float) -> Any:
        opened.append(timeout)
        raise EndpointUnreachable("nobody listens")

    backend: Any = SimpleNamespace(hosts_service=False, open_session=open_session)
    if several:  # else it is the service of a stranger's backend, which has two members
        backend.leaves_within = 14.0
    request = Request("parallel", "r", "a,b", min_nodes=2, max_nodes=2, nproc_per_node=1)
    request = dataclasses.replace(request, target=meeting_places(request))
    ignore: Any = lambda *_: None  # noqa: E731
    link = Link(
        backend,
        request,
        ElasticOptions(outage_timeout=2.0),
        View(ignore, SYSTEM),
        ignore,
        me=Member("a", "a", "a", 1, "", "", 1),
        settings={},
        on_outage=ignore,
        on_waits=ignore,
        runtime=SYSTEM,
    )
    link._recover(ConnectionLost("reset"))
    assert opened == [16.0 if several else 2.0]
    assert link.problem is not None
