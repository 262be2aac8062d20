"""The service does not do what a node needs: that is waited out, for one time, whatever is wrong. Nothing is real."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from kits.eventually import eventually
from kits.unit.elastic_nodes import PATIENCE_S, Job, Node, in_round
from kits.unit.memory_coordination import MemorySession

from rdzv_plugins.clock import now
from rdzv_plugins.elastic.insisting import Outage
from rdzv_plugins.errors import (
    AccessRefused,
    Compacted,
    ConnectionLost,
    EndpointLost,
    EndpointUnreachable,
    RdzvError,
    RunIdMismatch,
)
from rdzv_plugins.runtime import Runtime

SESSION: Any = SimpleNamespace(ttl=4.0)


class Service(Runtime):
    """It does nothing before ``well``, and each request takes all of its time, or ``takes`` seconds."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds = 1000.0
        self.well, self.takes, self.refusal = 0.0, 0.0, RdzvError("it is full")
        self.gave_up: list[tuple[float, str]] = []
        self.begun = True
        self.outage = Outage(
            "run",
            10.0,
            lambda: self.begun,
            lambda error: self.gave_up.append((self.seconds, str(error))),
            lambda lasts: None,
            self,
        )

    def now(self) -> float:  # type: ignore[override]
        return self.seconds

    def sleep(self, seconds: float) -> None:  # type: ignore[override]
        self.seconds += seconds

    def ask(self, timeout: float) -> str:
        if self.seconds >= self.well:
            return "done"
        if self.takes:
            self.seconds += min(self.takes, timeout)
            raise self.refusal
        self.seconds += timeout
        raise TimeoutError("no answer")


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Service:
    return Service()


@pytest.mark.parametrize("takes", [0.0, 0.1])
def test_what_is_not_done_is_asked_again_until_it_is(service: Service, takes: float) -> None:
    service.takes, service.well = takes, 1007.0
    assert service.outage.insist(SESSION, service.ask) == "done"
    assert not service.outage.lasts
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


REFUSALS = [
    AccessRefused("it needs the job's token", remedy="Give it."),
    EndpointUnreachable("another program has its port"),
    RunIdMismatch("it serves another run"),
    OSError("a plug-in's own"),
]


def refuses(node: Node, refusal: Exception) -> Callable[[], None]:
    """From now on the service opens no session for it; until what this returns is called."""
    opens = node.backend.open_session

    def open_session(*_: object, **__: object) -> MemorySession:
        raise refusal

    node.backend.open_session = open_session  # type: ignore[method-assign]

    def no_longer() -> None:
        node.backend.open_session = opens  # type: ignore[method-assign]

    return no_longer


@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda each: type(each).__name__)
def test_a_refusal_while_the_job_works_is_waited_out(refusal: Exception) -> None:
    with Job("1") as job:
        [node] = job.start(1)
        no_longer = refuses(node, refusal)
        node.backend.lose()
        eventually(lambda: node.handler._link.outage._told, lambda: "it has been refused, and says so")
        assert node.handler.num_nodes_waiting() == 0
        assert not node.handler.holding.ended(), "its workers run"
        no_longer()
        eventually(node.handler.num_nodes_waiting, lambda: "it is back")
        assert node.join().result(PATIENCE_S).world_size == 1


@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda each: type(each).__name__)
def test_a_refusal_that_lasts_ends_the_node_and_is_said(refusal: Exception) -> None:
    with Job("1", outage_timeout=1) as job:
        [node] = job.start(1)
        refuses(node, refusal)
        node.backend.lose()
        with pytest.raises(EndpointLost, match=str(refusal)) as raised:
            eventually(node.handler.num_nodes_waiting, lambda: "it ends")
        assert "here:1" in str(raised.value)
        assert raised.value.remedy.startswith("Give it" if isinstance(refusal, AccessRefused) else "See the output")
        assert raised.value.exit_code == 68


def test_a_refusal_before_the_first_round_ends_the_node_at_once() -> None:
    with Job("2", outage_timeout=10 * PATIENCE_S) as job:
        node = job.node()
        joins = node.join()
        eventually(node.has_joined, lambda: "it waits for the other")
        refuses(node, REFUSALS[0])
        node.backend.lose()
        with pytest.raises(EndpointLost, match="it needs the job's token"):
            joins.result(PATIENCE_S)
        other = job.node()
        refuses(other, REFUSALS[0])
        with pytest.raises(AccessRefused):
            other.join().result(PATIENCE_S)


def full(job: Job, times: int) -> list[str]:
    """The service refuses so many writes; the list has those that it has refused."""
    refused: list[str] = []

    def refuse(session: MemorySession) -> None:
        refused.append("put")
        if len(refused) < times:
            job.service.on("put", "", "before", refuse)
        raise RdzvError("here:1 refuses writing: it is full")

    job.service.on("put", "", "before", refuse)
    return refused


def test_writes_that_are_refused_for_a_while_end_nothing() -> None:
    """Neither a member's nor the leader's, who would otherwise end the job for all."""
    with Job("2") as job:
        nodes = job.start(2)
        refused = full(job, 3)
        in_round(nodes)
        assert len(refused) == 3
        full(job, 0)
        assert [node.handler.raise_if_ended() for node in nodes] == [None, None]


def test_who_cannot_ask_whether_a_node_was_lost_ends_with_the_outage() -> None:
    """It neither takes the silence for an answer, which would use up a restart, nor begins to wait anew."""
    with Job("2", outage_timeout=1) as job:
        first, _ = job.start(2)
        refused = full(job, 10**6)
        with pytest.raises(EndpointLost, match="it is full"):
            first.handler.peer_lost()
        assert len(refused) < 6


def test_an_outage_is_one_for_all_who_watch_each_other() -> None:
    """Whoever needs nothing of the service meanwhile would else begin to count when the first has given up."""
    with Job("2", outage_timeout=3) as job:
        first, second = job.start(2)
        in_round([first, second])
        full(job, 10**6)
        with pytest.raises(EndpointLost):
            first.handler.peer_lost()

        def has_given_up() -> bool:
            try:
                second.handler.raise_if_ended()
            except EndpointLost:
                return True
            return False

        eventually(has_given_up, lambda: "the second node has given up")


def again_and_again(action: Callable[[], object]) -> None:
    until = now() + PATIENCE_S
    while now() < until:
        action()


def silent(node: Node, since: float) -> None:
    """Its session ends: nothing was heard in it since then."""
    session = node.backend.session
    assert session is not None
    error = ConnectionLost("here:1 has not answered: it makes no sense")
    error.silent, error.silent_since = True, since
    node.backend.service.end(session)
    session.on_lost(error)


def test_a_service_that_opens_sessions_and_keeps_none_alive_is_given_up() -> None:
    """As with a plug-in whose keep-alive raises: else the workers would be killed and started again for ever."""
    with Job("1", outage_timeout=1) as job:
        [node] = job.start(1)
        silent(node, now() - 1)
        eventually(node.handler.num_nodes_waiting, lambda: "another session follows")
        assert node.join().result(PATIENCE_S).world_size == 1
        silent(node, node.handler._link._recovered_at)
        with pytest.raises(EndpointLost, match="it makes no sense"):
            eventually(node.handler.num_nodes_waiting, lambda: "it ends")


def test_sessions_that_are_lost_as_soon_as_they_are_opened_end_the_node_in_time() -> None:
    with Job("1", outage_timeout=2) as job:
        [node] = job.start(1)
        node.backend.lose()
        began = now()

        def works() -> None:
            eventually(node.handler.num_nodes_waiting, lambda: "another session follows, or it ends")
            node.join().result(PATIENCE_S)
            silent(node, node.handler._link._recovered_at)

        works()
        works()
        with pytest.raises(EndpointLost, match="it makes no sense"):
            again_and_again(works)
        assert now() - began >= 1


def test_what_was_left_of_an_outage_when_the_session_ended_is_all_there_is() -> None:
    with Job("1") as job:
        [node] = job.start(1)
        refuses(node, REFUSALS[1])
        silent(node, now() - 59)
        began = now()
        with pytest.raises(EndpointLost, match="another program"):
            eventually(node.handler.num_nodes_waiting, lambda: "it ends")
        assert now() - began < 30


def test_nobody_is_missing_because_the_service_is_away() -> None:
    """The time to join is over in an outage, which has its own end."""
    with Job("2", timeout=1, outage_timeout=3) as job:
        first, second = job.start(2)
        second.die()
        eventually(first.handler.num_nodes_waiting, lambda: "it hears that the other is lost")
        refuses(first, REFUSALS[0])
        first.backend.lose()
        with pytest.raises(EndpointLost, match="it needs the job's token"):
            first.join().result(PATIENCE_S)


def test_a_node_that_is_done_is_done_whatever_the_service_refuses() -> None:
    with Job("2", outage_timeout=1) as job:
        first, second = job.start(2)
        for node in (first, second):
            node.handler.note_done()
        full(job, 10**6)
        for node in (first, second):
            node.handler.stay()


def test_who_cannot_be_asked_for_is_not_taken_for_done() -> None:
    with Job("2") as job:
        first, _ = job.start(2)
        assert first.handler.working_peers()

        def silent(session: MemorySession) -> None:
            raise TimeoutError("no answer")

        job.service.on("list", "members/", "before", silent)
        assert first.handler.working_peers(), "while the service does not answer"
        refuses(first, REFUSALS[0])
        first.backend.lose()
        assert first.handler.working_peers(), "while there is no session"
