"""Workers in uninterruptible sleep: which of them count as stuck, and when."""

from __future__ import annotations

import os

from rdzv_launcher.run.agent.events import Stuck
from rdzv_launcher.run.agent.stuck_workers import StuckWorkers, process_state

PIDS = {0: 10, 1: 11}


def test_who_sleeps_in_all_looks_of_that_time_is_stuck() -> None:
    states = {10: "S", 11: "D"}
    workers = StuckWorkers(8.0, states.__getitem__)
    assert workers.look_at(100.0) == 101.0
    assert workers.look(PIDS, 100.0) is None
    assert workers.look(PIDS, 107.9) is None
    assert workers.look(PIDS, 108.5) == Stuck(1, 11, 8.5)


def test_who_wakes_in_between_is_not() -> None:
    states = {10: "S", 11: "D"}
    workers = StuckWorkers(8.0, states.__getitem__)
    workers.look(PIDS, 100.0)
    states[11] = "R"
    workers.look(PIDS, 104.0)
    states[11] = "D"
    assert workers.look(PIDS, 109.0) is None
    assert workers.look(PIDS, 117.0) == Stuck(1, 11, 8.0)


def test_nobody_looks_without_a_time() -> None:
    assert StuckWorkers(0.0, lambda _: "D").look_at(1.0) is None
    assert StuckWorkers(0.0, lambda _: "D").look(PIDS, 1.0) is None


def test_state_of_a_process() -> None:
    assert process_state(os.getpid()) in ("R", "S")
    assert process_state(2**22 + 1) == ""
