"""The service does not do what a node needs: that is waited out, for one time, whatever is wrong. Nothing is real."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from kits.unit.membership_steps import node

from rdzv_plugins.coordination import Event, KeyValue
from rdzv_plugins.elastic.contact import Contact
from rdzv_plugins.elastic.insisting import Outage
from rdzv_plugins.elastic.keys import ALL, JOB, ROUND, Round, encode
from rdzv_plugins.elastic.link import Link
from rdzv_plugins.elastic.myself import Myself
from rdzv_plugins.elastic.options import ElasticOptions
from rdzv_plugins.elastic.own_round import Keeping, OwnRound
from rdzv_plugins.elastic.view import View
from rdzv_plugins.errors import (
    AccessRefused,
    Compacted,
    ConnectionLost,
    EndpointLost,
    EndpointUnreachable,
    RdzvError,
    RunIdMismatch,
)
from rdzv_plugins.interfaces import Request
from rdzv_plugins.runtime import Runtime

SESSION: Any = SimpleNamespace(ttl=4.0)


class Alone(Runtime):
    """One thread, and time that passes when somebody sleeps."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds = 1000.0

    def now(self) -> float:  # type: ignore[override]
        return self.seconds

    monotonic = now  # type: ignore[assignment]

    def sleep(self, seconds: float) -> None:  # type: ignore[override]
        self.seconds += seconds

    def Thread(self, target: Callable[..., None], args: tuple[Any, ...], name: str) -> Any:  # type: ignore[override]
        return SimpleNamespace(start=lambda: target(*args))


class Service(Alone):
    """It does nothing before ``well``, and each request takes all of its time, or ``takes`` seconds."""

    def __init__(self) -> None:
        super().__init__()
        self.well, self.takes, self.refusal = 0.0, 0.0, RdzvError("it is full")
        self.gave_up: list[tuple[float, str]] = []
        self.told: list[bool] = []
        self.begun = True
        self.outage = Outage(
            "run",
            10.0,
            lambda: self.begun,
            lambda error: self.gave_up.append((self.seconds, str(error))),
            self.told.append,
            self,
        )

    def ask(self, timeout: float) -> str:
        if self.seconds >= self.well:
            return "done"
        if self.takes:
            self.seconds += min(self.takes, timeout)
            raise self.refusal
        self.seconds += timeout
        raise TimeoutError("no answer")


@pytest.fixture
def service() -> Service:
    return Service()


@pytest.mark.parametrize("takes", [0.0, 0.1])
def test_what_is_not_done_is_asked_again_until_it_is(service: Service, takes: float) -> None:
    service.takes, service.well = takes, 1007.0
    assert service.outage.insist(SESSION, service.ask) == "done"
    assert not service.outage.lasts
    assert service.told == [True, False], "others hear of it, and of its end"
    assert service.gave_up == []


@pytest.mark.parametrize("takes", [0.0, 0.1])
def test_a_service_that_does_nothing_for_all_of_an_outage_is_given_up(service: Service, takes: float) -> None:
    service.takes, service.well = takes, 9999.0
    with pytest.raises(ConnectionLost):
        service.outage.insist(SESSION, service.ask)
    [(at, why)] = service.gave_up
    assert 1010 <= at <= 1011
    assert why == ("it is full" if takes else "no answer")


def test_who_notices_later_goes_on_with_the_same_count(service: Service) -> None:
    """Whoever asks, and whether a session was lost in between: nobody begins anew."""
    service.well = 9999.0
    assert not service.outage.note(TimeoutError("a question"), 1000.0, 4.0)
    service.seconds = 1006.0
    service.outage.begin(service.seconds)  # its session is lost
    with pytest.raises(ConnectionLost):
        service.outage.insist(SESSION, service.ask)
    assert 1010 <= service.gave_up[0][0] <= 1011


def test_an_outage_that_is_over_does_not_count_in_the_next(service: Service) -> None:
    service.outage.begin(1000.0)
    service.outage.over()
    service.seconds, service.well = 1100.0, 1107.0
    assert service.outage.insist(SESSION, service.ask) == "done"
    assert service.gave_up == []


def test_others_who_are_served_do_not_hold_up_the_end(service: Service) -> None:
    """A service that is full answers what only reads."""
    service.takes, service.well = 0.1, 9999.0

    def ask(timeout: float) -> str:
        service.outage.over()
        return service.ask(timeout)

    with pytest.raises(ConnectionLost):
        service.outage.insist(SESSION, ask)
    assert 1010 <= service.gave_up[0][0] <= 1011


def test_a_process_that_stood_still_asks_once_more(service: Service) -> None:
    def stands_still(timeout: float) -> str:
        if service.seconds > 1000:
            return "done"
        service.seconds += 500
        raise TimeoutError("no answer")

    assert service.outage.insist(SESSION, stands_still) == "done"
    assert service.gave_up == []


def test_before_the_job_has_begun_a_refusal_is_final(service: Service) -> None:
    service.begun, service.takes, service.well = False, 0.1, 1002.0
    with pytest.raises(RdzvError, match="it is full"):
        service.outage.insist(SESSION, service.ask)
    assert service.seconds == 1000.1
    service.takes = 0.0
    assert service.outage.insist(SESSION, service.ask) == "done", "silence is not a refusal"


@pytest.mark.parametrize("answer", [ConnectionLost("the session has ended"), Compacted("it has forgotten")])
def test_what_asking_again_does_not_change_is_raised(service: Service, answer: RdzvError) -> None:
    service.refusal, service.takes, service.well = answer, 0.1, 9999.0
    with pytest.raises(type(answer)):
        service.outage.insist(SESSION, service.ask)


class Node(Alone):
    """The contact of a node to a service that opens a session, or not, as ``opens`` says."""

    hosts_service = False

    def __init__(self, *, begun: bool = True) -> None:
        super().__init__()
        self._begun, self._round = begun, Event(ROUND, encode(Round(1, "complete", 1)), 1)
        self.refusal: Exception | None = None
        self.well = 0.0
        request = Request("any", "run", "here:1", min_nodes=1, max_nodes=1, nproc_per_node=1)
        options = ElasticOptions(outage_timeout=60.0)
        ignore: Any = lambda *_: None  # noqa: E731
        view = View(lambda: None, ignore, self)
        self.contact = contact = Contact(request, options.outage_timeout, view, ignore, self)
        myself = Myself(node("a"), contact, self)
        keeping = Keeping(view, OwnRound(view, contact, myself), myself, self)
        self._link = Link(
            self,  # type: ignore[arg-type]
            request,
            options,
            view,
            contact,
            myself,
            keeping,
            ignore,
            settings={},
            on_waits=ignore,
            runtime=self,
        )
        self._link.open(10.0)

    def open_session(self, ttl: float, *, on_lost: Callable[[ConnectionLost], None], timeout: float) -> Any:
        if self.refusal is not None and self.seconds < self.well:
            raise self.refusal
        self._on_lost = on_lost
        tell = lambda prefix, told, **_: prefix == ALL and self._begun and told([self._round])  # noqa: E731
        job = True, KeyValue(JOB, b"{}", 1)
        return SimpleNamespace(watch=tell, create=lambda *_, **__: job, close=lambda: None, known_until=1e9)

    def lose(self, silent_since: float | None = None, *, silent: bool = False) -> None:
        """Its session ends; nothing was heard in it since then."""
        error = ConnectionLost("here:1 has not answered: it makes no sense")
        error.silent, error.silent_since = silent or silent_since is not None, silent_since
        self._on_lost(error)


REFUSALS = [
    AccessRefused("it needs the job's token", remedy="Give it."),
    EndpointUnreachable("another program has its port"),
    RunIdMismatch("it serves another run"),
    OSError("a plug-in's own"),
]


@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda each: type(each).__name__)
@pytest.mark.parametrize(("seconds", "begun"), [(50.0, True), (90.0, True), (50.0, False)])
def test_a_refusal_is_waited_out_for_one_outage_where_the_job_has_begun(
    refusal: Exception, seconds: float, begun: bool
) -> None:
    there = Node(begun=begun)
    there.refusal, there.well = refusal, there.seconds + seconds
    there.lose()
    final = not begun and isinstance(refusal, RdzvError)  # anything else is a fault of the plug-in
    if seconds < 60 and not final:
        assert there.contact.problem is None
        assert (there.contact.session is not None, there.contact.opened) == (True, 2)
        assert not there.contact.outage.lasts
        return
    problem = there.contact.problem
    assert isinstance(problem, EndpointLost)
    assert str(refusal) in str(problem)
    assert "here:1" in str(problem)
    assert problem.exit_code == 68
    assert (problem.remedy == "Give it.") is isinstance(refusal, AccessRefused)
    assert there.seconds == pytest.approx(1000.0 if final else 1060.0, abs=1.0)


@pytest.mark.parametrize("lives", [0.0, 20.0])
def test_a_service_that_opens_sessions_and_keeps_none_alive_is_given_up(lives: float) -> None:
    """As with a plug-in whose keep-alive raises: else workers would be killed and started again for ever."""
    there = Node()
    there.lose(there.seconds)
    began = there.seconds
    for _ in range(100):
        opened = there.seconds
        there.seconds += lives + 1
        if there.contact.problem is None:
            there.lose(opened)
    assert isinstance(there.contact.problem, EndpointLost)
    assert "it makes no sense" in str(there.contact.problem)
    assert there.seconds - began >= 60


def test_one_that_was_heard_again_in_between_begins_another_outage() -> None:
    there = Node()
    for _ in range(10):
        there.lose(there.seconds)
        there.seconds += 50
        there.lose(there.seconds - 5)
        assert there.contact.problem is None


@pytest.mark.parametrize("ago", [59.0, None])
def test_what_was_left_of_an_outage_when_the_session_ended_is_all_there_is(ago: float | None) -> None:
    """Where nobody knows since when nothing was heard, it is for all of an outage."""
    there = Node()
    there.refusal, there.well = REFUSALS[1], 9999.0
    there.lose(None if ago is None else there.seconds - ago, silent=True)
    assert there.seconds == pytest.approx(1001.0, abs=1.0)
    assert "another program" in str(there.contact.problem)
