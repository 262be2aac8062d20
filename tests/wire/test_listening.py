"""Where the server listens: on the address it was given and no other, and on nothing once it is closed."""

from __future__ import annotations

import errno
import gc
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from kits.wire.attack_kit import Bystanders, expect_no_more_files, open_files, wait_until
from kits.wire.wire_client import PATIENCE, WAIT, Raw, keyed, validate

from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.errors import AddressInUse, EndpointUnreachable, RdzvError
from rdzv_plugins.kvstore.native.server import StoreServer
from rdzv_plugins.kvstore.sockets.listening import bind, bind_if_here
from rdzv_plugins.kvstore.sockets.reach import require_loopback, try_connect
from rdzv_plugins.options import PortRange
from rdzv_plugins.runtime import Runtime
from rdzv_plugins.testing.harness import free_port

pytestmark = pytest.mark.thorough

ADDRESSES = ["127.0.0.1", "127.0.0.2", "::1"]


def reachable(port: int) -> set[str]:
    """Those of this machine's addresses on which a store answers at the port.

    Where not all of them are expected, the port is a ``free_port``: one that the kernel has chosen for one address may
    be another server's on another.
    """
    found = set()
    for address in ADDRESSES:
        try:
            with socket.create_connection((address, port), timeout=PATIENCE) as client:
                client.sendall(validate() + b"\x0d1234")
                assert client.recv(4) == b"1234"
                found.add(address)
        except ConnectionRefusedError:
            pass
    return found


@pytest.mark.parametrize(
    ("host", "addresses"),
    [
        ("127.0.0.1", {"127.0.0.1"}),
        ("127.0.0.2", {"127.0.0.2"}),
        ("::1", {"::1"}),
        ("0.0.0.0", {"127.0.0.1", "127.0.0.2"}),
        ("::", {"::1"}),
        ("", {"127.0.0.1", "127.0.0.2", "::1"}),
    ],
    ids=["one", "another", "one of IPv6", "all of IPv4", "all of IPv6", "all"],
)
def test_it_listens_where_it_is_told(host: str, addresses: set[str]) -> None:
    with StoreServer(host, free_port(), threads=1) as server:
        assert reachable(server.port) == addresses


def test_a_name_is_as_good_as_an_address() -> None:
    with StoreServer("localhost", free_port(), threads=1) as server:
        found = reachable(server.port)
        assert found
        assert found <= {"127.0.0.1", "::1"}


def test_all_interfaces_is_what_it_does_without_a_host() -> None:
    with StoreServer(threads=1) as server:
        assert reachable(server.port) == set(ADDRESSES)
        name = socket.gethostbyname(socket.gethostname())
        socket.create_connection((name, server.port), timeout=PATIENCE).close()


def test_a_given_port_is_taken_and_free_again_after_the_block() -> None:
    port = free_port()
    with StoreServer("127.0.0.1", port, threads=1) as first:
        assert first.port == port
    assert reachable(port) == set()
    with StoreServer("127.0.0.1", port, threads=1) as second:
        assert second.port == port
        assert reachable(port) == {"127.0.0.1"}
    assert reachable(port) == set()


def test_port_zero_is_another_one_each_time() -> None:
    with StoreServer("127.0.0.1", threads=1) as one, StoreServer("127.0.0.1", threads=1) as two:
        assert one.port != two.port
        with Raw(one.port) as client, Raw(two.port) as other:
            client.send(b"\x01" + bytes(16))
            assert client.ask(b"\x07", 8) == (1).to_bytes(8, "little")
            assert other.ask(b"\x07", 8) == bytes(8)


@pytest.mark.parametrize(("family", "address"), [(socket.AF_INET, "127.0.0.2"), (socket.AF_INET6, "::1")])
@pytest.mark.parametrize("listening", [True, False])
def test_it_adopts_a_bound_socket(family: socket.AddressFamily, address: str, listening: bool) -> None:
    bound = socket.socket(family)
    port = free_port()
    bound.bind((address, port))
    early = None
    if listening:
        bound.listen()
        early = socket.create_connection((address, port), timeout=PATIENCE)  # before there is a server
    with StoreServer("192.0.2.1", 1, threads=2, listen_fd=bound.detach()) as server:
        assert server.port == port
        assert reachable(port) == {address}
        if early:
            early.sendall(validate() + b"\x0d1234")
            assert early.recv(4) == b"1234"
            early.close()
    assert reachable(port) == set()


def loop_threads() -> set[str]:
    """The event loops of this process, as the kernel numbers threads."""
    found = set()
    for task in Path("/proc/self/task").iterdir():
        try:
            name = (task / "comm").read_text()
        except OSError:  # it has just ended
            continue
        if re.match(r"rdzv-store-\d", name):
            found.add(task.name)
    return found


def expect_no_more_loops(before: set[str]) -> None:
    """A thread that was joined may be listed for a moment more."""
    wait_until(lambda: loop_threads() <= before, lambda: loop_threads() - before)


def test_what_is_no_socket_is_not_adopted() -> None:
    reading, writing = os.pipe()
    before = open_files()
    for bad, error in ((reading, RdzvError), (10**6, RdzvError), (-1, (RdzvError, ValueError))):
        with pytest.raises(error, match=rf"{bad}|negative"):
            StoreServer(listen_fd=bad)
    assert open_files() >= {each for each in before if each[0] in (str(reading), str(writing))}, "it owns sockets only"
    expect_no_more_files(before)
    for end in (reading, writing):
        os.close(end)


def test_what_is_no_tcp_socket_is_not_adopted() -> None:
    before = open_files()
    for kind in (socket.AF_INET, socket.AF_UNIX):
        with pytest.raises((RdzvError, OSError)):
            StoreServer(listen_fd=socket.socket(kind, socket.SOCK_DGRAM).detach())
    expect_no_more_files(before)  # it owns the descriptor, and closes it


def test_a_port_in_use_is_refused_with_its_holder() -> None:
    with StoreServer("127.0.0.1", threads=1) as server:
        for host in ("127.0.0.1", "", "0.0.0.0"):
            with pytest.raises(AddressInUse, match=rf"port {server.port} .*in use by pid {os.getpid()} \("):
                StoreServer(host, server.port)
        assert reachable(server.port) == {"127.0.0.1"}
        assert server.stats()["connections"]["accepted"] == 1


def test_a_port_held_by_another_program_is_refused_with_its_command() -> None:
    program = "import socket, sys; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True)"
    holder = subprocess.Popen(
        [sys.executable, "-c", program + "; sys.stdin.read()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with holder:
        assert holder.stdout
        port = int(holder.stdout.readline())
        with pytest.raises(AddressInUse, match=rf"in use by pid {holder.pid} \(.*import socket") as caught:
            StoreServer("127.0.0.1", port)
        assert caught.value.remedy == "Stop that process, or choose another port."
        assert holder.stdin
        holder.stdin.close()


@pytest.mark.parametrize("host", ["no-such-host.invalid", "192.0.2.1", "2001:db8::1"])
def test_an_address_that_is_not_ours_is_refused(host: str) -> None:
    before = open_files()
    with pytest.raises(RdzvError, match="cannot listen on") as caught:
        StoreServer(host)
    assert caught.value.remedy
    expect_no_more_files(before)


def test_arguments_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match="threads=-1"):
        StoreServer("127.0.0.1", threads=-1)


@pytest.mark.parametrize(("asked", "given"), [(1, {1}), (3, {3}), (0, set(range(1, 9)))])
def test_threads_are_as_many_as_asked_for(asked: int, given: set[int]) -> None:
    before = loop_threads()
    with StoreServer("127.0.0.1", threads=asked) as server:
        assert server.threads in given
        assert len(server.stats()["loops"]) == server.stats()["server"]["threads"] == server.threads
        assert len(loop_threads() - before) == server.threads
    expect_no_more_loops(before)


@pytest.fixture(params=[1, 4], ids=["1 thread", "4 threads"])
def server(request: pytest.FixtureRequest) -> Iterator[StoreServer]:
    with StoreServer("127.0.0.1", threads=request.param) as server:
        yield server


def test_connections_are_spread_over_the_loops(server: StoreServer) -> None:
    clients = [Raw(server.port) for _ in range(40)]
    counts = [loop["connections"] for loop in server.stats()["loops"]]
    assert sum(counts) == 40
    assert max(counts) - min(counts) <= 4
    for client in clients:
        client.close()


def test_close_ends_those_who_wait(server: StoreServer) -> None:
    clients = [Raw(server.port) for _ in range(20)]
    for client in clients:
        client.send(keyed(WAIT, [b"/never"]))
        assert client.fence() == b""
    server.close()
    for client in clients:
        assert client.until_close() == b""
        client.close()
    assert reachable(server.port) == set()


def test_closing_again_does_nothing_from_any_thread(server: StoreServer) -> None:
    client = Raw(server.port)
    threads = [threading.Thread(target=server.close) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    server.close()
    assert client.until_close() == b""
    client.close()
    assert server.stats()["connections"]["open"] == 0


@pytest.mark.parametrize("keyspace_outlives_it", [False, True])
def test_a_server_that_is_dropped_is_closed(keyspace_outlives_it: bool) -> None:
    server = StoreServer("127.0.0.1", threads=2)
    port = server.port
    keyspace = server.first if keyspace_outlives_it else None
    with Raw(port) as client:
        del server
        gc.collect()
        assert client.until_close() == b""
    assert reachable(port) == set()
    if keyspace:
        keyspace.close()


def test_nothing_is_left_of_a_closed_server() -> None:
    files, loops = open_files(), loop_threads()
    for _ in range(10):
        with StoreServer("127.0.0.1", threads=4) as server, Bystanders(server.port, clients=4) as bystanders:
            bystanders.advance(1)
        expect_no_more_loops(loops)
    del server
    expect_no_more_files(files)


def test_port_that_this_process_has_itself_is_not_to_be_had_by_stopping_it() -> None:
    """As when the workers' store is to have the port of the endpoint."""
    with StoreServer("127.0.0.1", threads=1) as server, pytest.raises(AddressInUse) as raised:
        bind("127.0.0.1", PortRange(server.port, server.port), "the workers' store")
    assert "), which is this very process: it serves something else there" in str(raised.value)
    assert "worker_ports each need ports of their own" in raised.value.remedy
    assert "Stop that process" not in raised.value.remedy


class RefusedOnce(socket.socket):
    """The first that listens is refused, as Linux does now and then where two begin at the same moment."""

    refused = 0

    def listen(self, backlog: int = 128, /) -> None:
        if RefusedOnce.refused == 0:
            RefusedOnce.refused += 1
            raise OSError(errno.EADDRINUSE, "Address already in use")
        super().listen(backlog)


class Refusing(Runtime):
    socket = RefusedOnce


def test_one_of_two_that_listen_at_the_same_moment_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    endpoint = Endpoint("127.0.0.1", port)
    monkeypatch.setattr(RefusedOnce, "refused", 0)
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
    ids=["::1 alone", "IPv4 alone", "both", "unknown"],
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


class Unrouted(Runtime):
    socket = NoRoute


def test_a_machine_that_does_not_reach_itself_is_told() -> None:
    require_loopback()
    with pytest.raises(EndpointUnreachable, match=re.escape("127.0.0.1")) as raised:
        require_loopback(Unrouted())
    assert "ip link set lo up" in raised.value.remedy
    assert "ip link set lo up" in try_connect(Endpoint("127.0.0.1", 1), 1.0, None, runtime=Unrouted())[1]
