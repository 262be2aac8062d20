"""Signals, notices of preemption and what agents do about them, whenever they come: whole agents in simulated time."""

from __future__ import annotations

import pytest
from msgspec import structs

from rdzv_plugins.runtime import SIG_IGN, Signals
from simulation.agent import Options
from simulation.job import Job, fails
from simulation.static_jobs import StaticJob
from simulation.workers import Does

ENDLESS = Does(runs=float("inf"))
DEAF = Does(runs=float("inf"), ends_in=None)
NOTICED = Options(preempt_grace=60.0, preempt_signals=frozenset({Signals.SIGUSR1}))


def working(*, does: Does = ENDLESS, options: Options | None = None, nodes: int = 2, low: int = 1) -> Job:
    job = Job(nodes, lambda *_: does, options, low=low, high=nodes)
    job.until(job.works)
    return job


@pytest.mark.parametrize(("number", "code"), [(Signals.SIGTERM, 143), (Signals.SIGINT, 130), (Signals.SIGHUP, 129)])
def test_a_signal_ends_a_node_with_128_and_its_number(number: Signals, code: int) -> None:
    job = working(nodes=1)
    job[0].signal(number)
    job.run()
    assert job.codes == [code]
    assert job[0].machine.workers[0].signals == [number]


def test_workers_that_do_not_end_are_killed_after_the_shutdown_timeout() -> None:
    job = working(does=DEAF, nodes=1, options=Options(shutdown_timeout=20.0))
    began = job.now
    job[0].signal(Signals.SIGTERM)
    job.until(lambda: not job[0].workers)
    assert 20.0 <= job.now - began < 22.0
    assert job.run().codes == [143]


def test_workers_may_take_until_the_shutdown_timeout_to_end() -> None:
    job = working(does=Does(runs=float("inf"), ends_in=19.0), nodes=1, options=Options(shutdown_timeout=20.0))
    job[0].signal(Signals.SIGTERM)
    job.run()
    assert job[0].machine.workers[0].entry.status == Signals.SIGTERM


def test_a_second_signal_kills_the_workers_at_once() -> None:
    job = working(does=DEAF, nodes=1)
    began = job.now
    job[0].signal(Signals.SIGTERM)
    job.after(1.0)
    job[0].signal(Signals.SIGTERM)
    job.until(lambda: not job[0].workers)
    assert job.now - began < 2.0
    assert job.run().codes == [143]


@pytest.mark.parametrize("stage", ["joining", "working", "stopping", "barrier", "delaying"])
def test_a_signal_ends_a_node_whatever_it_is_doing(stage: str) -> None:
    """When it works: before its first worker has been started."""

    def plan(group, _):  # type: ignore[no-untyped-def]
        if stage == "barrier":
            return Does(runs=5.0 if group.group_rank == 0 else 60.0)
        if group.generation > 3:
            return Does()
        return Does(runs=5.0 + group.group_rank, code=1 - group.group_rank, ends_in=3.0)

    job = Job(plan=plan, options=Options(max_restarts=9, restart_delay=30.0, crash_loop="off"), low=1, high=2)
    job.until(lambda: job[0].stage == stage and (stage != "working" or not job[0].workers))
    job[0].signal(Signals.SIGTERM)
    job.until(lambda: job[0].over, 60.0)
    job.run()
    assert job.codes == [143, 0]


@pytest.mark.parametrize(("number", "code"), [(Signals.SIGTERM, 143), (Signals.SIGUSR1, 81)])
def test_a_signal_or_notice_ends_the_wait_for_other_nodes_at_once(number: Signals, code: int) -> None:
    job = Job(nodes=1, low=2, high=2, options=NOTICED)
    job.after(20.0)
    job[0].signal(number)
    job.until(lambda: job[0].over, 5.0)
    assert job.run().codes == [code]


def test_a_signal_while_the_handler_is_being_made() -> None:
    job = Job(nodes=1, starts=False)
    agent = job.add()
    agent.prepares_in = 5.0
    job.after(1.0)
    agent.signal(Signals.SIGTERM)
    job.run()
    assert job.codes == [143]
    assert not agent.groups


def test_a_signal_that_was_ignored_when_the_agent_was_started_stays_ignored() -> None:
    """As below nohup."""
    job = Job(nodes=1, starts=False)
    agent = job.add()
    agent.entry.handlers[Signals.SIGHUP] = SIG_IGN
    job.until(job.works)
    agent.signal(Signals.SIGHUP)
    job.run()
    assert job.codes == [0]


def test_a_node_with_a_notice_has_its_workers_save_and_ends_with_81() -> None:
    job = working(options=NOTICED)
    job[1].go_on, job[1].saves_in = True, 7.0
    began = job.now
    job[1].signal(Signals.SIGUSR1)
    job.until(lambda: not job[1].workers)
    assert 7.0 <= job.now - began < 8.0
    job.until(lambda: job[1].over)
    assert job[1].exit_code == 81
    job.until(lambda: job.works(job[0]) and len(job[0].groups) == 2)
    job[0].signal(Signals.SIGTERM)
    job.run()
    assert job.restarts == [0, 0]


def test_workers_that_do_not_save_are_killed_before_the_grace_is_over() -> None:
    job = working(does=DEAF, nodes=1, options=NOTICED)
    began = job.now
    job[0].signal(Signals.SIGUSR1)
    job.run()
    assert job.codes == [81]
    assert 50.0 < job.now - began < 64.0


def test_when_too_few_nodes_are_left_by_a_preemption_all_end_with_81() -> None:
    job = working(options=NOTICED, low=2)
    job[1].go_on, job[1].saves_in = False, 5.0
    job[1].signal(Signals.SIGUSR1)
    job.run()
    assert job.codes == [81, 81]


def test_a_node_with_a_notice_begins_no_other_round() -> None:
    job = Job(
        plan=fails(0, times=1, after=20.0),
        options=Options(max_restarts=3, preempt_grace=60.0, preempt_signals=frozenset({Signals.SIGUSR1})),
        low=1,
        high=2,
    )
    job.until(job.works)
    job[1].signal(Signals.SIGUSR1)
    job.run()
    assert job.codes == [0, 81]
    assert len(job[1].groups) == 1


def test_a_node_with_a_notice_ends_with_81_if_its_job_hangs_then() -> None:
    job = working(nodes=1, options=NOTICED)
    job[0].signal(Signals.SIGUSR1)
    job.after(2.0)
    job.hang(job[0])
    assert job.run().codes == [81]


def test_a_signal_ends_a_node_that_has_a_notice() -> None:
    job = working(nodes=1, options=NOTICED)
    job[0].signal(Signals.SIGUSR1)
    job.after(1.0)
    job[0].signal(Signals.SIGTERM)
    job.run()
    assert job.codes == [143]


def test_a_second_notice_stops_the_workers_and_a_third_kills_them() -> None:
    job = working(does=DEAF, nodes=1, options=NOTICED)
    worker = job[0].workers[0]
    job[0].signal(Signals.SIGUSR1)
    job.after(2.0)
    assert worker.signals == []
    job[0].signal(Signals.SIGUSR1)
    job.after(2.0)
    assert worker.signals == [Signals.SIGTERM]
    job[0].signal(Signals.SIGUSR1)
    job.until(lambda: not worker.entry.lives, 1.0)
    assert job.run().codes == [81]


def test_the_end_of_the_grace_ends_the_exit_barrier() -> None:
    plan = lambda group, _: Does(runs=10.0 if group.group_rank == 0 else 300.0)  # noqa: E731
    job = Job(2, plan, NOTICED, low=1)
    job.until(job.works)
    began = job.now
    job[0].signal(Signals.SIGUSR1)
    job.until(lambda: job[0].over)
    assert job.now - began < 60.0
    job.run()
    assert job.codes[0] == 81


@pytest.mark.parametrize("kind", [Job, StaticJob])
@pytest.mark.parametrize("runs", [48.5, 49.0, 49.5])
def test_nobody_is_done_in_a_job_that_a_done_node_has_ended(kind: type[Job], runs: float) -> None:
    """It had arrived at the exit barrier, and the last ones arrive there before they have looked whether it is over."""
    plan = lambda group, _: Does(runs=10.0 if group.group_rank == 0 else runs)  # noqa: E731
    job = kind(3, plan, structs.replace(NOTICED, monitor_interval=2.0))
    job.until(job.works)
    job[0].go_on = False
    job[0].signal(Signals.SIGUSR1)
    assert job.run().codes == [81, 81, 81]
