"""The simulated machines are as real ones: clock and threads, processes and signals, network and sockets."""

from __future__ import annotations

import errno
import os
import select
import socket
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

    def at(self, seconds: float, happens: Callable[[], object]) -> None:
        self.scheduler.at(1000.0 + seconds, happens)

    def signal(self, seconds: float, number: Signals) -> None:
        self.at(seconds, lambda: self.processes.signal(self.entry, number))


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


def test_a_frozen_process_does_nothing_and_time_goes_on(world: World) -> None:
    def works() -> None:
        for _ in range(3):
            world.runtime.sleep(1.0)
            world.note("works")

    world.at(1.5, lambda: world.scheduler.freeze(world.client))
    world.at(11.5, lambda: world.scheduler.thaw(world.client))
    assert world.run(works) == [(1.0, "works"), (11.5, "works"), (12.5, "works")]


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

    world.signal(3.0, Signals.SIGTERM)
    assert world.run(main) == [(3.0, Signals.SIGTERM), (10.0, "slept")]


def test_a_stopped_process_takes_its_signals_when_it_goes_on(world: World) -> None:
    def main() -> None:
        inbox = world.runtime.SimpleQueue()
        world.runtime.signal(Signals.SIGTERM, lambda number, _: inbox.put(number))
        world.note(inbox.get(timeout=10.0))  # the handler brings what its own thread waits for

    world.signal(1.0, Signals.SIGSTOP)
    world.signal(2.0, Signals.SIGTERM)
    world.signal(5.0, Signals.SIGCONT)
    assert world.run(main) == [(5.0, Signals.SIGTERM)]


def test_a_child_is_a_zombie_until_its_parent_has_waited_for_it(world: World) -> None:
    child = world.processes.add(world.entry.pid, command="child")
    world.at(1.0, lambda: world.processes.end(child, 3 << 8))

    def main() -> None:
        runtime = world.runtime
        assert runtime.waitpid(child.pid, os.WNOHANG) == (0, 0)
        runtime.sleep(2.0)
        assert world.processes.look(child.pid).lives is False
        assert runtime.waitpid(child.pid, os.WNOHANG) == (child.pid, 3 << 8)
        with pytest.raises(ChildProcessError):
            runtime.waitpid(child.pid, os.WNOHANG)

    world.run(main)


def test_orphans_go_to_the_next_process_above_that_adopts_them(world: World) -> None:
    world.entry.reaps = True
    parent = world.processes.add(world.entry.pid, command="parent")
    child, bound = (world.processes.add(parent.pid, command=name) for name in ("child", "bound"))
    below = world.processes.add(child.pid, command="grandchild")
    bound.dies_with_parent = Signals.SIGKILL
    world.processes.signal(parent, Signals.SIGKILL)
    found = {each.pid: each.lives for each in world.processes.children(world.entry.pid)}
    assert found == {parent.pid: False, child.pid: True, bound.pid: False}
    assert {each.pid for each in world.processes.descendants([world.entry.pid])} == {child.pid, below.pid}


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


def test_bytes_go_both_ways_until_an_end(world: World) -> None:
    client, server = pair(world)
    assert client.getpeername() == ("server", PORT)
    assert server.getpeername() == client.getsockname()
    world.run(lambda: [client.send(b"he"), client.sendall(b"llo")])
    world.settle()

    def serves() -> None:
        assert [server.recv(4), server.recv(4)] == [b"hell", b"o"]
        server.settimeout(1.0)
        with pytest.raises(TimeoutError):
            server.recv(4)
        server.setblocking(False)
        with pytest.raises(BlockingIOError):
            server.recv(4)
        server.close()

    world.run(serves, process=world.server)
    world.settle()

    def hears() -> None:
        assert client.recv(4) == b""
        with pytest.raises(BrokenPipeError):
            client.send(b"more")

    world.run(hears)


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


def test_epoll_tells_of_connections_bytes_and_events(world: World) -> None:
    listener, kernel = listening(world), world.kernel

    def serves() -> None:
        epoll, wake = kernel.epoll(), kernel.eventfd(0)
        epoll.register(listener.fileno(), select.EPOLLIN)
        epoll.register(wake, select.EPOLLIN)
        assert epoll.poll(0.5) == []
        assert epoll.poll(60.0) == [(listener.fileno(), select.EPOLLIN)]
        connection, _ = listener.accept()
        epoll.register(connection.fileno(), select.EPOLLIN)
        assert epoll.poll(60.0) == [(connection.fileno(), select.EPOLLIN)]
        assert connection.recv(9) == b"x"
        kernel.eventfd_write(wake, 1)
        assert epoll.poll(0) == [(wake, select.EPOLLIN)]
        assert kernel.eventfd_read(wake) == 1
        assert epoll.poll(0) == []
        epoll.unregister(connection.fileno())
        world.note("served")

    server = world.scheduler.spawn(world.server, "main", serves)

    def dials() -> None:
        world.scheduler.sleep(2.0)
        made, epoll = kernel.socket(kind=socket.SOCK_STREAM | socket.SOCK_NONBLOCK), kernel.epoll()
        assert made.connect_ex(("server", PORT)) == errno.EINPROGRESS
        epoll.register(made.fileno(), select.EPOLLIN | select.EPOLLOUT)
        assert epoll.poll(5.0) == [(made.fileno(), select.EPOLLOUT)]
        assert made.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0
        made.send(b"x")

    world.run(dials)
    world.scheduler.run(lambda: server.done, 60.0)
    assert heard(world) == ["served"]
