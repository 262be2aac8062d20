"""What no simulated job would show: who is dead has no effect, errors are kept, and what was sent arrives."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator

import pytest

from rdzv_plugins.runtime import Signals
from simulation.kernel import Socket
from simulation.machines import Machines
from simulation.network import End
from simulation.scheduler import Killed, Process, Stuck

PORT = 29500


class World(Machines):
    """A process on each of two hosts, and what has been noted: when, and what."""

    def __init__(self) -> None:
        super().__init__(1)
        self.client, self.entry, self.runtime = self.boot("client")
        self.server = self.scheduler.process("server")
        self.noted: list[tuple[float, object]] = []

    def note(self, what: object) -> None:
        self.noted.append((round(self.scheduler.now - 1000.0, 3), what))

    def run(self, *does: Callable[[], object], process: Process | None = None) -> list[tuple[float, object]]:
        """Until threads of the client, or of another process, have done all that; returns what was noted."""
        threads = [self.scheduler.spawn(process or self.client, f"thread {at}", each) for at, each in enumerate(does)]
        self.scheduler.run(lambda: all(each.done for each in threads), 3600.0)
        for _, error in self.scheduler.failed:
            raise error
        return self.noted

    def settle(self, seconds: float = 5.0) -> None:
        self.run(lambda: self.scheduler.sleep(seconds), process=self.scheduler.process("observer"))


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.scheduler.close()


# Time and threads


def test_a_killed_process_has_no_more_effect(world: World) -> None:
    def works() -> None:
        try:
            while True:
                world.runtime.sleep(1.0)
                world.note("works")
        finally:
            world.scheduler.check()  # as everything does that reaches others
            world.note("has an effect")

    def kills() -> None:
        world.runtime.sleep(2.5)
        world.scheduler.kill(world.server)
        with pytest.raises(Killed):
            world.scheduler.kill(world.client)

    world.scheduler.spawn(world.server, "main", works)
    world.run(kills)
    world.settle()
    assert world.noted == [(1.0, "works"), (2.0, "works")]


def test_who_waits_for_ever_is_named(world: World) -> None:
    with pytest.raises(Stuck, match="client/thread 0"):
        world.run(lambda: world.runtime.Event().wait())


def test_an_exception_that_ends_a_thread_is_kept(world: World) -> None:
    def fails() -> None:
        raise ValueError("wrong")

    with pytest.raises(ValueError, match="wrong"):
        world.run(fails)
    assert [str(thread) for thread, _ in world.scheduler.failed] == ["client/thread 0"]


# Processes and signals


def test_a_handler_runs_where_the_main_thread_waits_and_the_wait_goes_on(world: World) -> None:
    def main() -> None:
        world.runtime.signal(Signals.SIGTERM, lambda number, _: world.note(number))
        world.runtime.sleep(10.0)
        world.note("slept")

    world.scheduler.at(1003.0, lambda: world.processes.signal(world.entry, Signals.SIGTERM))
    assert world.run(main) == [(3.0, Signals.SIGTERM), (10.0, "slept")]


# The network


def connected(world: World) -> End:
    """The client's end of a connection, of which the server notes what comes."""

    def accept(end: End) -> None:
        end.on_message = end.on_end = lambda what: world.note(what)

    world.network.listen(world.server, PORT, accept)
    found = list[End]()
    world.run(lambda: found.append(world.network.connect("server", PORT, 5.0)))
    return found[0]


def heard(world: World) -> list[object]:
    return [what for _, what in world.noted]


def test_what_was_sent_while_the_network_was_cut_arrives_later(world: World) -> None:
    end, told = connected(world), list[object]()
    world.network.cut("client", "server")
    world.run(lambda: [end.send("one"), end.send("two")])
    world.settle()
    assert heard(world) == []
    end.on_message = told.append
    end.peer.send("back")  # the other direction works
    world.settle()
    assert told == ["back"]
    world.network.heal("client", "server")
    world.settle()
    assert heard(world) == ["one", "two"]


# Sockets


def listening(world: World) -> Socket:
    found = list[Socket]()

    def listens() -> None:
        made = world.kernel.socket()
        made.bind(("", PORT))
        made.listen()
        found.append(made)

    world.run(listens, process=world.server)
    return found[0]


def pair(world: World) -> tuple[Socket, Socket]:
    """The client's and the server's socket of a connection."""
    listener, ends = listening(world), list[Socket]()

    def connects() -> None:
        made = world.kernel.socket()
        made.connect(("server", PORT))
        ends.append(made)

    world.run(connects)
    world.run(lambda: ends.append(listener.accept()[0]), process=world.server)
    return ends[0], ends[1]


def test_a_refusal_comes_at_once_and_silence_does_not(world: World) -> None:
    def dials() -> None:
        with pytest.raises(OSError) as refused:  # noqa: PT011
            world.kernel.socket().connect(("server", PORT))
        assert refused.value.errno == errno.ECONNREFUSED
        world.network.crash("server")
        silent = world.kernel.socket()
        silent.settimeout(3.0)
        with pytest.raises(TimeoutError):
            silent.connect(("server", PORT))

    world.run(dials)
    assert 3.0 <= world.scheduler.now - 1000.0 < 4.0


@pytest.mark.parametrize("unread", [False, True])
def test_a_killed_process_leaves_an_end_or_a_reset(world: World, unread: bool) -> None:
    client, _ = pair(world)
    world.scheduler.freeze(world.server)
    if unread:
        world.run(lambda: client.send(b"unread"))
        world.settle()
    world.network.kill(world.server)
    world.settle()

    def hears() -> None:
        if unread:
            with pytest.raises(ConnectionResetError):
                client.recv(1)
        else:
            assert client.recv(1) == b""

    world.run(hears)
