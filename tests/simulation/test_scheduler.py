"""The simulated clock, threads, locks and processes."""

from __future__ import annotations

import queue
from collections.abc import Iterator

import pytest

from simulation.scheduler import Killed, Process, Scheduler, Stuck
from simulation.threads import Threads, main_of

HOUR_S = 3600.0


class World:
    """A scheduler with one process, and what its threads have noted."""

    def __init__(self, seed: int = 1) -> None:
        self.scheduler = Scheduler(seed)
        self.threads = Threads(self.scheduler)
        self.process = self.scheduler.process("agent")
        self.noted: list[object] = []

    def start(self, *runs: object, process: Process | None = None) -> None:
        for number, run in enumerate(runs):
            self.scheduler.spawn(process or self.process, f"thread {number}", run)  # type: ignore[arg-type]

    def note(self, what: object) -> None:
        self.noted.append((self.scheduler.now - 1000.0, what))

    def finish(self, limit: float = HOUR_S) -> list[object]:
        """Let all threads end; returns what was noted."""
        processes = self.scheduler.processes
        self.scheduler.run(lambda: all(each.done for process in processes for each in process.threads), limit)
        assert self.scheduler.failed == []
        return self.noted


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.scheduler.close()


def test_time_moves_on_only_when_all_wait(world: World) -> None:
    def sleeps(seconds: float) -> None:
        world.threads.sleep(seconds)
        world.note(seconds)

    world.start(lambda: sleeps(1800.0), lambda: sleeps(5.0), lambda: world.note("at once"))
    assert world.finish() == [(0.0, "at once"), (5.0, 5.0), (1800.0, 1800.0)]


def interleaved(seed: int) -> list[object]:
    world = World(seed)
    lock = world.threads.Lock()

    def counts(name: str) -> None:
        for _ in range(5):
            with lock:
                world.note(name)

    world.start(*(lambda name=name: counts(name) for name in "abc"))
    return world.finish()


def test_a_seed_is_one_order_and_seeds_are_many() -> None:
    orders = [interleaved(seed) for seed in range(20)]
    assert orders == [interleaved(seed) for seed in range(20)]
    assert len({str(order) for order in orders}) > 10


def test_only_one_thread_holds_a_lock(world: World) -> None:
    lock, inside = world.threads.RLock(), [0]

    def enters() -> None:
        for _ in range(10):
            with lock, lock:
                inside[0] += 1
                world.threads.sleep(0.1)
                assert inside[0] == 1
                inside[0] -= 1

    world.start(enters, enters, enters)
    world.finish()


def test_what_waits_for_too_long_is_told_so(world: World) -> None:
    threads, lock = world.threads, world.threads.Lock()

    def holds() -> None:
        with lock:
            threads.sleep(10.0)

    def waits() -> None:
        threads.sleep(1.0)
        world.note(lock.acquire(timeout=2.0))
        world.note(lock.acquire(blocking=False))
        world.note(threads.Event().wait(3.0))
        try:
            threads.SimpleQueue().get(timeout=1.0)
        except queue.Empty:
            world.note("empty")

    world.start(holds, waits)
    assert world.finish() == [(3.0, False), (3.0, False), (6.0, False), (7.0, "empty")]


def test_a_condition_is_waited_for_and_its_lock_is_free_meanwhile(world: World) -> None:
    changed, items = world.threads.Condition(), list[int]()

    def takes() -> None:
        with changed:
            world.note(changed.wait_for(lambda: items, 60.0))

    def gives() -> None:
        world.threads.sleep(2.0)
        with changed:
            items.append(7)
            changed.notify_all()
        with pytest.raises(RuntimeError):
            changed.notify()

    world.start(takes, gives)
    assert world.finish() == [(2.0, [7])]


def test_what_is_put_into_a_queue_comes_out_in_order(world: World) -> None:
    items = world.threads.SimpleQueue()

    def gives() -> None:
        for number in range(5):
            items.put(number)
            world.threads.sleep(1.0)

    world.start(gives, lambda: [world.note(items.get()) for _ in range(5)])
    assert world.finish() == [(float(number), number) for number in range(5)]


def test_threads_are_joined_and_timers_cancelled(world: World) -> None:
    threads = world.threads

    def main() -> None:
        child = threads.Thread(target=threads.sleep, args=(4.0,), name="child", daemon=True)
        child.start()
        child.join(1.0)
        world.note(child.is_alive())
        child.join()
        world.note(child.is_alive())
        timers = [threads.Timer(1.0, lambda: world.note("timer")) for _ in range(2)]
        for timer in timers:
            timer.start()
        timers[0].cancel()

    world.start(main)
    assert world.finish() == [(1.0, True), (4.0, False), (5.0, "timer")]


def test_a_killed_process_has_no_more_effect(world: World) -> None:
    other = world.scheduler.process("other")

    def works() -> None:
        try:
            with world.threads.Condition() as _:
                while True:
                    world.threads.sleep(1.0)
                    world.note("works")
        finally:
            world.scheduler.check()  # as everything does that reaches others
            world.note("has an effect")

    def kills() -> None:
        world.threads.sleep(2.5)
        world.scheduler.kill(world.process)
        with pytest.raises(Killed):
            world.scheduler.kill(other)
        raise Killed

    world.start(works, works, lambda: None)
    world.start(kills, process=other)
    assert world.finish() == [(1.0, "works")] * 2 + [(2.0, "works")] * 2


def test_a_process_ends_with_its_main_thread(world: World) -> None:
    main_of(world.scheduler, world.process, lambda: world.threads.sleep(3.0))
    world.start(lambda: world.threads.Event().wait())
    world.finish()
    assert world.process.killed
    assert world.scheduler.now == 1003.0


def test_a_frozen_process_does_nothing_and_time_goes_on(world: World) -> None:
    def works() -> None:
        for _ in range(3):
            world.threads.sleep(1.0)
            world.note("works")

    world.start(works)
    world.scheduler.at(1001.5, lambda: world.scheduler.freeze(world.process))
    world.scheduler.at(1011.5, lambda: world.scheduler.thaw(world.process))
    assert world.finish() == [(1.0, "works"), (11.5, "works"), (12.5, "works")]


def test_who_waits_for_ever_is_named(world: World) -> None:
    world.start(lambda: world.threads.Event().wait())
    with pytest.raises(Stuck, match="agent/thread 0"):
        world.finish()


def test_an_exception_that_ends_a_thread_is_kept(world: World) -> None:
    error = ValueError("wrong")

    def fails() -> None:
        raise error

    world.start(fails)
    world.scheduler.run(lambda: bool(world.scheduler.failed), HOUR_S)
    ((thread, found),) = world.scheduler.failed
    assert (thread.name, found) == ("thread 0", error)
