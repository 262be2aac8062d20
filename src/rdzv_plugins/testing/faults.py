"""Failures of the service and of the network between it and the nodes: part of the theme ``failure``.

For a ``CoordinationBackend``: services differ. One recognises sessions by their connections, another lets them go on
while it is away. What all of them promise is checked by ``Subject.settle``: a session lives, with its keys and with
every event, or it is lost, and then everybody is told.

For a ``RendezvousBackend``: torch's handler expects an answer or an error that it knows. How long an answer may take is
not promised, so a silently partitioned network is not tried.
"""

from __future__ import annotations

import contextlib
import functools
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rdzv_plugins.coordination import Session
from rdzv_plugins.errors import ConnectionLost, EndpointUnreachable, RendezvousFailed
from rdzv_plugins.testing.harness import Service
from rdzv_plugins.testing.job import ContractJob, JobTheme, ServingNode, split_endpoint, state_of
from rdzv_plugins.testing.parts import (
    LONG,
    PATIENCE,
    Losses,
    Recorder,
    assert_says,
    bounded,
    end_of,
    keys_of,
    opened,
    stop,
    wait_gone,
)
from rdzv_plugins.testing.processes import send
from rdzv_plugins.testing.relay import Relay

T = PATIENCE
_SHORT_S = 0.3
"""The time-out, in seconds, of requests that nobody will answer."""


class Subject:
    """A node whose service or network fails: its session, an ephemeral key, a key that stays, a watch."""

    def __init__(self, job: ContractJob, ttl: float, endpoint: str | None = None) -> None:
        conf = job.not_serving() if endpoint is not None else {}
        self.backend = job.backend(endpoint, conf=conf)
        self.losses, self.told, self.where = Losses(), Recorder(), endpoint or job.endpoint
        self.session = opened(self.backend, ttl, self.losses)
        self.session.put({"mine": b""}, ephemeral=True, timeout=T)
        self.session.put({"kept": b""}, timeout=T)
        self.session.watch("seen/", self.told, timeout=T)

    def ask(self, timeout: float) -> bool:
        """Whether a request is done; False if it was not done in time. Raises ``ConnectionLost`` after the end."""
        try:
            bounded("put()", lambda: self.session.put({"asked": b""}, timeout=timeout), timeout)
        except TimeoutError as error:
            assert_says(error)
            return False
        return True

    def nobody_answers(self) -> None:
        """Check that every kind of request ends in a ``TimeoutError``, and in time."""
        asks: dict[str, Callable[[], object]] = {
            "put()": lambda: self.session.put({"asked": b""}, timeout=_SHORT_S),
            "create()": lambda: self.session.create("created", b"", timeout=_SHORT_S),
            "delete()": lambda: self.session.delete(["missing"], timeout=_SHORT_S),
            "list()": lambda: self.session.list("", timeout=_SHORT_S),
        }
        for what, ask in asks.items():
            try:
                bounded(what, ask, _SHORT_S)
            except TimeoutError as error:
                assert_says(error)
            else:
                raise AssertionError(f"{what} was answered by a network that is parted")

    def ask_for(self, seconds: float) -> None:
        """Keep asking for that long while nobody answers, or until the session is lost."""
        end = time.monotonic() + seconds
        with contextlib.suppress(ConnectionLost):
            while time.monotonic() < end:
                self.ask(_SHORT_S)

    def settle(self, observer: Session) -> bool:
        """Whether the session lives, once that is known; checks all the consequences."""
        end = time.monotonic() + T
        try:
            while not self.ask(1.0):
                assert time.monotonic() < end, "it is neither answered nor lost, though the service is back"
        except ConnectionLost:
            self.is_over(observer)
            return False
        assert self.losses.none, "on_lost was called, and the session goes on"
        there = keys_of(observer)
        assert {"mine", "kept"} <= there.keys(), f"the session goes on, and of its keys only these are there: {there}"
        observer.put({"seen/fence": b""}, timeout=T)
        try:
            told = self.told.until(lambda events: events and events[-1].key == "seen/fence")
        except AssertionError as error:
            raise AssertionError(f"the session goes on, and its watch does not: {error}") from None
        there = keys_of(observer, "seen/")
        assert {each.key for each in told} >= there.keys(), "the session goes on, and its watch has missed an event"
        assert self.losses.none, "on_lost was called, and the session goes on"
        return True

    def is_over(self, observer: Session | None) -> ConnectionLost:
        """Check that the session is lost, stays so, and everybody is told. Returns the reason given to ``on_lost``."""
        error = self.losses.next()
        assert isinstance(error, ConnectionLost)
        assert str(error), "on_lost was not told why"
        for _ in range(2):
            for ask in (
                lambda: self.session.put({"late": b""}, timeout=T),
                lambda: self.session.list("", timeout=T),
            ):
                with pytest.raises(ConnectionLost, match=r"\w"):
                    bounded("a call after the end of the session", ask)
        if observer is not None:
            wait_gone(observer, "mine")
            assert "late" not in keys_of(observer)
        self.session.close()
        assert self.losses.none, "on_lost was called twice"
        return error

    def comes_back(self, ttl: float) -> None:
        """Check that a session of the same backend can be opened again, as by a node that comes back."""
        again = opened(self.backend, ttl)
        assert again.put({"back": b""}, ephemeral=True, timeout=T) is not None
        assert "back" in keys_of(again)
        again.close()

    def cannot_come_back(self) -> None:
        """Check that opening a session says who is not there, and what to do, within its time-out."""
        ask = functools.partial(self.backend.open_session, LONG, on_lost=Losses(), timeout=1.0)
        with pytest.raises(EndpointUnreachable) as raised:
            bounded("open_session()", ask, 1.0)
        _, host, port, _ = split_endpoint(self.where) or ("", self.where, "", "")
        assert_says(raised.value, host, str(port))


class FaultTheme(JobTheme):
    """A theme whose tests have a ``service`` that fails, or a ``relay`` in front of it."""

    @pytest.fixture
    def service(self, job: ContractJob) -> Iterator[Service | None]:
        """The harness's service, or else the process of the node that serves the endpoint; None if there is neither."""
        service: Any = job.harness.service
        if service is not None:
            try:
                yield service
            finally:
                if not service.pids:
                    service.start_again()
        elif job.harness.kind == "coordination":
            service = ServingNode(job)
            service.start_again()
            try:
                yield service if service.serves else None
            finally:
                job.close()  # its clients first
                service.kill()
        else:
            yield None

    @pytest.fixture
    def relay(self, job: ContractJob) -> Iterator[Relay | None]:
        """A relay in front of the endpoint, or None; the first node serves the endpoint, if any node does."""
        target = relay_target(job)
        if target is None:
            yield None
        else:
            with Relay(*target) as relay:
                yield relay
                relay.let_go()
                job.close()


class ServiceFaults(FaultTheme, kind="coordination"):
    """The service is killed, frozen, partitioned, slow."""

    def test_a_service_that_is_killed_and_started_again(self, job: ContractJob, service: Service) -> None:
        subject = Subject(job, job.ttl)
        service.kill()
        subject.ask_for(_SHORT_S)
        service.start_again()
        observer = job.session()
        subject.settle(observer)
        subject.comes_back(job.ttl)
        subject.session.close()
        wait_gone(observer, "mine")

    def test_a_service_that_is_killed_for_good(self, job: ContractJob, service: Service) -> None:
        subject = Subject(job, job.ttl)
        service.kill()
        subject.is_over(None)
        subject.cannot_come_back()
        bounded("close() of the backend", subject.backend.close)

    def test_a_service_that_is_frozen_for_longer_than_sessions_live(self, job: ContractJob, service: Service) -> None:
        subject = Subject(job, job.ttl)
        with frozen(service):
            subject.ask_for(1.5 * subject.session.ttl)
        observer = job.session()
        subject.settle(observer)
        subject.comes_back(job.ttl)

    def test_connections_that_break_while_the_service_goes_on(self, job: ContractJob, relay: Relay) -> None:
        observer = job.session()
        subject = Subject(job, job.ttl, behind(job, relay))
        observer.put({"seen/before": b""}, timeout=T)
        subject.told.take(1)
        relay.cut()
        observer.put({"seen/meanwhile": b""}, timeout=T)
        subject.settle(observer)
        subject.comes_back(job.ttl)

    def test_a_network_that_is_parted_for_a_moment_loses_nobody(self, job: ContractJob, relay: Relay) -> None:
        observer = job.session()
        subject = Subject(job, LONG, behind(job, relay))
        relay.hold()
        observer.put({"seen/meanwhile": b""}, timeout=T)
        subject.nobody_answers()
        relay.let_go()
        assert subject.settle(observer), "the session was lost, long before its time to live"

    def test_a_network_that_is_parted_for_longer_than_sessions_live(self, job: ContractJob, relay: Relay) -> None:
        # the others are told that the node is gone, and it finds out itself; nobody goes on with half of it
        observer, others = job.session(), Recorder()
        subject = Subject(job, job.ttl, behind(job, relay))
        observer.watch("mine", others, timeout=T)
        relay.hold()
        assert others.take(2, end_of(subject.session.ttl))[1] == ("mine", None)
        subject.cannot_come_back()
        told_meanwhile = not subject.losses.none
        relay.let_go()
        error = subject.is_over(observer)
        assert error.silent or not told_meanwhile, f"nothing was heard for its time to live; not said by: {error!r}"
        subject.comes_back(job.ttl)

    def test_a_slow_network_is_only_slow(self, job: ContractJob, relay: Relay) -> None:
        observer = job.session()
        relay.slow(0.1)
        subject = Subject(job, max(job.ttl, 15.0), behind(job, relay))
        for count in range(3):
            observer.put({f"seen/{count}": b""}, timeout=T)
            assert subject.session.create(f"made/{count}", b"", timeout=T)[0]
        assert subject.told.take(3) == [(f"seen/{count}", b"") for count in range(3)]
        assert subject.settle(observer), "the session was lost, though all its signs of life come through"


class StateFaults(FaultTheme, kind="state"):
    """The service is killed; connections break, are refused, are slow."""

    def test_a_state_whose_service_is_killed_and_started_again(self, job: ContractJob, service: Service) -> None:
        node = job.created()
        _, token, _ = node.set_state(b"1")
        service.kill()
        try:
            assert not answered("get_state()", node.get_state), "a state was read of a service that is not there"
            assert not answered("set_state()", lambda: node.set_state(b"2", token)), "it was written"
        finally:
            service.start_again()
        assert state_of(job.created()) == (b"1" if service.keeps_data else None)

    def test_a_state_whose_connections_break_is_right_or_says_that_it_is_lost(
        self, job: ContractJob, relay: Relay
    ) -> None:
        other = job.created()  # it serves if any node does
        node = job.created(behind(job, relay), conf=job.not_serving())
        _, token, _ = node.set_state(b"1")
        relay.cut()
        assert other.set_state(b"2", token)[2] is True
        if answered("get_state()", node.get_state):
            assert state_of(node) == b"2"
            assert node.set_state(b"3", token)[:1] == (b"2",)
        assert state_of(other) == b"2", "a write with a stale token was done"

    def test_a_state_that_cannot_be_reached_any_more_is_an_error_and_not_an_empty_state(
        self, job: ContractJob, relay: Relay
    ) -> None:
        other = job.created()  # it serves if any node does
        node = job.created(behind(job, relay), conf=job.not_serving())
        node.set_state(b"1")
        relay.refuse()
        assert not answered("get_state()", node.get_state), "a state that cannot be reached was read"
        assert not answered("set_state()", lambda: node.set_state(b"2")), "it was written"
        assert state_of(other) == b"1"

    def test_a_slow_network_is_only_slow_for_a_state(self, job: ContractJob, relay: Relay) -> None:
        other = job.created()  # it serves if any node does
        node = job.created(behind(job, relay), conf=job.not_serving())
        relay.slow(0.1)
        _, token, written = node.set_state(b"1")
        assert written, "set_state() says that it has not written, and nobody else has"
        assert other.set_state(b"2", token)[2] is True
        assert node.set_state(b"3", token)[2] is False
        assert state_of(node) == b"2"


def is_known(error: BaseException) -> bool:
    """Whether the contract names the error: a rendezvous error of ours or of torch's, or an ``OSError``."""
    return isinstance(error, (RendezvousFailed, OSError)) or any(
        each.__name__ == "RendezvousError" and each.__module__.startswith("torch.") for each in type(error).__mro__
    )


def answered(what: str, ask: Callable[[], object]) -> bool:
    """Whether the call returns; if not, it has to raise an error that says so."""
    try:
        bounded(what, ask)
    except Exception as error:
        if not is_known(error):
            raise AssertionError(
                f"{what} raised {type(error).__name__}, not EndpointLost or the like: {error}"
            ) from error
        assert_says(error)
        return False
    return True


def relay_target(job: ContractJob) -> tuple[str, int] | None:
    """Where a relay has to lead; None if there can be none."""
    found = split_endpoint(job.endpoint) if job.harness.dialled else None
    return None if found is None else (found[1], found[2])


def behind(job: ContractJob, relay: Relay) -> str:
    """The job's endpoint as dialled through the relay, which is on this machine wherever the service is."""
    found = split_endpoint(job.endpoint)
    assert found is not None
    before, host, _, after = found
    # a name that also leads to the relay is kept: a certificate may be for it
    return f"{before}{host if host == 'localhost' else '127.0.0.1'}:{relay.port}{after}"


@contextlib.contextmanager
def frozen(service: Service) -> Iterator[None]:
    """Stop all its processes with SIGSTOP, and let them continue at the end."""
    stopped: list[int] = []
    assert service.pids, "the harness's service says that it has no process"
    try:
        while new := [pid for pid in service.pids if pid not in stopped]:  # one may just have started another
            for pid in new:
                stopped.append(pid)
                stop(pid)
        yield
    finally:
        for pid in stopped:
            send(pid, signal.SIGCONT)
