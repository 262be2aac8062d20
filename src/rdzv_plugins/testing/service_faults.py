"""Failures of the service and of the network between it and the nodes: part of the theme ``failure``.

For a ``CoordinationBackend``. Services differ: one tells sessions by their connections, another lets them go on while
it is away. What all promise is checked by ``Subject.settle``: a session lives, with its keys and with every event, or
it is lost, and then everybody is told so.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator

import pytest

from rdzv_plugins.coordination import Session
from rdzv_plugins.errors import ConnectionLost, EndpointUnreachable
from rdzv_plugins.testing.backend_job import Job, JobTheme, ServingNode, of_kind, split_endpoint
from rdzv_plugins.testing.coordination_parts import (
    LONG,
    PATIENCE,
    Losses,
    Recorder,
    assert_says,
    bounded,
    keys_of,
    opened,
    stop,
    wait_gone,
)
from rdzv_plugins.testing.harness import Service
from rdzv_plugins.testing.relay import Relay

T = PATIENCE
_SHORT_S = 0.3
NO_HANDLE = "not tried: the harness has no handle on the processes of the service"
NO_RELAY = "not tried: the endpoint is not one host and port of TCP, so that no relay can be put in front of it"


class Subject:
    """A node whose service or network fails: its session, an ephemeral key, a key that stays, a watch."""

    def __init__(self, job: Job, ttl: float, endpoint: str | None = None) -> None:
        conf = job.not_serving() if endpoint is not None else {}
        self.backend = job.backend(endpoint, conf=conf)
        self.losses, self.told, self.where = Losses(), Recorder(), endpoint or job.endpoint
        self.session = opened(self.backend, ttl, self.losses)
        self.session.put({"mine": b""}, ephemeral=True, timeout=T)
        self.session.put({"kept": b""}, timeout=T)
        self.session.watch("seen/", self.told, timeout=T)

    def ask(self, timeout: float) -> bool:
        """Whether a request is done; False if it was not in time. Raises ``ConnectionLost`` after the end."""
        try:
            bounded("put()", lambda: self.session.put({"asked": b""}, timeout=timeout))
        except TimeoutError as error:
            assert_says(error)
            return False
        return True

    def ask_for(self, seconds: float) -> None:
        """Go on asking for so long while nobody answers, or until the session is lost."""
        end = time.monotonic() + seconds
        with contextlib.suppress(ConnectionLost):
            while time.monotonic() < end:
                self.ask(_SHORT_S)

    def settle(self, observer: Session) -> bool:
        """Whether the session lives, once that is known; and it is true in all its consequences."""
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
        told = self.told.until(lambda events: events and events[-1].key == "seen/fence")
        there = keys_of(observer, "seen/")
        assert {each.key for each in told} >= there.keys(), "the session goes on, and its watch has missed an event"
        assert self.losses.none
        return True

    def is_over(self, observer: Session | None) -> ConnectionLost:
        """The session is lost: everybody is told so, and it stays so. Returns the reason given to ``on_lost``."""
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
        """By another session of the same backend, as a node does."""
        again = opened(self.backend, ttl)
        assert again.put({"back": b""}, ephemeral=True, timeout=T) is not None
        assert "back" in keys_of(again)
        again.close()

    def cannot_come_back(self) -> None:
        """Opening a session says who is not there, and what to do, within its time-out."""
        with pytest.raises(EndpointUnreachable) as raised:
            bounded("open_session()", lambda: opened_within(self, 1.0))
        _, host, port, _ = split_endpoint(self.where) or ("", self.where, "", "")
        assert_says(raised.value, host, str(port))


def opened_within(subject: Subject, timeout: float) -> Session:
    """A session of a new time-out, for who expects none."""
    return subject.backend.open_session(LONG, on_lost=Losses(), timeout=timeout)


class ServiceFaults(JobTheme):
    """The service is killed, frozen, parted, slow."""

    @pytest.fixture
    def service(self, job: Job) -> Iterator[Service | None]:
        """The harness's, or else the process of the node that serves the endpoint; None where there is neither."""
        if job.harness.kind != "coordination":
            yield None
        elif job.harness.service is not None:
            service = job.harness.service
            try:
                yield service
            finally:
                if not service.pids:
                    service.start_again()
        else:
            node = ServingNode(job.options_of_a_client(), job.harness.environment)
            node.start_again()
            try:
                yield node if node.serves else None
            finally:
                job.close()  # its clients first
                node.kill()

    @pytest.fixture
    def relay(self, job: Job) -> Iterator[Relay | None]:
        """In front of the endpoint, which the job's first node serves if anybody of it does."""
        target = relay_target(job)
        if target is None:
            yield None
        else:
            with Relay(*target) as relay:
                yield relay
                relay.let_go()
                job.close()

    @of_kind("coordination")
    def test_a_service_that_is_killed_and_started_again(self, job: Job, service: Service | None) -> None:
        if service is None:
            return job.gap(NO_HANDLE)
        subject = Subject(job, job.ttl)
        service.kill()
        subject.ask_for(_SHORT_S)
        service.start_again()
        observer = job.session()
        subject.settle(observer)
        subject.comes_back(job.ttl)
        subject.session.close()
        wait_gone(observer, "mine")
        return None

    @of_kind("coordination")
    def test_a_service_that_is_killed_for_good(self, job: Job, service: Service | None) -> None:
        if service is None:
            return job.gap(NO_HANDLE)
        subject = Subject(job, job.ttl)
        service.kill()
        subject.is_over(None)
        subject.cannot_come_back()
        bounded("close() of the backend", subject.backend.close)
        return None

    @of_kind("coordination")
    def test_a_service_that_is_frozen_for_a_moment_loses_nobody(self, job: Job, service: Service | None) -> None:
        if service is None:
            return job.gap(NO_HANDLE)
        subject, observer = Subject(job, LONG), job.session()
        with frozen(service):
            assert not subject.ask(_SHORT_S), "a service that stands still has answered"
        assert subject.settle(observer), "the session was lost, long before its time to live"
        return None

    @of_kind("coordination")
    def test_a_service_that_is_frozen_for_longer_than_sessions_live(self, job: Job, service: Service | None) -> None:
        if service is None:
            return job.gap(NO_HANDLE)
        subject = Subject(job, job.ttl)
        with frozen(service):
            subject.ask_for(1.5 * subject.session.ttl)
        observer = job.session()
        subject.settle(observer)
        subject.comes_back(job.ttl)
        return None

    @of_kind("coordination")
    def test_connections_that_break_while_the_service_goes_on(self, job: Job, relay: Relay | None) -> None:
        if relay is None:
            return job.gap(NO_RELAY)
        observer = job.session()
        subject = Subject(job, job.ttl, behind(job, relay))
        observer.put({"seen/before": b""}, timeout=T)
        subject.told.take(1)
        relay.cut()
        observer.put({"seen/meanwhile": b""}, timeout=T)
        subject.settle(observer)
        subject.comes_back(job.ttl)
        return None

    @of_kind("coordination")
    def test_a_network_that_is_parted_for_a_moment_loses_nobody(self, job: Job, relay: Relay | None) -> None:
        if relay is None:
            return job.gap(NO_RELAY)
        observer = job.session()
        subject = Subject(job, LONG, behind(job, relay))
        relay.hold()
        observer.put({"seen/meanwhile": b""}, timeout=T)
        assert not subject.ask(_SHORT_S), "somebody has answered through a network that is parted"
        relay.let_go()
        assert subject.settle(observer), "the session was lost, long before its time to live"
        return None

    @of_kind("coordination")
    def test_a_network_that_is_parted_for_longer_than_sessions_live(self, job: Job, relay: Relay | None) -> None:
        # the others are told that the node is gone, and it finds that out itself; nobody goes on with half of it
        if relay is None:
            return job.gap(NO_RELAY)
        observer, others = job.session(), Recorder()
        subject = Subject(job, job.ttl, behind(job, relay))
        observer.watch("mine", others, timeout=T)
        relay.hold()
        assert others.take(2)[1] == ("mine", None)
        subject.cannot_come_back()
        told_meanwhile = not subject.losses.none
        relay.let_go()
        error = subject.is_over(observer)
        assert error.silent or not told_meanwhile, f"nothing was heard for its time to live; not said by: {error!r}"
        subject.comes_back(job.ttl)
        return None

    @of_kind("coordination")
    def test_a_slow_network_is_only_slow(self, job: Job, relay: Relay | None) -> None:
        if relay is None:
            return job.gap(NO_RELAY)
        observer = job.session()
        relay.slow(0.1)
        subject = Subject(job, max(job.ttl, 5.0), behind(job, relay))
        for count in range(3):
            observer.put({f"seen/{count}": b""}, timeout=T)
            assert subject.session.create(f"made/{count}", b"", timeout=T)[0]
        assert subject.told.take(3) == [(f"seen/{count}", b"") for count in range(3)]
        assert subject.settle(observer), "the session was lost, though all its signs of life come through"
        return None


def relay_target(job: Job) -> tuple[str, int] | None:
    """Where a relay has to lead; None where there can be none."""
    found = split_endpoint(job.endpoint) if job.harness.dialled else None
    return None if found is None else (found[1], found[2])


def behind(job: Job, relay: Relay) -> str:
    """The job's endpoint, as it is dialled through the relay."""
    found = split_endpoint(job.endpoint)
    assert found is not None
    before, host, _, after = found
    return f"{before}{'127.0.0.1' if host in ('localhost', '::1') else host}:{relay.port}{after}"


@contextlib.contextmanager
def frozen(service: Service) -> Iterator[None]:
    """SIGSTOP to all its processes, and at the end SIGCONT."""
    pids = service.pids
    assert pids, "the harness's service says that it has no process"
    try:
        for pid in pids:
            stop(pid)
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
