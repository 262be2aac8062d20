"""Failures of the service and of the network between it and the nodes: part of the theme ``failure``.

For a ``CoordinationBackend``. Services differ: one recognises sessions by their connections, another lets them go on
while it is away. What all of them promise is checked by ``Subject.settle``: a session lives, with its keys and with
every event, or it is lost, and then everybody is told.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator

import pytest

from rdzv_plugins.testing.agents.processes import send
from rdzv_plugins.testing.contract.job import ContractJob, JobTheme, ServingNode, of_kind, split_endpoint
from rdzv_plugins.testing.contract.parts import LONG, PATIENCE, Recorder, bounded, end_of, stop, wait_gone
from rdzv_plugins.testing.faults.relay import Relay
from rdzv_plugins.testing.faults.subject import SHORT_S, Subject
from rdzv_plugins.testing.harness import Service

T = PATIENCE
NO_HANDLE = "not tried: the harness has no handle on the processes of the service"
NO_RELAY = "not tried: the endpoint is not one host and port of TCP, so that no relay can be put in front of it"


class ServiceFaults(JobTheme):
    """The service is killed, frozen, partitioned, slow."""

    @pytest.fixture
    def service(self, job: ContractJob) -> Iterator[Service | None]:
        """The harness's service, or else the process of the node that serves the endpoint; None if there is neither."""
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

    @of_kind("coordination")
    def test_a_service_that_is_killed_and_started_again(self, job: ContractJob, service: Service | None) -> None:
        if service is None:
            return job.gap(NO_HANDLE)
        subject = Subject(job, job.ttl)
        service.kill()
        subject.ask_for(SHORT_S)
        service.start_again()
        observer = job.session()
        subject.settle(observer)
        subject.comes_back(job.ttl)
        subject.session.close()
        wait_gone(observer, "mine")
        return None

    @of_kind("coordination")
    def test_a_service_that_is_killed_for_good(self, job: ContractJob, service: Service | None) -> None:
        if service is None:
            return job.gap(NO_HANDLE)
        subject = Subject(job, job.ttl)
        service.kill()
        subject.is_over(None)
        subject.cannot_come_back()
        bounded("close() of the backend", subject.backend.close)
        return None

    @of_kind("coordination")
    def test_a_service_that_is_frozen_for_a_moment_loses_nobody(
        self, job: ContractJob, service: Service | None
    ) -> None:
        if service is None:
            return job.gap(NO_HANDLE)
        subject, observer = Subject(job, LONG), job.session()
        with frozen(service):
            subject.nobody_answers("a service that stands still")
        assert subject.settle(observer), "the session was lost, long before its time to live"
        return None

    @of_kind("coordination")
    def test_a_service_that_is_frozen_for_longer_than_sessions_live(
        self, job: ContractJob, service: Service | None
    ) -> None:
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
    def test_connections_that_break_while_the_service_goes_on(self, job: ContractJob, relay: Relay | None) -> None:
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
    def test_a_network_that_is_parted_for_a_moment_loses_nobody(self, job: ContractJob, relay: Relay | None) -> None:
        if relay is None:
            return job.gap(NO_RELAY)
        observer = job.session()
        subject = Subject(job, LONG, behind(job, relay))
        relay.hold()
        observer.put({"seen/meanwhile": b""}, timeout=T)
        subject.nobody_answers("a network that is parted")
        relay.let_go()
        assert subject.settle(observer), "the session was lost, long before its time to live"
        return None

    @of_kind("coordination")
    def test_a_network_that_is_parted_for_longer_than_sessions_live(
        self, job: ContractJob, relay: Relay | None
    ) -> None:
        # the others are told that the node is gone, and it finds out itself; nobody goes on with half of it
        if relay is None:
            return job.gap(NO_RELAY)
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
        return None

    @of_kind("coordination")
    def test_a_slow_network_is_only_slow(self, job: ContractJob, relay: Relay | None) -> None:
        if relay is None:
            return job.gap(NO_RELAY)
        observer = job.session()
        relay.slow(0.1)
        subject = Subject(job, max(job.ttl, 15.0), behind(job, relay))
        for count in range(3):
            observer.put({f"seen/{count}": b""}, timeout=T)
            assert subject.session.create(f"made/{count}", b"", timeout=T)[0]
        assert subject.told.take(3) == [(f"seen/{count}", b"") for count in range(3)]
        assert subject.settle(observer), "the session was lost, though all its signs of life come through"
        return None


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
