"""Agents, supervisors and hosts that are killed or stand still, and the fence: whole agents in simulated time."""

from __future__ import annotations

import pytest

from rdzv_plugins.errors import BrokenPlugin
from rdzv_plugins.runtime import Signals
from simulation.agent import Options
from simulation.job import Job, failure_of
from simulation.workers import Does

TTL_S = 6.0
LONG = Does(runs=60.0)


def working(does: Does = LONG, options: Options | None = None, *, nodes: int = 2, low: int = 1) -> Job:
    job = Job(nodes, lambda *_: does, options, low=low, high=nodes, ttl=TTL_S)
    job.until(job.works)
    return job


@pytest.mark.parametrize("supervisor", ["runs", "is stopped"])
def test_nothing_outlives_an_agent_that_is_killed(supervisor: str) -> None:
    job = working(Does(runs=60.0, ends_in=None, background=LONG))
    if supervisor == "is stopped":
        job.processes.signal(job[1].machine.supervisor.entry, Signals.SIGSTOP)
    job[1].kill()
    job.after(2.0)
    assert job[1].alive == []
    assert job.run().codes == [0, None]


@pytest.mark.parametrize(("number", "code"), [(Signals.SIGKILL, None), (Signals.SIGTERM, 143)])
def test_losing_a_node_uses_no_restart(number: Signals, code: int | None) -> None:
    """The workers of the others fail with it, and there is no restart to use."""
    job = working(nodes=3)
    job[1].signal(number)
    job.run()
    assert job.codes == [0, code, 0]
    assert job.restarts == [0, 0, 0]
    assert [len(each.groups) for each in (job[0], job[2])] == [2, 2]


def test_a_node_that_ends_by_an_error_of_its_own_is_no_failure_of_the_others() -> None:
    """One of its workers ends at once, and those of others fail with it; another one takes its time."""
    plan = lambda group, local_rank: Does(runs=60.0, ends_in=10.0 * local_rank * group.group_rank + 0.1)  # noqa: E731
    job = Job(2, plan, Options(workers=2), low=1)
    job.until(job.works)

    def breaks() -> int:
        raise BrokenPlugin("its plug-in has a fault")

    job[1].handler.num_nodes_waiting = breaks
    job.run()
    assert job.codes == [0, BrokenPlugin.exit_code]
    assert job.restarts == [0, 0]


def test_a_worker_of_an_earlier_round_is_not_to_blame_for_the_end_of_a_later_one() -> None:
    """It has failed with a lost node; the report of that is for its own round, however late it is."""
    plan = lambda group, local_rank: LONG if group.generation == 1 else Does(runs=5.0, code=3)  # noqa: E731
    job = Job(2, plan, Options(monitor_interval=10.0), low=1)
    job.until(job.works)
    note_failure = job[0].handler.note_failure
    job[0].handler.note_failure = lambda failure: (job.scheduler.sleep(1.0), note_failure(failure))
    job[1].kill()
    job.run()
    blamed = failure_of(job[0])
    assert blamed is not None
    assert (job.codes, blamed.exit_code) == ([3, None], 3)


def test_a_short_standstill_of_an_agent_is_none_of_its_workers_business() -> None:
    job = working()
    worker = job[1].workers[0]
    job[1].freeze()
    job.after(TTL_S / 3)
    job[1].thaw()
    job.run()
    assert job.codes == [0, 0]
    assert worker.signals == []


def test_workers_are_paused_while_nobody_knows_whether_their_round_holds_and_go_on() -> None:
    job = working()
    worker, service = job[1].workers[0], job.meeting.service.process
    job[1].freeze()
    job.after(TTL_S / 2)
    job.scheduler.freeze(service)  # it cannot end the session
    job.until(lambda: worker.entry.state == "T", 2 * TTL_S)
    job[1].thaw()
    job.after(0.2)
    job.scheduler.thaw(service)
    job.until(lambda: worker.entry.state == "R", TTL_S)
    job.run()
    assert job.codes == [0, 0]
    assert [len(each.groups) for each in job.agents] == [1, 1]


def test_paused_workers_whose_round_is_over_meanwhile_never_go_on() -> None:
    """Their session lives, but another node has come."""
    job = Job(2, lambda *_: LONG, low=1, high=3, ttl=TTL_S)
    job.until(job.works)
    worker = job[1].workers[0]
    job[1].freeze()
    job.until(lambda: worker.entry.state == "T", 2 * TTL_S)
    job.add()
    job.until(lambda: job[0].handler.mine.over)
    job[1].thaw()
    job.run()
    assert Signals.SIGCONT not in worker.signals
    assert job.codes == [0, 0, 0]


def test_workers_of_a_node_that_was_given_up_never_run_beside_those_of_the_next_round() -> None:
    """``Job`` looks for that all the time. They are killed when their agent wakes up, and use no restart."""
    job = working()
    worker = job[1].workers[0]
    job[1].freeze()
    job.until(lambda: len(job[0].groups) == 2, 60.0)
    assert worker.entry.state == "T"
    job.after(20.0)
    job[1].thaw()
    job.until(lambda: not worker.entry.lives, 5.0)
    job.run()
    assert job.codes == [0, 0]
    assert job.restarts == [0, 0]


def test_a_session_that_ends_has_the_workers_killed_before_others_begin() -> None:
    job = working()
    job.scheduler.at(job.now, lambda: job.meeting.lose(job[1].handler))
    worker = job[1].workers[0]
    job.until(lambda: not worker.entry.lives, 1.0)
    assert worker.entry.status == Signals.SIGKILL
    job.run()
    assert job.codes == [0, 0]
    assert job.restarts == [0, 0]


@pytest.mark.parametrize("restarts", [0, 1])
@pytest.mark.parametrize("happens", ["is killed", "stands still"])
def test_workers_end_with_their_supervisor_and_are_restarted_by_another_or_the_job_ends(
    restarts: int, happens: str
) -> None:
    """One that stands still, and is not stopped, hangs in the kernel, or in a fault of ours: it is ended."""
    job = working(options=Options(max_restarts=restarts))
    supervisor = job[1].machine.supervisor
    if happens == "is killed":
        job.lose_supervisor(job[1], lambda: job.processes.signal(supervisor.entry, Signals.SIGKILL))
    else:
        job.lose_supervisor(job[1], lambda: job.scheduler.freeze(supervisor.process))
    job.until(lambda: not supervisor.entry.lives, 15.0)
    job.run()
    assert job.codes == ([0, 0] if restarts else [137, 137])
    assert job.restarts[1] == restarts
    assert len(job[1].machine.supervisors) == 1 + restarts


def test_a_supervisor_that_was_stopped_by_a_signal_is_told_to_go_on() -> None:
    job = working(options=Options(max_restarts=1))
    supervisor = job[1].machine.supervisor.entry
    job.processes.signal(supervisor, Signals.SIGSTOP)
    job.until(lambda: supervisor.state == "R", 10.0)
    job.run()
    assert job.codes == [0, 0]
    assert job.restarts == [0, 0]


def test_a_standstill_of_agent_and_supervisor_is_not_blamed_on_the_supervisor() -> None:
    """As of a virtual machine that is moved: for longer than a supervisor may stand still. The agent goes on first."""
    job = Job(1, lambda *_: Does(runs=200.0), ttl=150.0)
    job.until(job.works)
    supervisor = job[0].machine.supervisor
    job.scheduler.freeze(supervisor.process)
    job.after(3.0)
    job[0].freeze()
    job.after(60.0)
    job[0].thaw()
    job.after(1.0)
    job.scheduler.thaw(supervisor.process)
    job.run()
    assert job.codes == [0]
    assert len(job[0].machine.supervisors) == 1


@pytest.mark.parametrize("restarts", [0, 1])
def test_a_supervisor_that_is_lost_while_it_starts_workers_costs_a_restart_or_ends_the_job_with_71(
    restarts: int,
) -> None:
    job = Job(1, lambda *_: Does(), Options(workers=4, max_restarts=restarts))
    job.until(lambda: len(job[0].machine.workers) == 2)
    job.lose_supervisor(job[0], lambda: job.processes.signal(job[0].machine.supervisor.entry, Signals.SIGKILL))
    job.run()
    assert job.codes == ([0] if restarts else [71])
    assert job.restarts == [restarts]
    assert len(job[0].machine.workers) == 2 + 4 * restarts


def test_signals_end_a_node_whose_supervisor_stands_still() -> None:
    job = working(Does(runs=float("inf"), ends_in=None), Options(shutdown_timeout=5.0), nodes=1)
    job.scheduler.freeze(job[0].machine.supervisor.process)
    job[0].signal(Signals.SIGTERM)
    began = job.now
    job.until(lambda: not job[0].workers)
    assert job.now - began < 5.0 + 4.0, "the agent kills them itself"
    job.run()
    assert job.codes == [143]


def test_what_a_lost_supervisor_has_left_holds_up_the_next_workers() -> None:
    """A worker in uninterruptible sleep holds what the next one would need."""
    held = Does(runs=float("inf"), stuck=True)
    job = Job(1, lambda *_: held, Options(max_restarts=1, shutdown_timeout=5.0))
    job.until(job.works)
    supervisor = job[0].machine.supervisor
    job.lose_supervisor(job[0], lambda: job.processes.signal(supervisor.entry, Signals.SIGKILL))
    job.run()
    assert job.codes == [71]
    assert len(job[0].groups) == 1
