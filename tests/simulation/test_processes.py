"""Signals, parents and children of the simulated world, as the real ones are."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from rdzv_plugins.runtime import SIG_IGN, Signals
from simulation.kernel import Kernel
from simulation.network import Network
from simulation.processes import Entry, OwnProcess, Processes
from simulation.runtime import SimulatedRuntime
from simulation.scheduler import Scheduler


class World:
    """One process with a main thread."""

    def __init__(self) -> None:
        self.scheduler = Scheduler(1)
        network = Network(self.scheduler)
        self.processes = Processes(network)
        self.process = self.scheduler.process("agent")
        self.entry = self.processes.add(command="agent", thread_of=self.process)
        self.runtime = SimulatedRuntime(Kernel(network), OwnProcess(self.processes, self.entry))
        self.noted: list[object] = []

    def run(self, main: Callable[[], object]) -> list[object]:
        thread = self.scheduler.spawn(self.process, "main", main)
        self.scheduler.run(lambda: thread.done, 600.0)
        assert self.scheduler.failed == []
        return self.noted

    def note(self, what: object) -> None:
        self.noted.append((round(self.scheduler.now - 1000.0, 3), what))

    def at(self, seconds: float, number: Signals, entry: Entry | None = None) -> None:
        self.scheduler.at(1000.0 + seconds, lambda: self.processes.signal(entry or self.entry, number))


@pytest.fixture
def world() -> World:
    return World()


def test_a_handler_runs_where_the_main_thread_waits_and_the_wait_goes_on(world: World) -> None:
    def main() -> None:
        world.runtime.signal(Signals.SIGTERM, lambda number, _: world.note(number))
        world.runtime.sleep(10.0)
        world.note("slept")

    world.at(3.0, Signals.SIGTERM)
    assert world.run(main) == [(3.0, Signals.SIGTERM), (10.0, "slept")]


def test_what_a_handler_raises_ends_the_wait(world: World) -> None:
    def raises(*_: object) -> None:
        raise InterruptedError

    def main() -> None:
        world.runtime.signal(Signals.SIGTERM, raises)
        with pytest.raises(InterruptedError):
            world.runtime.sleep(10.0)
        world.note("woken")

    world.at(3.0, Signals.SIGTERM)
    assert world.run(main) == [(3.0, "woken")]


def test_a_handler_may_bring_what_its_thread_waits_for(world: World) -> None:
    def main() -> None:
        inbox = world.runtime.SimpleQueue()
        world.runtime.signal(Signals.SIGTERM, lambda number, _: inbox.put(number))
        world.note(inbox.get(timeout=10.0))

    world.at(3.0, Signals.SIGTERM)
    assert world.run(main) == [(3.0, Signals.SIGTERM)]


def test_a_stopped_process_takes_its_signals_when_it_goes_on(world: World) -> None:
    def main() -> None:
        world.runtime.signal(Signals.SIGTERM, lambda number, _: world.note(number))
        world.runtime.sleep(2.0)

    world.at(1.0, Signals.SIGSTOP)
    world.at(2.0, Signals.SIGTERM)
    world.at(5.0, Signals.SIGCONT)
    assert world.run(main) == [(5.0, Signals.SIGTERM)]


def test_signals_that_are_ignored_and_not_handled(world: World) -> None:
    def main() -> None:
        world.runtime.signal(Signals.SIGHUP, SIG_IGN)
        world.runtime.sleep(10.0)
        raise AssertionError("it has been killed")

    world.at(1.0, Signals.SIGHUP)
    world.at(2.0, Signals.SIGTERM)
    world.run(main)
    assert world.scheduler.now == 1002.0
    assert world.entry.status == Signals.SIGTERM


def test_an_alarm(world: World) -> None:
    def main() -> None:
        world.runtime.signal(Signals.SIGALRM, lambda number, _: world.note(number))
        world.runtime.setitimer(0, 4.0)
        world.runtime.setitimer(0, 3.0)
        world.runtime.sleep(10.0)

    assert world.run(main) == [(3.0, Signals.SIGALRM)]


def test_a_child_is_a_zombie_until_its_parent_has_waited_for_it(world: World) -> None:
    child = world.processes.add(world.entry.pid, command="child")
    world.scheduler.at(1001.0, lambda: world.processes.end(child, 3 << 8))

    def main() -> None:
        runtime = world.runtime
        assert runtime.waitpid(child.pid, os.WNOHANG) == (0, 0)
        runtime.sleep(2.0)
        assert world.processes.look(child.pid).lives is False
        assert runtime.waitpid(child.pid, os.WNOHANG) == (child.pid, 3 << 8)
        with pytest.raises(ChildProcessError):
            runtime.waitpid(child.pid, os.WNOHANG)

    world.run(main)
    assert world.processes.look(child.pid) is None


def test_orphans_go_to_the_next_process_above_that_adopts_them(world: World) -> None:
    world.entry.reaps = True
    parent = world.processes.add(world.entry.pid, command="parent")
    child, bound = (world.processes.add(parent.pid, command=name) for name in ("child", "bound"))
    bound.dies_with_parent = Signals.SIGKILL
    world.processes.signal(parent, Signals.SIGKILL)
    assert {each.pid: each.lives for each in world.processes.children(world.entry.pid)} == {
        parent.pid: False,
        child.pid: True,
        bound.pid: False,
    }


def test_what_the_kernel_holds_dies_when_it_is_released(world: World) -> None:
    held = world.processes.add(command="held")
    held.state = "D"
    world.processes.signal(held, Signals.SIGKILL)
    assert held.lives
    world.processes.release(held)
    assert not held.lives
