"""Whole agents on the real elastic engine, in simulated time."""

from __future__ import annotations

import pytest

from rdzv_plugins.runtime import Signals
from simulation.agent import Options, Plan
from simulation.job import Job, fails, failure_of
from simulation.whole import on_engine
from simulation.workers import Does

LONG = Does(runs=60.0)


def whole(nodes: int, plan: Plan, options: Options | None = None, *, low: int | None = None) -> Job:
    job = on_engine(Job(plan=plan, options=options, low=low or nodes, high=nodes, starts=False))
    for _ in range(nodes):
        job.add()
    return job


def test_a_job_is_done() -> None:
    assert whole(3, lambda *_: Does(), Options(workers=2)).run().codes == [0, 0, 0]


def test_a_worker_that_fails_is_restarted_with_all_others() -> None:
    job = whole(3, fails(1, code=3), Options(max_restarts=1)).run()
    assert job.codes == [0, 0, 0]
    assert sum(job.restarts) == 1


def test_restarts_that_are_used_up_end_the_job_everywhere() -> None:
    job = whole(3, fails(1, code=3, times=9), Options(max_restarts=1)).run()
    assert job.codes == [3, 3, 3]
    assert len({failure_of(each).pid for each in job.agents}) == 1


def test_of_two_failures_all_name_the_same_one() -> None:
    job = whole(2, lambda group, _: Does(runs=5.0, code=3 + group.group_rank)).run()
    assert job.codes in ([3, 3], [4, 4])
    assert [failure_of(each).exit_code for each in job.agents] == job.codes


@pytest.mark.parametrize("number", [Signals.SIGKILL, Signals.SIGTERM])
def test_the_others_go_on_without_a_node_and_use_no_restart(number: Signals) -> None:
    job = whole(3, lambda *_: LONG, low=2)
    job.until(job.works)
    job[1].signal(number)
    job.run()
    assert job.codes == [0, 143 if number is Signals.SIGTERM else None, 0]
    assert job.restarts == [0, 0, 0]


def test_a_node_that_stood_still_comes_back() -> None:
    job = whole(3, lambda *_: LONG, low=2)
    job.until(job.works)
    job[1].freeze()
    job.until(lambda: len(job[0].groups) == 2)
    job[1].thaw()
    job.run()
    assert job.codes == [0, 0, 0]
    assert job.restarts == [0, 0, 0]
