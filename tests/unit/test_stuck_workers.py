"""Who stands still: workers in uninterruptible sleep, and a supervisor that does not answer."""

from __future__ import annotations

import os

import pytest

from rdzv_launcher.run.agent.events import Stuck
from rdzv_launcher.run.agent.loop import StuckWorkers, process_state
from rdzv_launcher.run.keeper.keeper import BEAT_S, Heartbeat, RunningTime

PIDS = {0: 10, 1: 11}


def test_who_sleeps_in_all_looks_of_that_time_is_stuck() -> None:
    """Who wakes in between is not, and nobody looks without a time."""
    states = {10: "S", 11: "D"}
    workers = StuckWorkers(8.0, states.__getitem__)
    assert workers.look_at(100.0) == 101.0
    assert [workers.look(PIDS, at) for at in (100.0, 107.9, 108.5)] == [None, None, Stuck(1, 11, 8.5)]
    states[11] = "R"
    assert workers.look(PIDS, 109.0) is None
    states[11] = "D"
    assert [workers.look(PIDS, at) for at in (110.0, 117.0, 118.0)] == [None, None, Stuck(1, 11, 8.0)]
    never = StuckWorkers(0.0, lambda _: "D")
    assert (never.look_at(1.0), never.look(PIDS, 1.0)) == (None, None)


def test_state_of_a_process() -> None:
    assert process_state(os.getpid()) in ("R", "S")
    assert process_state(2**22 + 1) == ""


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
