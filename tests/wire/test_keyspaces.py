"""Several stores in one server: each has keys and a port of its own, and none notices what happens to another."""

from __future__ import annotations

import itertools
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from kits.wire import wire_client as wire
from kits.wire.attack_kit import Bystanders, expect_no_more_files, open_files, repeated
from kits.wire.wire_client import PATIENCE, Raw

from rdzv_plugins.errors import AddressInUse
from rdzv_plugins.kvstore.native.server import StoreServer
from rdzv_plugins.testing.harness import free_port


@pytest.fixture
def server() -> Iterator[StoreServer]:
    with StoreServer("127.0.0.1", threads=4, name="first") as server:
        yield server


def blocked(port: int, *keys: bytes) -> Raw:
    """A client that waits; the server knows it does."""
    client = Raw(port)
    client.do(wire.keyed(wire.WAIT, keys))
    return client


def refused(port: int) -> bool:
    with socket.socket() as client:
        client.settimeout(PATIENCE)
        return client.connect_ex(("127.0.0.1", port)) != 0


def is_free(port: int) -> bool:
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


def keyspaces(server: StoreServer) -> dict[str, dict[str, Any]]:
    return {each["name"]: each for each in server.stats()["keyspaces"]}


def test_the_others_go_on_while_keyspaces_come_and_go(server: StoreServer) -> None:
    """Open, fill, wipe, close, again and again, by two threads, with waits and traffic next to it."""
    numbers = itertools.count()

    def come_and_go() -> None:
        keyspace = server.open_keyspace(f"round-{next(numbers)}")
        with blocked(keyspace.port, b"/never") as client, Raw(keyspace.port) as other:
            other.do(wire.set_(b"/%d" % len(keyspace.name), bytes(100_000)))
            assert keyspaces(server)[keyspace.name]["keys"] == 1
            keyspace.wipe()
            assert other.ask(wire.op(wire.NUM_KEYS), 8) == wire.u64(0)
            keyspace.close()
            assert client.until_close() == b""

    before = open_files()
    with (
        blocked(server.port, b"/later") as waiting,
        Bystanders(server.port) as bystanders,
        repeated(come_and_go) as done,
        repeated(come_and_go) as also_done,
    ):
        while min(done(), also_done()) < 20:
            bystanders.advance(5)
        assert waiting.fence() == b""
    assert list(keyspaces(server)) == ["first"]
    expect_no_more_files(before)


def test_a_name_and_a_port_are_given_once(server: StoreServer) -> None:
    old = server.open_keyspace("other")
    before = open_files()
    for name in ("other", "first"):
        with pytest.raises(ValueError, match=f"'{name}'"):
            server.open_keyspace(name)
    with pytest.raises(AddressInUse, match=f"'third' .*{server.port}"):
        server.open_keyspace("third", port=server.port)
    expect_no_more_files(before)
    with Raw(old.port) as client:
        assert client.fence() == b""
    old.close()
    old.close()
    new = server.open_keyspace("other")
    with Raw(new.port) as client:
        old.close()  # it does not close a successor of the same name
        assert client.fence() == b""
    assert list(keyspaces(server)) == ["first", "other"]


def test_a_closed_server_has_no_keyspaces() -> None:
    server = StoreServer("127.0.0.1", threads=2)
    other = server.open_keyspace("other")
    with blocked(server.port, b"/k") as here, blocked(other.port, b"/k") as there:
        server.close()
        assert here.until_close() == there.until_close() == b""
    other.close()
    server.first.close()
    with pytest.raises(ValueError, match="closed"):
        server.open_keyspace("late")
    assert server.stats()["keyspaces"] == []
    assert is_free(other.port)


def test_a_keyspace_may_have_an_address_and_a_socket_of_its_own(server: StoreServer) -> None:
    # a port that is another server's at our address would tell nothing
    elsewhere = server.open_keyspace("elsewhere", host="127.0.0.3", port=free_port())
    assert refused(elsewhere.port)
    socket.create_connection(("127.0.0.3", elsewhere.port), PATIENCE).close()
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    adopted = server.open_keyspace("adopted", listen_fd=listener.detach())
    assert adopted.port == port
    with Raw(port) as client:
        assert client.fence() == b""
