"""The service does not do what nodes need: it is waited for, for one time, by all together, and blamed on nobody."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rdzv_plugins.elastic import keys
from rdzv_plugins.errors import ConnectionLost
from simulation import troubles
from simulation.agent import Agent, Options, Plan
from simulation.job import Job, fails
from simulation.service import Faults, Service
from simulation.test_scenarios_elastic import LONG, SEEDS, at_work, ends
from simulation.workers import Does
from simulation.world import TTL_S, Node, World

OUTAGE_S = 20.0
REFUSALS = {"token": Faults(wants_token=True), "sessions": Faults(most_sessions=0)}

pytestmark = pytest.mark.parametrize("seed", SEEDS)


def job(seed: int, nodes: int = 2, low: int | None = None, **options: float) -> World:
    """One that is at work. What happens to its service is the fault of none of its nodes."""
    world = World(seed, nodes, low, nodes, LONG, by_connection=False, **{"outage_timeout": OUTAGE_S} | options)
    at_work(world)
    for each in world.nodes:
        each.hindered = True
    return world


def strike(world: World, faults: Faults, *, sessions: bool = True) -> float:
    """From now on the service has these faults; it ends all sessions."""
    world.disturbed("service", "has a fault")
    world.service.faults = faults
    for session in list(world.service.store.leases) if sessions else ():
        world.service.end(session)
    return world.now


def does(world: World, node: Node, call: Callable[[], object]) -> list[object]:
    """What the call returns, on a thread of the node's own; or the error that it raises."""
    found: list[object] = []

    def run() -> None:
        try:
            found.append(call())
        except Exception as error:
            found.append(error)

    world.scheduler.spawn(node.process, "call", run)
    world.until(lambda: found)
    return found


def ended_within(world: World, struck_at: float) -> None:
    """All nodes have ended, and name the service, when an outage was over."""
    assert set(ends(world.run())) == {"EndpointLost"}
    for each in world.nodes:
        assert OUTAGE_S - TTL_S <= (each.ended_at or 0.0) - struck_at < OUTAGE_S + 3 * TTL_S
        assert each.error is not None
        assert "service:1" in str(each.error)


@pytest.mark.parametrize("refusal", REFUSALS)
def test_a_refusal_while_the_job_works_is_waited_out(seed: int, refusal: str) -> None:
    world = job(seed)
    strike(world, REFUSALS[refusal])
    world.after(OUTAGE_S / 2)
    assert all(each.works for each in world.nodes)
    world.service.faults = Faults()
    assert ends(world.run()) == ["done", "done"]
    assert [each.restarts for each in world.nodes] == [0, 0]


@pytest.mark.parametrize("refusal", REFUSALS)
def test_a_refusal_that_lasts_ends_every_node_with_what_it_says(seed: int, refusal: str) -> None:
    world = job(seed)
    ended_within(world, strike(world, REFUSALS[refusal]))
    says = {"token": "needs a token", "sessions": "too many sessions"}[refusal]
    assert all(says in str(each.error) for each in world.nodes)


def test_sessions_that_are_opened_and_not_kept_alive_are_one_outage(seed: int) -> None:
    world = job(seed)
    ended_within(world, strike(world, Faults(loses_beats=True), sessions=False))


def test_a_service_that_was_there_in_between_has_another_outage(seed: int) -> None:
    world = job(seed)
    for _ in range(2):
        strike(world, REFUSALS["token"])
        world.after(OUTAGE_S * 3 / 4)
        world.disturbed("service", "is well again")
        world.service.faults = Faults()
        world.after(2 * TTL_S)
    assert ends(world.run()) == ["done", "done"]
    assert [each.restarts for each in world.nodes] == [0, 0]


def test_a_refusal_before_the_first_round_ends_a_node_at_once(seed: int) -> None:
    world = World(seed, 1, 2, 2, outage_timeout=300.0)
    world.after(5.0)
    world[0].hindered = True
    struck_at = strike(world, REFUSALS["token"])
    world.add().hindered = True
    world.run()
    assert ends(world) == ["EndpointLost", "AccessRefused"]
    assert max(each.ended_at or 0.0 for each in world.nodes) < struck_at + TTL_S


def test_writes_that_are_not_taken_for_a_while_end_nothing(seed: int) -> None:
    world = job(seed, 3, 2)
    strike(world, Faults(full=True), sessions=False)
    troubles.kill(world, world[2])
    world.after(OUTAGE_S / 2)
    world.service.faults = Faults()
    assert ends(world.run())[:2] == ["done", "done"]
    assert [each.restarts for each in world.nodes[:2]] == [0, 0]


def test_who_is_done_is_done_whatever_the_service_refuses(seed: int) -> None:
    world = job(seed)
    for each in world.nodes:
        does(world, each, each.handler.note_done)
    struck_at = strike(world, Faults(full=True), sessions=False)
    for each in world.nodes:
        assert does(world, each, each.handler.stay) == [None]
    assert world.now < struck_at + OUTAGE_S + TTL_S
    world.scheduler.close()


@pytest.mark.parametrize("away", [troubles.kill_service, troubles.crash_service])
def test_who_asks_whether_a_node_was_lost_waits_for_the_end_of_an_outage(
    seed: int, away: Callable[[World], object]
) -> None:
    """The last try to reach the service ends later than the outage: until then nobody goes round and round."""
    world = job(seed)
    away(world)
    struck_at = world.now
    for each in world.nodes:
        assert each.place is not None
        each.fail_with(each.place.round)
    ended_within(world, struck_at)


def test_a_node_that_is_to_dial_a_store_again_waits_for_the_service_first(seed: int) -> None:
    """It has no session and nothing to do: it must not go round and round, as time stands still for it then."""
    world = World(seed, 2)
    troubles.part(world, world[0], world[1], 8.0)
    world.after(5.0)
    troubles.restart_service(world, 3.0, memory=True)
    assert ends(world.run()) == ["done"] * 2


def test_a_spare_says_nothing_while_it_waits_after_a_round(seed: int) -> None:
    world = World(seed, 2, 2, 2, LONG)
    at_work(world)
    world.add()
    world.after(TTL_S)
    for each in world.nodes[:2]:
        troubles.kill(world, each)
    world.until(lambda: world[2].end)
    assert world.service.asked["n2"] < 16


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
        stands.append(next(each for each in job.agents if each.handler._registration.me.store is not None))
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
    job.until(lambda: waits.handler._round.is_joining)
    assert job.now < lost_at + TTL_S
    stands[0].thaw()
    assert job.run().codes == [0, 0]
