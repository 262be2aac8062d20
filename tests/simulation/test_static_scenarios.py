"""The promises of ``static``, as stories of whole agents in simulated time: each fails without what it tells of.

``StaticJob.check`` looks at every one: one world per round, ranks as given, nobody who lives is blamed, all hear of the
end, restarts are used for failures alone, exit codes are documented ones.
"""

from __future__ import annotations

import pytest

from rdzv_launcher.run.agent.events import Failed, MustRunAgain
from rdzv_plugins.errors import (
    EndpointLost,
    NodeLost,
    PeerFailed,
    RdzvError,
    RendezvousClosed,
    SettingsDiffer,
)
from rdzv_plugins.interfaces import RoundEvent
from rdzv_plugins.runtime import Signals
from simulation.agent import Agent, Options, Plan
from simulation.job import fails, failure_of
from simulation.static_jobs import ANSWER_S, HOST, KEEP_ALIVE_S, PORT, StaticJob
from simulation.test_scenarios_elastic import SEEDS
from simulation.workers import Does

LONG = Does(runs=100.0)
RETRIES = Options(max_restarts=2, monitor_interval=1.0)
SETTLED_S = 5.0
"""So long it takes at most until who can be told has been told."""

pytestmark = pytest.mark.parametrize("seed", SEEDS)


def long(group: object, local_rank: int) -> Does:
    return LONG


def working(seed: int, nodes: int = 3, plan: Plan = long, options: Options | None = None, **given: float) -> StaticJob:
    """A job whose workers all run."""
    job = StaticJob(nodes, plan, options, seed=seed, **given)  # type: ignore[arg-type]
    job.until(job.works)
    return job


def starts(job: StaticJob) -> list[int]:
    """How often each node has started its workers."""
    return [len(each.groups) for each in job.agents]


def error_of(agent: Agent) -> RdzvError:
    """By what it has ended."""
    assert agent.end is not None
    assert isinstance(agent.end.error, RdzvError), agent.end
    return agent.end.error


def ended_at(agent: Agent) -> float:
    return next(time for time, what, _ in agent.story if what == "ends")


def stores(job: StaticJob) -> list[tuple[str, int]]:
    """The workers' store of each round."""
    return list({each.round: each.store for each in job.static.entered}.values())


# Beginning


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0)])
def test_each_node_has_the_rank_that_it_was_given_whoever_comes_first(seed: int, order: tuple[int, ...]) -> None:
    job = StaticJob(3, seed=seed, starts=False)
    for rank in order:
        job.join(rank)
        job.after(5.0)
    job.run()
    assert job.codes == [0, 0, 0]
    assert {each.agent: each.rank for each in job.static.entered} == {f"n{n}": rank for n, rank in enumerate(order)}


@pytest.mark.parametrize(("missing", "code", "named"), [(2, 75, "node rank 2"), (0, 68, f"{HOST}:{PORT}")])
def test_a_node_that_never_comes_is_named_by_all_when_the_time_is_over(
    seed: int, missing: int, code: int, named: str
) -> None:
    job = StaticJob(4, seed=seed, starts=False, timeout=30.0)
    for rank in [each for each in range(4) if each != missing]:
        job.join(rank)
    job.run()
    assert job.codes == [code] * 3
    for agent in job.agents:
        assert named in str(error_of(agent))
        assert ended_at(agent) - 1000 == pytest.approx(30.0, abs=SETTLED_S)


def test_a_node_that_leaves_before_the_first_round_can_be_replaced(seed: int) -> None:
    job = StaticJob(3, seed=seed, starts=False)
    for rank in (0, 1):
        job.join(rank)
    job.after(20.0)
    job[1].signal(Signals.SIGTERM)
    job.after(20.0)
    for rank in (1, 2):
        job.join(rank)
    job.run()
    assert job.codes == [0, 143, 0, 0]
    assert starts(job) == [1, 0, 1, 1]


def test_the_requests_of_a_node_that_waits_do_not_grow_with_the_number_of_nodes(seed: int) -> None:
    """Each reports every ten seconds who is missing."""

    def requests(nodes: int) -> float:
        job = StaticJob(nodes, seed=seed, starts=False, timeout=60.0)
        for rank in range(nodes - 1):
            job.join(rank)
        job.after(20.0)
        before = job.static.servers.asked.total()
        job.after(30.0)
        asked = job.static.servers.asked.total() - before
        job.scheduler.close()
        return asked / (nodes - 1)

    few, many = requests(4), requests(16)
    assert many <= few


# Two with one rank, and other mistakes


@pytest.mark.parametrize("when", ["joining", "working"])
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("host", ["its own", "the same"])
def test_the_second_of_one_rank_is_refused_by_name_and_the_first_stays(
    seed: int, when: str, rank: int, host: str
) -> None:
    job = StaticJob(3, long, seed=seed, starts=False)
    for each in (0, 1) if when == "joining" else (0, 1, 2):
        job.join(each)
    job.after(20.0)
    second = job.join(rank, host="10.0.1.1" if host == "its own" else "")
    job.until(lambda: second.over)
    assert isinstance(error_of(second), SettingsDiffer)
    assert f"pid {job[rank].entry.pid}" in str(error_of(second))
    if when == "joining":
        job.join(2)
    job.run()
    assert [each.exit_code for each in job.agents if each is not second] == [0, 0, 0]
    assert second.exit_code == 78
    assert sorted(starts(job)) == [0, 1, 1, 1]


def test_a_node_that_gets_a_signal_stops_its_workers_at_once_while_rank_0_stands_still(seed: int) -> None:
    job = working(seed, 2)
    job.freeze(job[0], 60.0)
    job.after(1.0)
    job[1].signal(Signals.SIGTERM)
    job.after(4.0)
    assert not job[1].workers
    job.run()
    assert job[1].exit_code == 143


def test_the_second_does_not_get_ahead_of_the_first_between_two_rounds(seed: int) -> None:
    job = working(seed, 2, plan=fails(0), options=RETRIES)
    job.after(4.0)
    job.freeze(job[1], 8.0)
    job.until(lambda: job[0].stage == "joining")
    second = job.join(1, host="10.0.1.1")
    job.until(lambda: second.over)
    job.run()
    assert job.codes == [0, 0, 78]
    assert starts(job) == [2, 2, 0]


def test_those_that_wait_are_told_of_a_second_with_a_rank_of_the_others(seed: int) -> None:
    """Ranks 0, 1, 1 were given: it is not only that rank 2 is missing."""
    job = StaticJob(3, seed=seed, starts=False, timeout=30.0)
    for rank in (0, 1):
        job.join(rank)
    job.after(5.0)
    second = job.join(1, host="10.0.1.1")
    job.run()
    assert job.codes == [75, 75, 78]
    for agent in job.agents[:2]:
        assert f"pid {second.entry.pid}" in str(error_of(agent))


@pytest.mark.parametrize(("wrong", "code"), [({"nodes": 4}, 78), ({"run_id": "other"}, 76)])
def test_a_node_with_other_settings_is_refused_alone(seed: int, wrong: dict[str, object], code: int) -> None:
    job = StaticJob(3, seed=seed, starts=False)
    for rank in (0, 1):
        job.join(rank)
    mistaken = job.join(2, **wrong)  # type: ignore[arg-type]
    job.until(lambda: mistaken.over)
    job.join(2)
    job.run()
    assert job.codes == [0, 0, code, 0]


# Failures and restarts


def test_workers_that_fail_are_restarted_with_all_others_in_a_store_of_their_own(seed: int) -> None:
    job = StaticJob(3, fails(1), RETRIES, seed=seed).run()
    assert job.codes == [0, 0, 0]
    assert starts(job) == [2, 2, 2]
    assert max(job.restarts) == 1
    assert len(set(stores(job))) == 2
    for agent in job.agents:  # each hears once that the first round is over
        assert len([each for each in agent.steps(RoundEvent) if each.kind == "over"]) <= 1
        assert not agent.steps(Failed)


def test_restarts_that_are_used_up_end_the_job_everywhere_with_its_cause(seed: int) -> None:
    job = StaticJob(3, fails(1, code=7, times=9), Options(max_restarts=1, monitor_interval=1.0), seed=seed).run()
    assert job.codes == [7, 7, 7]
    failures = [failure_of(each) for each in job.agents]
    assert {each.host for each in failures if each is not None} == {"10.0.0.2"}
    assert max(map(ended_at, job.agents)) - min(map(ended_at, job.agents)) < 3 * SETTLED_S


@pytest.mark.parametrize("restarts", [0, 1])
def test_a_failure_is_told_to_those_that_are_done_and_they_run_again_with_it(seed: int, restarts: int) -> None:
    """They wait for it in the exit barrier, and so does node rank 0, which serves."""

    def plan(group: object, local_rank: int) -> Does:
        slow = group.group_rank == 2 and group.generation == 1  # type: ignore[attr-defined]
        return Does(runs=30.0, code=9) if slow else Does(runs=5.0)

    job = StaticJob(3, plan, Options(max_restarts=restarts, monitor_interval=1.0), seed=seed).run()
    assert job.codes == ([0] * 3 if restarts else [9] * 3)
    assert starts(job) == [1 + restarts] * 3
    assert bool(job[0].steps(MustRunAgain)) == bool(restarts)
    assert restarts or isinstance(error_of(job[0]), PeerFailed)


@pytest.mark.parametrize("runs", [3.7, 3.9, 4.0])
def test_who_waits_no_longer_looks_whether_the_job_has_failed_while_it_asked_who_works(seed: int, runs: float) -> None:
    def plan(group: object, local_rank: int) -> Does:
        return Does(runs=runs, code=3) if group.group_rank == 1 else Does(runs=3.0)  # type: ignore[attr-defined]

    job = StaticJob(3, plan, Options(exit_barrier_timeout=0.5, monitor_interval=1.0), seed=seed).run()
    assert job.codes == [3, 3, 3]


def test_a_node_that_joins_when_the_job_has_failed_is_told_so(seed: int) -> None:
    """Node rank 0 still waits for one that has not left."""
    job = working(seed, 3, fails(1, code=7), linger=60.0)
    job.until(lambda: job.static.ended is not None)
    job.freeze(job[2], 30.0)
    job.until(lambda: job[1].over)
    late = job.join(1, host="10.0.1.1")
    job.until(lambda: late.over)
    assert isinstance(error_of(late), PeerFailed)
    assert late.exit_code == 7
    job.run()
    assert starts(job) == [1, 1, 1, 0]


def test_whoever_asks_for_the_cause_when_node_rank_0_has_left_knows_it_from_the_end(seed: int) -> None:
    for each in (seed + 15, seed + 38, seed + 68):  # in few seeds somebody asks so late
        assert StaticJob(3, fails(1, code=7), seed=each, linger=0.0).run().codes == [7, 7, 7]


# Who is lost


@pytest.mark.parametrize("rank", [1, 2])
def test_a_node_that_leaves_is_waited_for_by_name_and_uses_no_restart(seed: int, rank: int) -> None:
    job = working(seed, options=RETRIES, timeout=50.0)
    job[rank].signal(Signals.SIGTERM)
    job.run()
    others = [each for each in job.agents if each is not job[rank]]
    assert job[rank].exit_code == 143
    assert [each.exit_code for each in others] == [75, 75]
    for agent in others:
        assert f"node rank {rank} on 10.0.0.{rank + 1} (pid {job[rank].entry.pid})" in str(error_of(agent))
    assert job.restarts == [0, 0, 0]


@pytest.mark.parametrize("late", [0.4, 0.6, 0.8])
def test_who_leaves_uses_no_restart_of_one_whose_workers_fail_before_it_has_heard(seed: int, late: float) -> None:
    job = working(seed, options=RETRIES, timeout=50.0)
    job[1].signal(Signals.SIGTERM)
    job.network.cut(HOST, job[2].process.host)
    job.after(late)
    job.network.heal(HOST, job[2].process.host)
    job.run()
    assert job.restarts == [0, 0, 0]


def test_a_node_that_is_done_takes_nobody_with_it(seed: int) -> None:
    def plan(group: object, local_rank: int) -> Does:
        return Does(runs=5.0 if group.group_rank == 1 else 50.0)  # type: ignore[attr-defined]

    job = working(seed, plan=plan)
    job.until(lambda: job[1].stage == "barrier")
    job[1].signal(Signals.SIGTERM)
    job.run()
    assert (job[0].exit_code, job[2].exit_code) == (0, 0)
    assert starts(job) == [1, 1, 1]


def test_node_rank_0_stays_while_others_work(seed: int) -> None:
    def plan(group: object, local_rank: int) -> Does:
        return Does(runs=5.0 if group.group_rank == 0 else 100.0)  # type: ignore[attr-defined]

    job = StaticJob(3, plan, Options(exit_barrier_timeout=30.0, monitor_interval=1.0), seed=seed).run()
    assert job.codes == [0, 0, 0]
    assert ended_at(job[0]) > max(map(ended_at, job.agents[1:]))


def test_a_node_that_is_killed_is_named_and_ends_a_job_without_restarts(seed: int) -> None:
    job = working(seed)
    job.kill(job[2])
    killed_at = job.now
    job.run()
    assert job.codes == [68, 68, None]
    for agent in job.agents[:2]:
        assert isinstance(error_of(agent), NodeLost)
        assert f"node rank 2 on 10.0.0.3 (pid {job[2].entry.pid})" in str(error_of(agent))
        assert ended_at(agent) < killed_at + ANSWER_S + 3 * SETTLED_S


def leave(job: StaticJob, agent: Agent) -> None:
    agent.signal(Signals.SIGTERM)
    job.until(lambda: agent.over)


@pytest.mark.parametrize(("happens", "code"), [(StaticJob.kill, None), (StaticJob.crash, None), (leave, 143)])
@pytest.mark.parametrize("after", [0.0, 30.0])
def test_one_that_is_gone_is_replaced(seed: int, happens: object, code: int | None, after: float) -> None:
    """Who leaves without a word costs a restart."""
    job = working(seed, options=RETRIES if code is None else None)
    happens(job, job[1])  # type: ignore[operator]
    job.after(after)
    job.replace(job[1])
    job.run()
    assert job.codes == [0, code, 0, 0]
    assert starts(job) == [2, 1, 2, 1]
    assert code is None or job.restarts == [0, 0, 0, 0]


def test_one_whose_process_has_ended_on_the_same_machine_is_not_waited_for(seed: int) -> None:
    took = {}
    for host in ("10.0.0.2", "10.0.1.1"):
        job = working(seed, options=RETRIES)
        job.kill(job[1])
        job.until(lambda: job[0].stage == "joining")  # noqa: B023
        again = job.join(1, host=host)
        began = job.now
        job.until(lambda: again.works)  # noqa: B023
        took[host] = job.now - began
        job.run()
    assert took["10.0.0.2"] < ANSWER_S / 2 < took["10.0.1.1"]


@pytest.mark.parametrize("after", [0.0, 0.05, 0.1, 0.5, 3.0, 30.0, 210.0, 210.5])
def test_everybody_ends_when_node_rank_0_is_killed_at_whatever_moment(seed: int, after: float) -> None:
    """While they join, work, and end. They say where it was."""
    job = StaticJob(3, lambda group, _: Does(runs=200.0 if group.group_rank else 210.0), seed=seed, timeout=60.0)
    job.after(after)
    job.kill(job[0])
    killed_at = job.now
    job.run(150.0 + after)
    for agent in job.agents[1:]:
        assert agent.exit_code in (0, 68, 76)  # 76: the ranks of the workers could not be exchanged
        if agent.exit_code != 0:
            assert ended_at(agent) < max(killed_at + 3 * SETTLED_S, 1060.0 + SETTLED_S)


@pytest.mark.parametrize("stage", ["joining", "working", "barrier"])
def test_a_host_of_node_rank_0_that_is_gone_is_noticed_in_every_stage(seed: int, stage: str) -> None:
    """TCP notices. Nobody waits for a quarter of an hour until it gives up a request that was under way."""
    job = StaticJob(3, lambda *_: Does(runs=30.0 if stage == "barrier" else 500.0), seed=seed, starts=False)
    for rank in (0, 1) if stage == "joining" else (0, 1, 2):
        job.join(rank, timeout=5000.0)
    job.until(lambda: all(each.stage == stage for each in job.agents))
    job.after(9.0 if stage == "joining" else 0.0)  # a report is under way soon
    job.crash(job[0])
    crashed_at = job.now
    job.run()
    for agent in job.agents[1:]:
        assert agent.exit_code in ((68,) if stage != "barrier" else (68, 0))
        assert ended_at(agent) < crashed_at + 2 * KEEP_ALIVE_S + 30.0


@pytest.mark.parametrize("after", [0.01, 0.02, 0.03])
def test_a_host_that_is_gone_is_noticed_although_all_that_was_sent_to_it_is_sent_again(seed: int, after: float) -> None:
    """Its kernel has confirmed nothing yet: then the others' kernels do not ask whether it is there."""
    job = StaticJob(3, lambda *_: Does(runs=500.0), seed=seed, starts=False, timeout=100.0)
    for rank in (0, 1):
        job.join(rank)
    job.until(lambda: all(each.stage == "joining" for each in job.agents))
    job.after(after)
    job.crash(job[0])
    crashed_at = job.now
    job.run()
    assert job.codes[1] in (68, 75)
    assert ended_at(job[1]) < crashed_at + 100.0 + KEEP_ALIVE_S + SETTLED_S


def test_a_node_that_is_cut_off_for_long_ends_by_itself(seed: int) -> None:
    job = working(seed, 3, options=RETRIES)
    job.cut(job[2], 300.0)
    cut_at = job.now
    job.until(lambda: job[2].over)
    assert isinstance(error_of(job[2]), EndpointLost)
    assert ended_at(job[2]) < cut_at + 2 * KEEP_ALIVE_S
    job.join(2, host="10.0.1.1")
    job.run()
    assert job.codes == [0, 0, 68, 0]


# Who lives is not blamed


@pytest.mark.parametrize(("rank", "happens"), [(0, "freeze"), (1, "freeze"), (1, "short cut")])
def test_a_node_that_nobody_needs_while_all_work_is_nobodys_business(seed: int, rank: int, happens: str) -> None:
    job = working(seed, plan=lambda *_: Does(runs=200.0))
    if happens == "freeze":
        job.freeze(job[rank], 150.0)
    else:
        job.cut(job[rank], KEEP_ALIVE_S - 5.0)
    job.run()
    assert job.codes == [0, 0, 0]
    assert starts(job) == [1, 1, 1]


def test_a_slow_agent_that_answers_in_time_is_not_lost(seed: int) -> None:
    """It stands still when its node's workers fail with those of another."""
    job = working(seed, plan=fails(1, code=7, after=30.0))
    job.after(29.0)
    job.freeze(job[2], ANSWER_S / 2 - 1)
    assert job.run().codes == [7, 7, 7]


def test_a_node_that_ends_by_an_error_of_its_own_is_waited_for(seed: int) -> None:
    """Its workers cannot be started; the others stop theirs, and do not take them for failed."""

    def plan(group: object, local_rank: int) -> Does:
        return Does(runs=100.0, fails_to_start=group.group_rank == 1)  # type: ignore[attr-defined]

    job = StaticJob(3, plan, seed=seed, timeout=50.0).run()
    assert job.codes == [75, 71, 75]
    assert job.restarts == [0, 0, 0]
    assert all(f"pid {job[1].entry.pid}" in str(error_of(each)) for each in (job[0], job[2]))


# At rest


def test_nothing_is_requested_at_rest(seed: int) -> None:
    job = working(seed, plan=lambda *_: Does(runs=400.0), options=Options(monitor_interval=10.0))
    job.after(60.0)
    before = dict(job.static.servers.asked)
    job.after(300.0)
    assert job.static.servers.asked == before
    assert job.run().codes == [0, 0, 0]


def test_what_those_in_the_exit_barrier_ask_does_not_grow_with_the_number_of_nodes(seed: int) -> None:
    """Of those that ask which of the others live, one looks."""

    def requests(nodes: int) -> float:
        """Of each that waits, in a second."""
        waits = range(nodes // 2, nodes)

        def plan(group: object, local_rank: int) -> Does:
            return Does(runs=5.0 if group.group_rank in waits else 150.0)  # type: ignore[attr-defined]

        job = working(seed, nodes, plan=plan, options=Options(exit_barrier_timeout=30.0, monitor_interval=1.0))
        job.until(lambda: all(job[rank].stage == "barrier" for rank in waits))
        before = job.static.servers.asked.total()
        job.after(100.0)
        asked = job.static.servers.asked.total() - before
        assert job.run().codes == [0] * nodes
        return asked / 100 / len(waits)

    few, many = requests(4), requests(10)
    assert few < 5
    assert many < few


def test_questions_whether_agents_live_leave_nothing_behind(seed: int) -> None:
    job = working(seed, plan=fails(1, code=7))
    control = job.static.servers.opened[0][1]
    job.until(lambda: any(b"/presence/lost/" in key for key in control.keys))
    job.after(1.0)
    assert not [key for key in control.keys if b"/presence/ask/" in key]
    job.run()


def test_a_node_that_waits_no_longer_ends_alone_and_can_be_replaced(seed: int) -> None:
    job = StaticJob(3, seed=seed, starts=False)
    job.join(0)
    impatient = job.join(1, timeout=20.0)
    job.until(lambda: impatient.over)
    job.join(1)
    job.join(2)
    job.run()
    assert job.codes == [0, 75, 0, 0]


def test_who_waits_for_another_node_is_told_at_once_that_node_rank_0_leaves(seed: int) -> None:
    job = working(seed, options=RETRIES, linger=60.0)
    job.kill(job[2])
    job.until(lambda: job[0].stage == job[1].stage == "joining")
    job.after(1.0)  # by then they wait in the store
    job[0].signal(Signals.SIGTERM)
    left_at = job.now
    job.run()
    assert job.codes == [143, RendezvousClosed.exit_code, None]
    assert ended_at(job[1]) < left_at + SETTLED_S
