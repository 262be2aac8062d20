"""A service that does not do what the nodes need: it is waited for, by all of them together, and blamed on nobody."""

from __future__ import annotations

import pytest

from rdzv_plugins.elastic import keys
from rdzv_plugins.errors import ConnectionLost
from simulation import troubles
from simulation.agent import Agent, Options, Plan
from simulation.job import Job, fails
from simulation.service import Service
from simulation.test_scenarios_elastic import LONG, at_work, ends
from simulation.workers import Does
from simulation.world import TTL_S, World

pytestmark = pytest.mark.parametrize("seed", [1, 2])


def agents(seed: int, plan: Plan, options: Options | None = None, *, outage_timeout: float = 300.0) -> Job:
    """Two, whose workers do not fail with each other."""
    job = Job(2, plan, options, seed=seed, together=False, outage_timeout=outage_timeout)
    job.until(job.works)
    return job


def service_of(job: Job) -> Service:
    return job.meeting.service  # type: ignore[no-any-return]


def test_an_outage_uses_up_no_time_to_join(seed: int) -> None:
    world = World(seed, 1, 2, 2, timeout=30.0, outage_timeout=200.0)
    world.after(5.0)
    troubles.freeze_service(world, 60.0)
    world.after(70.0)
    world.add()
    assert ends(world.run()) == ["done", "done"]


def test_an_outage_is_one_for_all_nodes_whoever_needs_the_service_first(seed: int) -> None:
    job = agents(seed, fails(1, after=5.0, then=200.0), outage_timeout=20.0)
    service_of(job).faults.full = True
    job.run()
    assert job.codes == [68, 68]
    first, second = sorted(time for each in job.agents for time, what, _ in each.story if what == "ends")
    assert second - first < 10.0


def test_who_is_done_waits_for_others_whom_nobody_can_ask(seed: int) -> None:
    def plan(group: object, local_rank: int) -> Does:
        return Does(runs=40.0 if group.group_rank == 1 else 5.0)  # type: ignore[attr-defined]

    job = agents(seed, plan, Options(exit_barrier_timeout=5.0))
    job.scheduler.freeze(service_of(job).process)
    job.after(25.0)
    job.scheduler.thaw(service_of(job).process)
    job.run()
    assert job.codes == [0, 0]
    done = [time for each in job.agents for time, what, _ in each.story if what == "ends"]
    assert min(done) > job.agents[0].machine.workers[0].entered + 40.0


def test_a_node_that_has_left_waits_for_no_answer(seed: int) -> None:
    world = World(seed, 2, work=LONG, outage_timeout=500.0)
    at_work(world)
    node, raised = world[0], list[ConnectionLost]()
    troubles.freeze_service(world, 400.0)

    def ask() -> None:
        try:
            node.handler.peer_lost()
        except ConnectionLost as error:
            raised.append(error)

    world.scheduler.spawn(node.process, "asks", ask)
    world.after(20.0)
    assert not raised
    world.scheduler.spawn(node.process, "leaves", node.handler.shutdown)
    world.until(lambda: raised, limit=100.0)
    world.close()


def test_a_service_that_forgets_its_history_at_once_is_led_by_another_all_the_same(seed: int) -> None:
    world = World(seed, 3, 2, 3, LONG)
    at_work(world)
    leader = world.leader
    lasts = [True]

    def forget() -> None:
        while lasts:
            world.service.store.put(0, {"anything": b""}, False, None)
            world.service.tell()
            world.service.store.compact()
            world.scheduler.sleep(0.005)

    world.script(forget)
    troubles.kill(world, leader)
    world.after(0.1)
    lasts.clear()
    world.comes_nothing_more()
    rest = [each for each in world.nodes if each is not leader]
    at_work(world, *rest)
    assert sorted(ends(world.run())) == ["", "done", "done"]


def test_a_session_that_is_over_as_soon_as_it_was_opened_does_not_end_the_first_join(seed: int) -> None:
    world = World(seed, 1, 2, 2, by_connection=False)
    world.until(lambda: world.service.asked["n0"])
    troubles.freeze(world, world[0], 3 * TTL_S)
    world.add()
    assert ends(world.run()) == ["done", "done"]


def test_who_waits_in_the_store_for_another_agent_goes_on_when_its_own_session_was_lost(seed: int) -> None:
    job = Job(plan=lambda *_: Does(runs=60.0), low=1, seed=seed, options=Options(workers=2), starts=False)
    stands: list[Agent] = []

    def stand(_: object) -> None:
        stands.append(next(each for each in job.agents if each.handler._self.me.store is not None))
        stands[0].freeze()

    service = service_of(job)
    service.once("put", keys.ROUND, stand, lost="")
    job.add()
    job.add()
    job.until(lambda: stands)
    waits = next(each for each in job.agents if each is not stands[0])
    job.until(lambda: waits.handler.mine is not None)
    job.after(1.0)
    service.end(next(each for each, process in service.sessions.items() if process is waits.process))
    lost_at = job.now
    job.until(lambda: waits.handler._joining.active)
    assert job.now < lost_at + TTL_S
    stands[0].thaw()
    assert job.run().codes == [0, 0]
