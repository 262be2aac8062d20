"""The service does not do what a node needs: that is waited out, for one time, whatever is wrong. Nothing is real.

What follows for sessions: ``simulation/test_scenarios_outages.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from kits.unit.membership_steps import node

from rdzv_plugins.coordination import KeyValue
from rdzv_plugins.elastic.current_round import CurrentRound, NodeContext
from rdzv_plugins.elastic.keys import JOB
from rdzv_plugins.elastic.node_session import Registration, SessionManager, WatchCache
from rdzv_plugins.elastic.options import ElasticOptions
from rdzv_plugins.elastic.retry import Outage
from rdzv_plugins.errors import Compacted, ConnectionLost, RdzvError
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
def test_a_service_that_does_nothing_for_all_of_an_outage_is_given_up(service: Service, takes: float) -> None:
    service.takes, service.well = takes, 9999.0
    with pytest.raises(ConnectionLost):
        service.outage.retry_until_lost(SESSION, service.ask)
    [(at, why)] = service.gave_up
    assert 1010 <= at <= 1011
    assert why == ("it is full" if takes else "no answer")


def test_others_who_are_served_do_not_hold_up_the_end(service: Service) -> None:
    """A service that is full answers what only reads."""
    service.takes, service.well = 0.1, 9999.0

    def ask(timeout: float) -> str:
        service.outage.over()
        return service.ask(timeout)

    with pytest.raises(ConnectionLost):
        service.outage.retry_until_lost(SESSION, ask)
    assert 1010 <= service.gave_up[0][0] <= 1011


def test_a_process_that_stood_still_asks_once_more(service: Service) -> None:
    def stands_still(timeout: float) -> str:
        if service.seconds > 1000:
            return "done"
        service.seconds += 500
        raise TimeoutError("no answer")

    assert service.outage.retry_until_lost(SESSION, stands_still) == "done"
    assert service.gave_up == []


@pytest.mark.parametrize("answer", [ConnectionLost("the session has ended"), Compacted("it has forgotten")])
def test_what_asking_again_does_not_change_is_raised(service: Service, answer: RdzvError) -> None:
    service.refusal, service.takes, service.well = answer, 0.1, 9999.0
    with pytest.raises(type(answer)):
        service.outage.retry_until_lost(SESSION, service.ask)


def test_before_the_job_has_begun_a_refusal_is_final(service: Service) -> None:
    service.begun, service.takes, service.well = False, 0.1, 1002.0
    with pytest.raises(RdzvError, match="it is full"):
        service.outage.retry_until_lost(SESSION, service.ask)
    assert service.seconds == 1000.1
    service.takes = 0.0
    assert service.outage.retry_until_lost(SESSION, service.ask) == "done", "silence is not a refusal"


class Node(Alone):
    """The contact of a node, which has begun no round, to a service that opens one session, and another after 50 s."""

    name, hosts_service = "any", False

    def __init__(self, silence: Exception) -> None:
        super().__init__()
        self._silence = silence
        request = Request("any", "run", "here:1", min_nodes=1, max_nodes=1, nproc_per_node=1)
        options, ignore = ElasticOptions(outage_timeout=60.0), lambda *_: None
        view = WatchCache(lambda: None, ignore, self)
        self.contact = contact = Registration(node("a"), request, options.outage_timeout, view, ignore, self)
        parts: Any = request, options, view, contact, CurrentRound(view, contact, 10.0, self), None, None, None, self
        context, backend = NodeContext(*parts), parts[-1]
        election: Any = None
        SessionManager(backend, context, election).open(10.0)

    def open_session(self, ttl: float, *, on_lost: Callable[[ConnectionLost], None], timeout: float) -> Any:
        if 1000.0 < self.seconds < 1050.0:
            raise self._silence
        self._on_lost = on_lost
        job, nothing = (True, KeyValue(JOB, b"{}", 1)), lambda *_, **__: None
        return SimpleNamespace(watch=nothing, create=lambda *_, **__: job, close=nothing, known_until=1e9)

    def lose(self) -> None:
        self.seconds += 1
        error = ConnectionLost("here:1 has not answered")
        error.silent = False
        self._on_lost(error)


@pytest.mark.parametrize("silence", [OSError("a plug-in's own"), TimeoutError("silent")])
def test_before_the_job_has_begun_silence_or_a_fault_of_a_plugin_is_waited_out(silence: Exception) -> None:
    there = Node(silence)
    there.lose()
    assert there.contact.problem is None
    assert there.contact.opened == 2
