"""The promises of the elastic rendezvous, as stories: each fails without what it tells of."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rdzv_plugins.interfaces import Outcome
from rdzv_plugins.runtime import Signals
from simulation import troubles
from simulation.agent import Options
from simulation.job import Job
from simulation.workers import Does
from simulation.world import TTL_S, Node, Work, World

LONG = Work(seconds=200.0)
SEEDS = (1, pytest.param(2, marks=pytest.mark.thorough))

pytestmark = pytest.mark.parametrize("seed", SEEDS)


def at_work(world: World, *nodes: Node) -> None:
    world.until(lambda: world.all_work(*nodes))


def ranks(world: World) -> list[int | None]:
    """Those of the last round of each node; None for one that was in none."""
    return [None if each.place is None else each.place.rank for each in world.nodes]


def rounds(world: World) -> list[int]:
    """How many rounds each node was in."""
    return [len(each.places) for each in world.nodes]


def ends(world: World) -> list[str]:
    return [each.end for each in world.nodes]


def test_a_job_begins_at_once_when_all_have_come(seed: int) -> None:
    world = World(seed, 3, 2, 3, last_call_timeout=60.0)
    at_work(world)
    assert world.now < 3.0
    assert sorted(ranks(world), key=str) == [0, 1, 2]
    world.run()
    assert ends(world) == ["done"] * 3
    assert rounds(world) == [1, 1, 1]


def test_a_job_waits_for_its_minimum(seed: int) -> None:
    world = World(seed, 2, 3, 3)
    world.after(60.0)
    assert rounds(world) == [0, 0]
    world.add()
    at_work(world)
    assert world.run().now < 90.0


def test_the_last_call_brings_in_who_comes_in_time(seed: int) -> None:
    world = World(seed, 2, 2, 4, last_call_timeout=10.0)
    world.after(8.0)
    assert rounds(world) == [0, 0]
    late = world.add()
    at_work(world)
    assert 10.0 <= world.now < 12.0
    assert late.place is not None
    assert late.place.world == 3
    world.run()
    assert rounds(world) == [1, 1, 1]


def test_who_comes_after_the_last_call_enters_by_another_round(seed: int) -> None:
    world = World(seed, 2, 2, 3, LONG, last_call_timeout=1.0)
    at_work(world)
    late = world.add()
    world.until(lambda: late.works)
    at_work(world)
    assert rounds(world) == [2, 2, 1]
    assert ends(world.run()) == ["done"] * 3


def test_a_time_out_names_who_is_there(seed: int) -> None:
    world = World(seed, 2, 3, 3, timeout=30.0)
    world.run()
    assert ends(world) == ["RendezvousTimeout"] * 2
    for each in world.nodes:
        assert each.process.host in str(each.error)
        assert each.ended_at == pytest.approx(30.0, abs=1.5)


def test_a_lost_node_is_waited_for_while_the_others_are_too_few(seed: int) -> None:
    world = World(seed, 2, 2, 2, LONG)
    at_work(world)
    troubles.kill(world, world[1])
    world.after(100.0)
    assert not world[0].works
    assert world[0].end == ""
    world.add()
    at_work(world)
    world.run()
    assert (world[0].end, world[2].end) == ("done", "done")


def test_a_spare_waits_and_enters_when_there_is_room(seed: int) -> None:
    world = World(seed, 3, 2, 2, LONG)
    world.after(30.0)
    spare = next(each for each in world.nodes if not each.works)
    assert spare.places == []
    working = [each for each in world.nodes if each.works]
    troubles.kill(world, working[0])
    at_work(world, spare, working[1])
    assert rounds(world).count(1) == 2
    world.run()
    assert (spare.end, working[1].end) == ("done", "done")


def test_who_comes_when_the_job_is_about_to_end_comes_too_late(seed: int) -> None:
    world = World(seed, 0, 2, 3, last_call_timeout=1.0)
    for seconds in (10.0, 30.0):
        world.add(work=Work(seconds=seconds))
    world.until(lambda: world[0].end)
    world.add().hindered = True
    assert ends(world.run()) == ["done", "done", "NotNeeded"]


def test_requests_of_a_node_do_not_depend_on_how_many_there_are(seed: int) -> None:
    def most(nodes: int) -> int:
        world = World(seed, nodes, work=LONG)
        at_work(world)
        world.after(5.0)
        leader, asked = world.leader, world.service.asked
        world.close()
        return max(asked[each.name] for each in world.nodes if each is not leader)

    assert most(3) <= 8
    assert most(12) <= most(3) + 3


def test_given_ranks_are_honoured(seed: int) -> None:
    world = World(seed, 0, 3, 3)
    for rank in (2, 0, 1):
        world.add(rank=rank)
    world.run()
    assert ranks(world) == [2, 0, 1]


def test_a_node_that_stood_still_returns_with_its_rank(seed: int) -> None:
    world = World(seed, 3, 3, 3, LONG, by_connection=False)
    at_work(world)
    before = ranks(world)
    others = [each for each in world.nodes if each is not world.leader and each.place is not None]
    stood = min(others, key=lambda each: each.place.rank)  # it is the last to come again, and not the last by its rank
    troubles.freeze(world, stood, 3 * TTL_S)
    world.until(lambda: all(len(each.places) == 2 for each in world.nodes))
    assert ranks(world) == before
    assert set(ends(world.run())) == {"done"}


def test_who_stands_still_for_a_moment_is_not_lost(seed: int) -> None:
    world = World(seed, 3, 2, 3, LONG)
    at_work(world)
    for each in world.nodes:
        troubles.freeze(world, each, TTL_S / 3)
        world.after(TTL_S)
    assert rounds(world.run()) == [1, 1, 1]


def test_the_others_go_on_without_a_node_that_does_not_join_again_and_take_it_in_later(seed: int) -> None:
    world = World(seed, 4, 2, 4, LONG, ttl=60.0, rejoin_timeout=6.0)
    at_work(world)
    late, lost = [each for each in world.nodes if each is not world.leader][:2]
    rest = [each for each in world.nodes if each not in (late, lost)]
    troubles.freeze(world, late, 20.0)
    troubles.kill(world, lost)
    over_at = world.now
    world.until(lambda: all(len(each.places) == 2 for each in rest))
    assert over_at + 6.0 < world.now < over_at + 10.0
    at_work(world)
    assert late.place is not None
    assert late.place.world == 3
    world.run()


@pytest.mark.parametrize("away", [troubles.freeze, troubles.cut])
def test_a_leader_that_stands_still_or_is_cut_off_is_replaced_and_then_follows(
    seed: int, away: Callable[[World, Node, float], None]
) -> None:
    world = World(seed, 3, 2, 3, LONG, by_connection=False)
    at_work(world)
    apart = world.leader
    away(world, apart, 4 * TTL_S)
    rest = world.goes_on_without(apart)
    assert world.leader in rest
    at_work(world)
    assert set(ends(world.run())) == {"done"}


@pytest.mark.parametrize("memory", [True, False], ids=["with_memory", "without_memory"])
def test_a_round_goes_on_over_a_restart_of_the_service(seed: int, memory: bool) -> None:
    world = World(seed, 3, 2, 3, LONG)
    at_work(world)
    troubles.restart_service(world, 2.0, memory=memory)
    world.after(60.0)
    assert rounds(world) == [1, 1, 1] or memory
    assert world.all_work()
    assert set(ends(world.run())) == {"done"}
    assert [each.restarts for each in world.nodes] == [0, 0, 0]


def test_a_service_without_memory_takes_in_a_new_node(seed: int) -> None:
    world = World(seed, 2, 2, 3, LONG, last_call_timeout=1.0)
    at_work(world)
    troubles.restart_service(world, 2.0, memory=False)
    world.after(30.0)
    late = world.add()
    world.until(lambda: late.works)
    assert late.places[0].round == 2
    assert late.places[0].world == 3
    world.run()


def test_a_node_that_comes_back_with_another_session_costs_the_others_no_restart(seed: int) -> None:
    world = World(seed, 3, 2, 3, LONG, by_connection=False)
    at_work(world)
    troubles.cut(world, world.leader, 1.5 * TTL_S, only="from")  # it cannot know that its first session lives
    world.run()
    assert ends(world) == ["done"] * 3
    assert rounds(world) == [2, 2, 2]
    assert [each.restarts for each in world.nodes] == [0, 0, 0]


def test_a_round_that_has_the_number_of_another_lets_the_node_of_that_one_go(seed: int) -> None:
    world = World(seed, 0, 1, 1, max_restarts=1)
    first = world.add(work=Work(60.0, fails=(5.0,)))
    at_work(world)
    second = world.add()
    world.after(2.0)
    troubles.cut(world, second, 20.0)
    world.until(lambda: len(first.places) == 2)
    troubles.cut(world, first, 30.0)
    troubles.restart_service(world, 2.0, memory=False)
    world.run()
    assert [each.places[-1].round for each in world.nodes] == [2, 2]
    assert ends(world) == ["released", "done"]


def test_who_serves_the_others_leaves_last(seed: int) -> None:
    """Though it is not rank 0, which serves the workers' store."""
    world = World(seed, 0, 2, 2, linger=100.0)
    world.add(rank=1, hosts_service=True)
    world.add(rank=0, work=Work(seconds=60.0))
    world.run()
    assert ends(world) == ["done", "done"]
    assert (world[0].ended_at or 0.0) > 60.0


def test_other_settings_are_refused_by_name_and_the_job_goes_on(seed: int) -> None:
    world = World(seed, 2, 2, 3, LONG, last_call_timeout=1.0)
    at_work(world)
    stranger = world.add(entrypoint=("other.py",))
    stranger.hindered = True
    world.run()
    assert stranger.end == "SettingsDiffer"
    assert "other.py" in str(stranger.error)
    assert "train.py" in str(stranger.error)
    assert ends(world)[:2] == ["done", "done"]
    assert rounds(world) == [1, 1, 0]


def test_those_who_wait_are_told_of_a_node_that_was_refused(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    world = World(seed, 1, 2, 2)
    world.after(5.0)
    world.add(entrypoint=("other.py",)).hindered = True
    world.after(5.0)
    told = [each for each in caplog.messages if "other.py" in each]
    assert len(told) == 1
    assert world[1].process.host in told[0]
    assert (world[0].end, world[1].end) == ("", "SettingsDiffer")
    world.add()
    world.run()


def test_nonsense_of_a_stranger_harms_nobody(seed: int) -> None:
    world = World(seed, 3, 2, 3, LONG)
    at_work(world)
    for key in ("members/stranger", "node/stranger", "failure/1", "all/asked/x", "all/nobody-knows"):
        troubles.nonsense(world, key)
        world.after(1.0)
    assert rounds(world.run()) == [1, 1, 1]


def test_a_spare_that_cannot_reach_the_round_costs_it_nothing(seed: int) -> None:
    world = World(seed, 2, 2, 3, Work(seconds=100.0), last_call_timeout=1.0)
    at_work(world)
    root = next(each for each in world.nodes if each.place is not None and each.place.rank == 0)
    late = world.add()
    late.hindered = True
    troubles.part(world, late, root, 500.0)
    world.run()
    assert rounds(world) == [1, 1, 0]


def test_a_replacement_takes_the_rank_of_the_node_that_was_lost(seed: int) -> None:
    world = World(seed, 3, 3, 3, LONG)
    at_work(world)
    before = ranks(world)
    lost = world[1]
    troubles.replace(world, lost)
    at_work(world, world[0], world[2], world[3])
    assert ranks(world) == [before[0], before[1], before[2], before[1]]
    world.run()


def test_a_job_that_is_told_to_end_ends_everywhere(seed: int) -> None:
    world = World(seed, 3, work=LONG)
    at_work(world)
    world[0].leave(Outcome("failed", "somebody has ended it"))
    world.run()
    assert ends(world) == ["failed", "RendezvousClosed", "RendezvousClosed"]
    assert "somebody has ended it" in str(world[1].error)


# Who is in the others' way: the job goes on without them if it can, and says who they are


def test_a_node_that_does_not_join_again_is_left_out_after_a_while(seed: int) -> None:
    def plan(group: object, local_rank: int) -> Does:
        stubborn = group.generation == 1 and group.group_rank == 3  # type: ignore[attr-defined]
        return Does(runs=300.0 if stubborn else 60.0, ends_in=None if stubborn else 0.1)

    options = Options(shutdown_timeout=200.0)
    job = Job(4, plan, options, low=2, seed=seed, together=False, rejoin_timeout=10.0)
    job.until(job.works)
    stubborn = next(each for each in job.agents if each.groups[0].group_rank == 3)
    leaves, *rest = [each for each in job.agents if each is not stubborn]
    leaves.signal(Signals.SIGTERM)
    left_at = job.now
    job.until(lambda: all(len(each.groups) == 2 for each in rest))
    assert 10.0 <= job.now - left_at < 20.0
    job.run()
    assert [each.exit_code for each in rest] == [0, 0]


def test_nodes_that_cannot_reach_each_other_fail_together_by_name(seed: int) -> None:
    world = World(seed, 2, 2, 2)
    for each in world.nodes:
        each.hindered = True
    troubles.part(world, world[0], world[1], 200.0)
    world.run()
    assert ends(world) == ["RendezvousFailed"] * 2
    for each in world.nodes:
        assert "cannot reach" in str(each.error)
        assert each.ended_at is not None
        assert each.ended_at < 60.0
