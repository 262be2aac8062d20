"""How agents end, and with which exit code: whole agents in simulated time."""

from __future__ import annotations

import itertools

import pytest

from rdzv_plugins.elastic import keys
from rdzv_plugins.errors import PeerFailed
from rdzv_plugins.runtime import Signals
from simulation.agent import Options
from simulation.job import Job, fails, failure_of
from simulation.workers import Does


def test_a_job_whose_workers_succeed_ends_with_0() -> None:
    job = Job(nodes=3, options=Options(workers=2)).run()
    assert job.codes == [0, 0, 0]
    assert [len(each.machine.workers) for each in job.agents] == [2, 2, 2]


def test_a_worker_that_fails_is_restarted_with_all_others() -> None:
    job = Job(plan=fails(1, code=3), options=Options(workers=2, max_restarts=3)).run()
    assert job.codes == [0, 0]
    assert [len(each.groups) for each in job.agents] == [2, 2]
    assert job.restarts[1] == 1


def test_when_restarts_are_used_up_the_job_ends_everywhere_with_the_workers_code() -> None:
    job = Job(nodes=3, plan=fails(1, code=3, times=9), options=Options(max_restarts=2)).run()
    assert job.codes == [3, 3, 3]
    assert job.restarts[1] == 2
    assert [failure_of(each).host for each in job.agents] == [job[1].process.host] * 3
    assert isinstance(job[0].end.error, PeerFailed)


def test_a_worker_killed_by_a_signal_is_128_and_its_number() -> None:
    assert Job(plan=fails(0, code=-11)).run().codes == [139, 139]


def test_the_others_are_told_within_a_second() -> None:
    job = Job(plan=fails(0, code=3, then=1000.0))
    job.until(lambda: job[0].end)
    told = job.now
    job.run()
    assert job.codes == [3, 3]
    assert job.now - told < 5.0


def test_of_two_failures_at_once_all_name_the_same_one() -> None:
    for seed in range(5):
        job = Job(plan=lambda group, _: Does(runs=5.0, code=3 + group.group_rank), seed=seed).run()
        named = {failure_of(each).exit_code for each in job.agents}
        assert len(named) == 1
        assert set(job.codes) == named


def test_who_has_told_its_failure_knows_the_first_one_without_the_service() -> None:
    job, asked = Job(plan=lambda group, _: Does(runs=5.0, code=3 + group.group_rank)), list[object]()
    job.meeting.service.once("list", "failure/", asked.append, lost="answer")
    assert len(set(job.run().codes)) == 1
    assert asked == []


def test_a_node_that_has_heard_of_the_end_does_not_forget_it_with_its_session() -> None:
    """It is the last one, so the service forgets the job: it would begin it anew."""
    plan = lambda group, _: Does(runs=5.0, code=3, ends_in=9.0 * group.group_rank + 0.1)  # noqa: E731
    job = Job(plan=plan, options=Options(workers=2), together=False)
    job.until(lambda: job[0].over)
    job.end_session(job[1])
    assert job.run().codes == [3, 3]


@pytest.mark.parametrize("identical", [False, True])
def test_ranks_count_over_the_workers_of_all_nodes(identical: bool) -> None:
    job = Job(starts=False, low=3, high=3)
    for workers in (2, 2, 2) if identical else (1, 3, 2):
        job.add(Options(workers=workers, identical=identical))
    job.run()
    ranks = {each.global_rank for agent in job.agents for each in agent.groups[0].workers}
    assert job.codes == [0, 0, 0]
    assert ranks == set(range(6))
    assert {each.world_size for agent in job.agents for each in agent.groups[0].workers} == {6}


def test_a_node_that_is_done_lets_the_others_finish() -> None:
    """Node 0 serves the store, and stays for as long as that takes: longer than its exit barrier's limit."""
    job = Job(
        plan=lambda group, _: Does(runs=5.0 if group.group_rank == 0 else 150.0),
        options=Options(exit_barrier_timeout=30.0, monitor_interval=1.0),
    ).run()
    assert job.codes == [0, 0]
    assert job.now > 1150.0


@pytest.mark.parametrize("patience", [300.0, 5.0])
def test_a_done_node_runs_again_when_another_restarts(patience: float) -> None:
    """However long it has waited in the exit barrier: the other was known to work."""

    def plan(group, _):  # type: ignore[no-untyped-def]
        if group.generation == 1:
            return Does(runs=5.0) if group.group_rank == 0 else Does(runs=20.0, code=3)
        return Does(runs=5.0)

    job = Job(plan=plan, options=Options(max_restarts=1, exit_barrier_timeout=patience)).run()
    assert job.codes == [0, 0]
    assert [len(each.groups) for each in job.agents] == [2, 2]
    assert job.restarts == [0, 1]


def test_a_done_node_ends_with_the_code_of_the_one_that_fails_later() -> None:
    plan = lambda group, _: Does(runs=5.0 if group.group_rank == 0 else 20.0, code=3 * group.group_rank)  # noqa: E731
    job = Job(plan=plan)
    job.until(lambda: job[1].over)
    ended = job.now
    job.until(lambda: job[0].over)
    assert job.codes == [3, 3]
    assert job.now - ended < 5.0


def test_a_spare_that_leads_is_released_when_the_done_node_is_killed() -> None:
    """That one cannot say any more that the job is about to end."""
    for seed in itertools.count():
        job = Job(nodes=2, low=1, high=1, seed=seed)
        held = job.meeting.service.store.keys
        job.until(lambda held=held: any(b'"finished_round":1' in kv.value for kv, _ in held.values()))
        done, spare = sorted(job.agents, key=lambda each: not each.groups)
        if spare.process.host.encode() in held[keys.LEADER][0].value:
            break
        job.scheduler.close()
    job.kill(done)
    job.run()
    assert (spare.exit_code, spare.groups) == (0, [])


def test_a_node_whose_round_is_over_while_ranks_are_exchanged_joins_again() -> None:
    """Node 1 is lost before it has said what it runs."""
    job = Job(nodes=3, low=2, high=3)
    job.until(lambda: job.meeting.rounds)
    job[1].kill()
    job.run()
    assert job.codes == [0, None, 0]


def test_a_worker_that_cannot_be_started_ends_its_node_with_71() -> None:
    job = Job(
        plan=lambda group, _: Does(runs=60.0, fails_to_start=group.group_rank == 1), low=1, high=2, together=False
    )
    job.run()
    assert job.codes == [0, 71]


def test_a_spare_ends_with_0_when_the_job_is_done() -> None:
    job = Job(high=2, nodes=3).run()
    assert job.codes == [0, 0, 0]
    assert sorted(len(each.groups) for each in job.agents) == [0, 1, 1]


def test_a_job_that_hangs_is_restarted_and_ends_with_80_when_restarts_are_used_up() -> None:
    job = Job(plan=lambda group, _: Does(runs=float("inf")), options=Options(max_restarts=1))
    for _ in range(2):
        generation = len(job[0].groups) + 1
        job.until(lambda: job.works() and len(job[0].groups) == len(job[1].groups) == generation)  # noqa: B023
        job.hang(job[0])
    job.run()
    assert job.codes == [80, 80]
    assert job.restarts[0] == 1


def test_the_budget_of_restarts_of_the_whole_job() -> None:
    """Two nodes fail in turns: each has restarts left."""
    job = Job(
        plan=lambda group, _: Does(runs=5.0, code=3 if group.generation % 2 == group.group_rank else 0),
        options=Options(max_restarts=9, job_restarts=2, crash_loop="off"),
        together=False,
    ).run()
    assert job.codes == [3, 3]
    assert sum(job.restarts) == 2


def test_a_crash_loop_ends_with_82() -> None:
    job = Job(plan=fails(1, code=3, times=99, after=1.0), options=Options(max_restarts=99, crash_loop="any")).run()
    assert job.codes == [82, 82]
    assert job.restarts[1] == 2


def test_restarts_without_progress_wait_longer_and_longer() -> None:
    """The third waits for as long as --restart-delay says, each further one twice as long."""
    job = Job(
        nodes=1,
        plan=fails(0, times=5, after=1.0),
        options=Options(max_restarts=9, restart_delay=8.0, crash_loop="off"),
    ).run()
    starts = [time for time, _, step in job[0].story if type(step).__name__ == "StartWorkers"]
    waits = [round(later - earlier - 1.0) for earlier, later in itertools.pairwise(starts)]
    assert job.codes == [0]
    assert waits == [0, 0, 8, 16, 32]


@pytest.mark.parametrize("leave", [False, True])
def test_what_workers_leave_in_the_background_is_ended_unless_it_is_to_be_left(leave: bool) -> None:
    job = Job(
        nodes=1,
        plan=lambda *_: Does(background=Does(runs=float("inf")), child=Does(runs=float("inf"))),
        options=Options(leave_background=leave),
    ).run()
    assert job.codes == [0]
    assert len(job[0].alive) == int(leave)


@pytest.mark.parametrize("leave", [False, True])
def test_what_has_to_be_killed_before_a_restart_takes_along_what_is_in_the_background(leave: bool) -> None:
    holds_out, background = Does(runs=float("inf"), ends_in=None), Does(runs=float("inf"))
    plan = lambda group, _: Does(code=2 - group.generation, child=holds_out, background=background)  # noqa: E731
    job = Job(1, plan, Options(max_restarts=1, shutdown_timeout=5.0, leave_background=leave))
    job.until(lambda: len(job[0].groups) == 2)
    assert [each.entry.lives for each in job[0].machine.workers[0].left] == [leave, False]
    assert job.run().codes == [0]


def test_workers_are_not_restarted_beside_what_is_left_in_their_sessions() -> None:
    left = Does(runs=float("inf"), ends_in=8.0)
    job = Job(1, lambda group, _: Does(code=2 - group.generation, child=left), Options(max_restarts=1))
    job.until(lambda: len(job[0].groups) == 2)
    assert not job[0].machine.workers[0].left[0].entry.lives
    assert job.run().codes == [0]


def test_what_workers_leave_in_the_background_may_end_by_itself() -> None:
    job = Job(nodes=1, plan=lambda *_: Does(background=Does(runs=float("inf"), ends_in=8.0))).run()
    assert job[0].machine.workers[0].left[0].entry.status == Signals.SIGTERM


def test_workers_are_not_restarted_beside_one_that_not_even_sigkill_ends() -> None:
    held = Does(runs=float("inf"), stuck=True)
    plan = lambda _, local_rank: held if local_rank else Does(runs=5.0, code=1)  # noqa: E731
    job = Job(nodes=1, plan=plan, options=Options(workers=2, max_restarts=3, shutdown_timeout=5.0)).run()
    assert job.codes == [71]
    assert len(job[0].groups) == 1


def test_a_node_with_a_worker_that_the_kernel_holds_ends_with_71() -> None:
    """It could not start another: the kernel holds what that one needs."""
    job = Job(
        plan=lambda group, _: Does(stuck=group.group_rank == 1, runs=float("inf")),
        options=Options(stuck_timeout=8.0, shutdown_timeout=5.0),
        low=1,
        high=2,
        together=False,
    )
    job.until(lambda: job[1].over)
    job[0].signal(Signals.SIGTERM)
    job.run()
    assert job.codes == [143, 71]
