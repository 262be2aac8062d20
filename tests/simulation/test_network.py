"""The simulated network: order, refusals, silence, and what a kernel says of a process that is gone."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from simulation.network import End, Network
from simulation.scheduler import Process, Scheduler

PORT = 29500


class World:
    """Two hosts with a process each, and what the second has heard."""

    def __init__(self, seed: int = 1) -> None:
        self.scheduler = Scheduler(seed)
        self.network = Network(self.scheduler)
        self.client, self.server = self.scheduler.process("client"), self.scheduler.process("server")
        self.heard: list[object] = []
        self.ends: list[End] = []
        self.network.listen(self.server, PORT, self.accept)

    def accept(self, end: End) -> None:
        self.ends.append(end)
        end.on_message = self.heard.append
        end.on_end = lambda how: self.heard.append(how)

    def run(self, does: Callable[[], object], process: Process | None = None) -> None:
        """Until a thread has done that, and all that follows from it."""
        thread = self.scheduler.spawn(process or self.client, "main", does)
        self.scheduler.run(lambda: thread.done, 600.0)
        assert self.scheduler.failed == []

    def settle(self, seconds: float = 5.0) -> None:
        self.run(lambda: self.scheduler.sleep(seconds), self.scheduler.process("observer"))

    def connect(self) -> End:
        found = list[End]()
        self.run(lambda: found.append(self.network.connect("server", PORT, 5.0)))
        return found[0]


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.scheduler.close()


@pytest.mark.parametrize("seed", range(10))
def test_messages_keep_their_order(seed: int) -> None:
    world = World(seed)
    end = world.connect()
    world.run(lambda: [end.send(number) for number in range(50)])
    world.settle()
    assert world.heard == list(range(50))


def test_nobody_listens_and_nobody_answers(world: World) -> None:
    def dials() -> None:
        with pytest.raises(ConnectionRefusedError):
            world.network.connect("server", PORT + 1, 5.0)
        world.network.crash("server")
        with pytest.raises(TimeoutError):
            world.network.connect("server", PORT, 5.0)

    world.run(dials)


@pytest.mark.parametrize(("unread", "how"), [(False, "closed"), (True, "reset")])
def test_a_kernel_tells_how_its_process_has_ended(world: World, unread: bool, how: str) -> None:
    told = list[str]()
    end = world.connect()
    end.on_end = told.append
    if unread:
        world.scheduler.freeze(world.server)
        world.run(lambda: end.send("unread"))
        world.settle()
    world.network.kill(world.server)
    world.settle()
    assert told == [how]
    with pytest.raises(ConnectionError):
        end.send("more")


def test_a_frozen_process_hears_later(world: World) -> None:
    world.scheduler.freeze(world.server)
    end = world.connect()  # its kernel answers
    world.run(lambda: end.send("hello"))
    world.settle()
    assert world.heard == []
    world.scheduler.thaw(world.server)
    assert world.heard == ["hello"]


def test_what_was_sent_while_the_network_was_cut_arrives_later(world: World) -> None:
    end = world.connect()
    world.network.cut("client", "server")
    world.run(lambda: [end.send("one"), end.send("two")])
    world.settle()
    assert world.heard == []
    world.ends[0].send("back")  # the other direction works
    told = list[object]()
    end.on_message = told.append
    world.settle()
    assert told == ["back"]
    world.network.heal("client", "server")
    world.settle()
    assert world.heard == ["one", "two"]


def test_a_crashed_host_says_nothing(world: World) -> None:
    told = list[str]()
    world.connect().on_end = told.append
    world.network.crash("server")
    world.settle(60.0)
    assert told == []


def test_the_port_of_a_dead_process_is_free(world: World) -> None:
    second = world.scheduler.process("second", "server")
    with pytest.raises(OSError, match="in use"):
        world.network.listen(second, PORT, world.accept)
    world.network.kill(world.server)
    world.network.listen(second, PORT, world.accept)
    world.connect()
