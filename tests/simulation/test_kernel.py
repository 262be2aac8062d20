"""Sockets, event descriptors and epoll of the simulated world, as the real ones are."""

from __future__ import annotations

import errno
import select
import socket
from collections.abc import Callable, Iterator

import pytest

from simulation.kernel import Kernel, Socket
from simulation.network import Network
from simulation.scheduler import Process, Scheduler

PORT = 29500


class World:
    """A client's and a server's process on two hosts."""

    def __init__(self) -> None:
        self.scheduler = Scheduler(1)
        self.network = Network(self.scheduler)
        self.kernel = Kernel(self.network)
        self.client, self.server = self.scheduler.process("client"), self.scheduler.process("server")

    def run(self, does: Callable[[], object], process: Process | None = None) -> None:
        thread = self.scheduler.spawn(process or self.client, "main", does)
        self.scheduler.run(lambda: thread.done, 600.0)
        for _, error in self.scheduler.failed:
            raise error

    def settle(self) -> None:
        self.run(lambda: self.scheduler.sleep(5.0))

    def listening(self) -> Socket:
        found = list[Socket]()

        def listens() -> None:
            made = self.kernel.socket()
            made.bind(("", PORT))
            made.listen()
            found.append(made)

        self.run(listens, self.server)
        return found[0]

    def pair(self) -> tuple[Socket, Socket]:
        """The client's and the server's end of a connection."""
        listening, ends = self.listening(), list[Socket]()

        def connects() -> None:
            made = self.kernel.socket()
            made.connect(("server", PORT))
            ends.append(made)

        self.run(connects)
        self.run(lambda: ends.append(listening.accept()[0]), self.server)
        return ends[0], ends[1]


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.scheduler.close()


def test_bytes_go_both_ways_until_an_end(world: World) -> None:
    client, server = world.pair()
    assert client.getpeername() == ("server", PORT)
    assert server.getpeername() == client.getsockname()
    world.run(lambda: [client.send(b"he"), client.sendall(b"llo")])
    world.settle()

    def serves() -> None:
        assert server.recv(4) == b"hell"
        assert server.recv(4) == b"o"
        server.settimeout(1.0)
        with pytest.raises(TimeoutError):
            server.recv(4)
        server.setblocking(False)
        with pytest.raises(BlockingIOError):
            server.recv(4)
        server.close()

    world.run(serves, world.server)
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
    client, _ = world.pair()
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
    listening = world.listening()
    seen = list[tuple[str, float]]()

    def serves() -> None:
        kernel, epoll = world.kernel, world.kernel.epoll()
        wake = kernel.eventfd(0)
        epoll.register(listening.fileno(), select.EPOLLIN)
        epoll.register(wake, select.EPOLLIN)
        assert epoll.poll(0.5) == []
        assert epoll.poll(60.0) == [(listening.fileno(), select.EPOLLIN)]
        connection, _ = listening.accept()
        epoll.register(connection.fileno(), select.EPOLLIN)
        assert epoll.poll(60.0) == [(connection.fileno(), select.EPOLLIN)]
        assert connection.recv(9) == b"x"
        kernel.eventfd_write(wake, 1)
        assert epoll.poll(0) == [(wake, select.EPOLLIN)]
        assert kernel.eventfd_read(wake) == 1
        assert epoll.poll(0) == []
        seen.append(("served", world.scheduler.now))
        epoll.unregister(connection.fileno())
        connection.close()

    server = world.scheduler.spawn(world.server, "main", serves)

    def dials() -> None:
        world.scheduler.sleep(2.0)
        kernel = world.kernel
        made, epoll = kernel.socket(kind=socket.SOCK_STREAM | socket.SOCK_NONBLOCK), kernel.epoll()
        assert made.connect_ex(("server", PORT)) == errno.EINPROGRESS
        epoll.register(made.fileno(), select.EPOLLIN | select.EPOLLOUT)
        assert epoll.poll(5.0) == [(made.fileno(), select.EPOLLOUT)]
        assert made.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0
        made.send(b"x")

    world.run(dials)
    world.scheduler.run(lambda: server.done, 60.0)
    assert [name for name, _ in seen] == ["served"]
