"""Nothing is left behind by a backend that was closed: part of the theme ``failure``."""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Callable

from rdzv_plugins.errors import ConnectionLost
from rdzv_plugins.testing.contract.census import at_rest, census
from rdzv_plugins.testing.contract.handler import handler_of
from rdzv_plugins.testing.contract.job import ContractJob, JobTheme, of_kind
from rdzv_plugins.testing.contract.parts import PATIENCE, Losses, Recorder, opened, wait_until
from rdzv_plugins.testing.faults.relay import Relay
from rdzv_plugins.testing.faults.service import NO_RELAY, behind, relay_target

T = PATIENCE
_TIMES = 5


def assert_leaves_nothing(cycle: Callable[[], None], times: int = _TIMES) -> None:
    """Assert that ``times`` cycles leave fewer than ``times`` of anything: what is made once for a process may stay."""
    cycle()
    before = at_rest(census)  # otherwise what is still to go would hide what stays
    gc.freeze()  # from now on census() looks for garbage only in what is new, not in everything that was imported
    try:
        for _ in range(times):
            cycle()

        def grown() -> dict[str, int]:
            return {what: count - before[what] for what, count in census().items() if count >= before[what] + times}

        wait_until(
            lambda: not grown(),
            lambda: f"{times} times opened and closed have left {grown()}; threads: {threading.enumerate()}",
        )
    finally:
        gc.unfreeze()


class Leaks(JobTheme):
    """A launcher may be part of a process that lives on: a notebook, a test, an agent of many jobs."""

    @of_kind("coordination")
    def test_nothing_is_left_of_a_service_that_was_closed(self, job: ContractJob) -> None:
        def cycle() -> None:
            one_job, recorder = job.another(), Recorder()
            one, two = one_job.session(), one_job.session()
            one.watch("", recorder, timeout=T)
            two.create("k", b"", ephemeral=True, timeout=T)
            recorder.take(1)
            two.close()
            one_job.close()  # including the session that is left

        assert_leaves_nothing(cycle)

    @of_kind("coordination")
    def test_nothing_is_left_of_sessions_that_were_cut_off(self, job: ContractJob) -> None:
        target = relay_target(job)
        if target is None:
            return job.gap(NO_RELAY)
        job.session()

        def cycle() -> None:
            with Relay(*target) as relay:
                backend = job.backend(behind(job, relay), conf=job.not_serving())
                session = opened(backend, job.ttl, Losses())
                session.watch("", Recorder(), timeout=T)
                relay.refuse()
                with contextlib.suppress(ConnectionLost, TimeoutError):
                    session.put({"k": b""}, timeout=0.1)
                backend.close()

        assert_leaves_nothing(cycle, times=3)  # each may wait for a service to which it cannot say goodbye
        return None

    @of_kind("state")
    def test_nothing_is_left_of_a_state_that_nobody_holds_any_more(self, job: ContractJob) -> None:
        def cycle() -> None:
            one_job = job.another()
            first, second = one_job.created(), one_job.created()
            first.set_state(b"state")
            second.get_state()
            one_job.close()

        assert_leaves_nothing(cycle)

    @of_kind("handler")
    def test_nothing_is_left_of_a_handler_that_was_shut_down(self, job: ContractJob) -> None:
        def cycle() -> None:
            one_job = job.another()
            handler_of(one_job, nodes=1).next_rendezvous()
            one_job.close()

        assert_leaves_nothing(cycle)
