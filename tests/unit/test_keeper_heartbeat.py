"""When a keeper counts as standing still. What an agent does about its workers then: tests/simulation."""

from __future__ import annotations

import pytest

from rdzv_launcher.run.keeper.heartbeat import BEAT_S, Heartbeat, RunningTime


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_time_in_which_the_agent_did_not_run_does_not_count() -> None:
    clock = Clock()
    ran = RunningTime(clock)
    for _ in range(10):
        clock.now += 0.5
        ran()
    assert ran() == 5.0
    clock.now += 3600.0  # SIGSTOP, a machine that sleeps
    assert ran() == 5.0 + 2 * BEAT_S


@pytest.mark.parametrize("taken", [True, False])
def test_it_is_asked_once_in_a_beat_and_again_if_that_was_not_taken(taken: bool) -> None:
    """The time counts from the first question, and anything is an answer."""
    clock = Clock()
    beat = Heartbeat(clock)
    assert not beat.due
    clock.now += BEAT_S
    assert beat.due
    beat.asked(taken)
    clock.now += 2.0
    assert (beat.due, beat.unanswered) == (not taken, 2.0)
    beat.asked(True)
    assert (beat.due, beat.unanswered) == (False, 2.0)
    beat.heard()
    assert (beat.due, beat.unanswered) == (False, 0.0)
