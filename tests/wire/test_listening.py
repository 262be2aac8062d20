"""Where the server listens: on the address it was given and no other, on nothing once it is closed, its keyspaces on
ports of their own, and the workers' stores of a job on the ports of a range in turn."""

from __future__ import annotations

import errno
import gc
import os
import re
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from kits.wire import wire_client as wire
from kits.wire.attack_kit import expect_no_more_files, open_files
from kits.wire.processes import read_line, spawned
from kits.wire.wire_client import PATIENCE, Raw

from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.errors import AddressInUse, EndpointUnreachable, RdzvError
from rdzv_plugins.kvstore.native.server import StoreServer
from rdzv_plugins.kvstore.sockets.listening import PortAllocator, bind, bind_if_here
from rdzv_plugins.kvstore.sockets.reach import require_loopback, try_connect
from rdzv_plugins.options import PortRange, WorkerStoreOptions
from rdzv_plugins.rounds.worker_stores import WorkerStores
from rdzv_plugins.runtime import Runtime
from rdzv_plugins.testing.harness import free_port

HERE = "127.0.0.1"
ADDRESSES = [HERE, "127.0.0.2", "::1"]
GREETING = wire.validate() + wire.ping(1234)


def reachable(port: int) -> set[str]:
    """Those of this machine's addresses on which a store answers at the port.

    Where not all of them are expected, the port is a ``free_port``: one that the kernel has chosen for one address may
    be another server's on another.
    """
    found = set()
    for address in ADDRESSES:
        try:
            with socket.create_connection((address, port), timeout=PATIENCE) as client:
                client.sendall(GREETING)
                assert client.recv(4) == wire.pong(1234)
                found.add(address)
        except ConnectionRefusedError:
            pass
    return found


@pytest.mark.parametrize(
    ("host", "addresses"),
    [("127.0.0.2", [1]), ("::1", [2]), ("0.0.0.0", [0, 1]), ("::", [2]), ("", [0, 1, 2])],
)
def test_it_listens_where_it_is_told_until_it_is_closed(host: str, addresses: list[int]) -> None:
    port = free_port()
    for _ in range(2):  # the port is free again
        with StoreServer(host, port, threads=1) as server:
            assert server.port == port
            assert reachable(port) == {ADDRESSES[each] for each in addresses}
        assert reachable(port) == set()


@pytest.mark.parametrize("listening", [True, False])
def test_it_adopts_a_bound_socket(listening: bool) -> None:
    bound, port = socket.socket(socket.AF_INET6), free_port()
    bound.bind(("::1", port))
    if listening:
        bound.listen()
    with StoreServer("192.0.2.1", 1, threads=2, listen_fd=bound.detach()) as server:
        assert server.port == port
        assert reachable(port) == {"::1"}
    assert reachable(port) == set()


def test_what_is_no_tcp_socket_is_not_adopted() -> None:
    reading, writing = os.pipe()
    before = open_files()
    for bad in (reading, 10**6, -1):
        with pytest.raises((RdzvError, ValueError), match=rf"{bad}|negative"):
            StoreServer(listen_fd=bad)
    assert open_files() >= {each for each in before if each[0] == str(reading)}, "it owns sockets only"
    for kind in (socket.AF_INET, socket.AF_UNIX):
        with pytest.raises((RdzvError, OSError)):
            StoreServer(listen_fd=socket.socket(kind, socket.SOCK_DGRAM).detach())
    expect_no_more_files(before)  # it owns the descriptor of a socket, and closes it
    for end in (reading, writing):
        os.close(end)


def test_a_port_in_use_is_refused_with_its_holder() -> None:
    with StoreServer(HERE, threads=1) as server:
        for host in (HERE, "", "0.0.0.0"):
            with pytest.raises(AddressInUse, match=rf"port {server.port} .*pid {os.getpid()} \("):
                StoreServer(host, server.port)
        assert reachable(server.port) == {HERE}
        # as when the workers' store is to have the port of the endpoint: it is not to be had by stopping this process
        with pytest.raises(AddressInUse, match="this very process") as raised:
            bind(HERE, PortRange(server.port, server.port), "the workers' store")
        assert "worker_ports" in raised.value.remedy
        assert "Stop" not in raised.value.remedy
    program = "import socket, sys; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True)"
    with spawned([[sys.executable, "-c", program + "; sys.stdin.read()"]]) as (holder,):
        port = int(read_line(holder))
        with pytest.raises(AddressInUse, match=rf"pid {holder.pid} \(.*import socket") as caught:
            StoreServer(HERE, port)
        assert "Stop" in caught.value.remedy


@pytest.mark.parametrize("host", ["no-such-host.invalid", "192.0.2.1"])
def test_an_address_that_is_not_ours_is_refused(host: str) -> None:
    before = open_files()
    with pytest.raises(RdzvError, match=re.escape(host)) as caught:
        StoreServer(host)
    assert caught.value.remedy
    expect_no_more_files(before)


def test_a_server_that_is_dropped_is_closed() -> None:
    server = StoreServer(HERE, threads=2)
    with Raw(server.port) as client:
        del server
        gc.collect()
        assert client.until_close() == b""


def test_one_of_two_that_listen_at_the_same_moment_serves() -> None:
    """Linux refuses both now and then."""
    refusals = [errno.EADDRINUSE]

    class RefusedOnce(socket.socket):
        def listen(self, backlog: int = 128, /) -> None:
            if refusals:
                raise OSError(refusals.pop(), "Address already in use")
            super().listen(backlog)

    class Refusing(Runtime):
        socket = RefusedOnce

    endpoint = Endpoint(HERE, free_port())
    server = bind_if_here(endpoint, None, "the rendezvous", Refusing())
    assert server is not None
    with server:
        assert bind_if_here(endpoint, None, "the rendezvous") is None


def names(*addresses: str) -> Runtime:
    """Where ``localhost`` stands for these addresses, as by a hosts file; without any it is unknown."""
    real = socket.getaddrinfo

    def lookup(host: object, port: object, *rest: object, **more: object) -> object:
        if host not in ("localhost", b"localhost"):
            return real(host, port, *rest, **more)  # type: ignore[arg-type]
        if not addresses:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [each for address in addresses for each in real(address, port, *rest, **more)]  # type: ignore[arg-type]

    runtime = Runtime()
    runtime.getaddrinfo = lookup  # type: ignore[assignment, method-assign]
    return runtime


@pytest.mark.parametrize(
    ("addresses", "there"),
    [(["::1"], "::1"), (["127.0.0.1"], "127.0.0.1"), (["::1", "127.0.0.1"], "127.0.0.1"), ([], "127.0.0.1")],
)
def test_localhost_is_served_where_the_name_leads(addresses: list[str], there: str) -> None:
    runtime = names(*addresses)
    for listen in (bind, lambda *rest: bind_if_here(Endpoint("localhost", 0), None, *rest[-2:])):
        with listen("localhost", PortRange(), "a store", runtime) as listener:
            address, port = listener.getsockname()[:2]
            assert address == there
            connection, reason = try_connect(Endpoint("localhost", port), PATIENCE, None, runtime=runtime)
            assert connection is not None, reason
            connection.close()


class NoRoute(socket.socket):
    def connect(self, address: object) -> None:
        raise OSError(errno.ENETUNREACH, "Network is unreachable")


def test_a_machine_that_does_not_reach_itself_is_told() -> None:
    class Unrouted(Runtime):
        socket = NoRoute

    require_loopback()
    with pytest.raises(EndpointUnreachable, match=re.escape("127.0.0.1")) as raised:
        require_loopback(Unrouted())
    assert "ip link set lo up" in raised.value.remedy
    assert "ip link set lo up" in try_connect(Endpoint("127.0.0.1", 1), 1.0, None, runtime=Unrouted())[1]


def free_range(count: int) -> PortRange:
    """Ports side by side on which nobody listens, and no connection of earlier tests is."""
    while True:
        first = free_port()
        try:
            for port in range(first, first + count):
                with socket.socket() as probe:
                    probe.bind((HERE, port))
        except OSError:
            continue
        return PortRange(first, first + count - 1)


@contextmanager
def stores_on(ports: PortRange, kind: str = "parallel") -> Iterator[Callable[[], int]]:
    """Opens the store of the next round of a job, and says at which port it is."""
    stores = WorkerStores(WorkerStoreOptions(store=kind, worker_ports=ports), timeout=60)
    yield lambda: int(stores.open(HERE, "the store").port)
    stores.shutdown()


@pytest.mark.parametrize("kind", ["parallel", "torch"])
def test_each_port_has_its_turn_but_for_those_that_somebody_may_hold_on_to(kind: str) -> None:
    with stores_on(free_range(4), kind) as opened:
        rounds = [opened() for _ in range(8)]
        assert len(set(rounds[:4])) == 4
        assert rounds[4:] == rounds[:4]
        held = opened()
        with socket.create_connection((HERE, held)):  # of a worker that does not notice, or cannot
            assert held not in [opened() for _ in range(7)]


def test_ports_that_are_taken_are_left_out_and_an_only_one_is_used_again() -> None:
    ports = free_range(3)
    with socket.create_server((HERE, ports.first + 1)), stores_on(ports) as opened:
        assert [opened() for _ in range(4)] in ([ports.first, ports.last] * 2, [ports.last, ports.first] * 2)
    with stores_on(PortRange(ports.first, ports.first)) as opened:
        assert opened() == ports.first
        with socket.create_connection((HERE, ports.first)):
            assert opened() == ports.first


def test_processes_begin_at_different_ports() -> None:
    firsts = {next(iter(PortAllocator(PortRange(2, 1001)))) for _ in range(20)}
    assert len(firsts) > 15
    assert next(iter(PortAllocator(PortRange()))) == 0


def test_names_and_ports_of_keyspaces_are_given_once() -> None:
    with StoreServer(HERE, threads=4, name="first") as server:
        old = server.open_keyspace("other")
        before = open_files()
        for name in ("other", "first"):
            with pytest.raises(ValueError, match=f"'{name}'"):
                server.open_keyspace(name)
        with pytest.raises(AddressInUse, match=f"'third' .*{server.port}"):
            server.open_keyspace("third", port=server.port)
        expect_no_more_files(before)
        old.close()
        new = server.open_keyspace("other")
        with Raw(new.port) as client:
            old.close()  # it does not close a successor of the same name
            client.do(wire.set_(b"/k", b"v"))
            new.wipe()
            assert client.get(b"/k") == b""
        elsewhere = server.open_keyspace("elsewhere", host="127.0.0.2", port=free_port())
        assert reachable(elsewhere.port) == {"127.0.0.2"}
        assert [each["name"] for each in server.stats()["keyspaces"]] == ["elsewhere", "first", "other"]
    for late in (lambda: server.open_keyspace("late"), new.wipe):
        with pytest.raises(ValueError, match="closed"):
            late()
    new.close()
    assert server.stats()["keyspaces"] == []
