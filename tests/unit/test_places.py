"""Several endpoints: which of them a node goes to, by what it sees; and what is refused."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from rdzv_plugins.elastic.endpoint_options import EndpointOptions, meeting_places, validate
from rdzv_plugins.elastic.places.outlook import BORN
from rdzv_plugins.elastic.places.places import Places
from rdzv_plugins.elastic.places.sight import Sight, choose, is_better
from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.errors import ConnectionLost, RunIdMismatch, UsageError
from rdzv_plugins.interfaces import Request
from rdzv_plugins.kvstore.coordination.sessions import NativeCoordination
from rdzv_plugins.kvstore.native.server import StoreServer
from rdzv_plugins.testing.harness import free_port

THERE, REFUSED, SILENT = Sight(answers=True), Sight(refused=True), Sight()


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
        ([SILENT, Sight(answers=True, begun=True), THERE], False, "wait", -1),
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


def places_of(servers: list[StoreServer], run: str = "r") -> Places:
    endpoints = [Endpoint("127.0.0.1", server.port) for server in servers]
    services = [NativeCoordination(each, run, name="parallel", who="the node that serves") for each in endpoints]
    return Places(endpoints, services, None, 5.0)


def test_another_place_serves_when_one_has_ended(servers: list[StoreServer]):
    one, other = places_of(servers), places_of(servers)
    one.knows = other.knows = lambda: True
    try:
        lost = [threading.Event(), threading.Event()]
        errors: list[ConnectionLost] = []

        def on_lost(event: threading.Event, error: ConnectionLost) -> None:
            errors.append(error)
            event.set()

        for each, event in zip((one, other), lost, strict=True):
            each.open_session(5.0, on_lost=lambda error, event=event: on_lost(event, error), timeout=20)
        assert (one.at, other.at) == (0, 0)
        servers[0].close()
        assert all(event.wait(20) for event in lost)
        for each in (one, other):
            session = each.open_session(5.0, on_lost=lambda _: None, timeout=20)
            assert each.at == 1
            assert each.left_gone, "its host refuses connections"
            session.put({f"members/{id(each)}": b"{}"}, timeout=5)
        assert all(error.closed and not error.silent for error in errors)
    finally:
        one.close()
        other.close()


def test_first_round_is_remembered_and_other_runs_are_refused(servers: list[StoreServer]):
    one = places_of(servers)
    try:
        one.open_session(5.0, on_lost=lambda _: None, timeout=20)
        side = NativeCoordination(Endpoint("127.0.0.1", servers[2].port), "r", name="parallel", who="it")
        session = side.open_session(5.0, on_lost=lambda _: None, timeout=20)
        held, _ = session.list(BORN, timeout=5)
        assert [kv.value for kv in held] == [b"0"]
        side.close()
        stranger = places_of(servers, "another")
        with pytest.raises(RunIdMismatch, match="serves run 'r', and this node belongs to run 'another'"):
            stranger.open_session(5.0, on_lost=lambda _: None, timeout=20)
        stranger.close()
    finally:
        one.close()
