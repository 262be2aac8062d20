"""Failures of the network between a node and its state: part of the theme ``failure``, for a ``RendezvousBackend``.

torch's handler on such a backend expects an answer or an error that it knows. How long an answer may take is not
promised, so a silently partitioned network is not tried.
"""

from __future__ import annotations

from collections.abc import Callable

from rdzv_plugins.errors import RendezvousFailed
from rdzv_plugins.testing.contract.job import ContractJob, JobTheme, of_kind
from rdzv_plugins.testing.contract.parts import assert_says, bounded
from rdzv_plugins.testing.contract.state import state_of
from rdzv_plugins.testing.faults.relay import Relay
from rdzv_plugins.testing.faults.service import NO_HANDLE, NO_RELAY, behind, relay_target


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


class StateFaults(JobTheme):
    """The service is killed; connections break, are refused, are slow."""

    @of_kind("state")
    def test_a_state_whose_service_is_killed_and_started_again(self, job: ContractJob) -> None:
        service = job.harness.service
        if service is None:
            return job.gap(NO_HANDLE)
        node = job.created()
        _, token, _ = node.set_state(b"1")
        service.kill()
        try:
            assert not answered("get_state()", node.get_state), "a state was read of a service that is not there"
            assert not answered("set_state()", lambda: node.set_state(b"2", token)), "it was written"
        finally:
            service.start_again()
        assert state_of(job.created()) == (b"1" if service.keeps_data else None)
        return None

    @of_kind("state")
    def test_a_state_whose_connections_break_is_right_or_says_that_it_is_lost(self, job: ContractJob) -> None:
        target = relay_target(job)
        if target is None:
            return job.gap(NO_RELAY)
        other = job.created()  # it serves if any node does
        with Relay(*target) as relay:
            node = job.created(behind(job, relay), conf=job.not_serving())
            _, token, _ = node.set_state(b"1")
            relay.cut()
            assert other.set_state(b"2", token)[2] is True
            if answered("get_state()", node.get_state):
                assert state_of(node) == b"2"
                assert node.set_state(b"3", token)[:1] == (b"2",)
            assert state_of(other) == b"2", "a write with a stale token was done"
        return None

    @of_kind("state")
    def test_a_state_that_cannot_be_reached_any_more_is_an_error_and_not_an_empty_state(self, job: ContractJob) -> None:
        target = relay_target(job)
        if target is None:
            return job.gap(NO_RELAY)
        other = job.created()  # it serves if any node does
        with Relay(*target) as relay:
            node = job.created(behind(job, relay), conf=job.not_serving())
            node.set_state(b"1")
            relay.refuse()
            assert not answered("get_state()", node.get_state), "a state that cannot be reached was read"
            assert not answered("set_state()", lambda: node.set_state(b"2")), "it was written"
            assert state_of(other) == b"1"
        return None

    @of_kind("state")
    def test_a_network_that_is_parted_in_silence(self, job: ContractJob) -> None:
        job.gap("not tried: the contract of a RendezvousBackend says nothing of how long an answer may take")

    @of_kind("state")
    def test_a_slow_network_is_only_slow_for_a_state(self, job: ContractJob) -> None:
        target = relay_target(job)
        if target is None:
            return job.gap(NO_RELAY)
        other = job.created()  # it serves if any node does
        with Relay(*target) as relay:
            node = job.created(behind(job, relay), conf=job.not_serving())
            relay.slow(0.1)
            _, token, written = node.set_state(b"1")
            assert written, "set_state() says that it has not written, and nobody else has"
            assert other.set_state(b"2", token)[2] is True
            assert node.set_state(b"3", token)[2] is False
            assert state_of(node) == b"2"
        return None
