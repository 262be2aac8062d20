"""Several stores in one server: each has keys and a port of its own, and none notices what happens to another."""

from __future__ import annotations

import itertools
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from kits.wire.attack_kit import Bystanders, expect_no_more_files, open_files, repeated
from kits.wire.wire_client import (
    CHECK,
    NUM_KEYS,
    PATIENCE,
    QUEUE_LEN,
    STOP_WAITING,
    WAIT,
    Raw,
    get,
    keyed,
    op,
    queue_push,
    set_,
    text,
    u64,
)

from rdzv_plugins.errors import AddressInUse
from rdzv_plugins.kvstore.native.server import StoreServer
from rdzv_plugins.testing.harness import free_port

pytestmark = pytest.mark.thorough


@pytest.fixture(params=[1, 4], ids=["1 thread", "4 threads"])
def server(request: pytest.FixtureRequest) -> Iterator[StoreServer]:
    with StoreServer("127.0.0.1", threads=request.param, name="first") as server:
        yield server


def blocked(port: int, *keys: bytes) -> Raw:
    """A client that waits; the server knows it does."""
    client = Raw(port)
    client.send(keyed(WAIT, keys))
    assert client.fence() == b""
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


def test_the_same_key_in_two_keyspaces(server: StoreServer) -> None:
    other = server.open_keyspace("other")
    assert other.name == "other"
    assert other.port != server.port
    with Raw(server.port) as here, Raw(other.port) as there:
        here.send(set_(b"/k", b"here") + queue_push(b"/q", b"1"))
        assert here.fence() == b""
        assert there.ask(keyed(CHECK, [b"/k"]), 1) == b"\1"
        there.send(set_(b"/k", b"there!"))
        assert there.ask(get(b"/k"), 14) == text(b"there!")
        assert here.ask(get(b"/k"), 12) == text(b"here")
        assert there.ask(op(QUEUE_LEN, text(b"/q")), 8) == u64(0)
        assert there.ask(bytes([NUM_KEYS]), 8) == u64(1)


def test_a_key_set_in_one_wakes_nobody_in_another(server: StoreServer) -> None:
    other = server.open_keyspace("other")
    with blocked(server.port, b"/k") as here, blocked(other.port, b"/k") as there, Raw(other.port) as setter:
        setter.send(set_(b"/k", b""))
        assert there.receive(1) == STOP_WAITING
        assert here.fence() == b""


def test_close_breaks_its_clients_and_frees_the_port_at_once(server: StoreServer) -> None:
    other = server.open_keyspace("other")
    with (
        blocked(other.port, b"/k") as waiting,
        Raw(other.port) as idle,
        Raw(other.port, validated=False) as silent,
        blocked(server.port, b"/k") as bystander,
    ):
        other.close()
        assert refused(other.port)
        assert is_free(other.port)
        for client in (waiting, idle, silent):
            assert client.until_close() == b""
        assert bystander.fence() == b""
        assert list(keyspaces(server)) == ["first"]
        assert server.stats()["connections"]["open"] == 1


def test_the_first_keyspace_is_one_like_any_other(server: StoreServer) -> None:
    other = server.open_keyspace("other")
    with blocked(server.port, b"/k") as waiting, Raw(other.port) as bystander:
        server.first.close()
        assert waiting.until_close() == b""
        assert is_free(server.port)
        assert bystander.fence() == b""


def test_wipe_forgets_keys_and_keeps_who_waits(server: StoreServer) -> None:
    other = server.open_keyspace("other")
    with blocked(server.port, b"/a", b"/b") as waiting, Raw(server.port) as client, Raw(other.port) as bystander:
        client.send(set_(b"/a", b"old") + set_(b"/c", b"old") + queue_push(b"/q", b"old"))
        assert client.fence() == b""
        bystander.send(set_(b"/a", b"kept"))
        assert bystander.fence() == b""
        server.first.wipe()
        assert client.ask(bytes([NUM_KEYS]), 8) == u64(0)
        assert client.ask(get(b"/a"), 8) == u64(0)
        assert client.ask(op(QUEUE_LEN, text(b"/q")), 8) == u64(0)
        now = keyspaces(server)["first"]
        assert (now["keys"], now["queues"], now["bytes"]) == (0, 0, 0)
        assert [each["key"] for each in now["waited"]] == ["/b"]
        assert waiting.fence() == b""
        client.send(set_(b"/b", b"new"))
        assert waiting.receive(1) == STOP_WAITING
        assert bystander.ask(get(b"/a"), 12) == text(b"kept")


def test_the_others_go_on_while_keyspaces_come_and_go(server: StoreServer) -> None:
    """Open, fill, wipe, close, again and again, with waits and traffic next to it."""
    numbers = itertools.count()

    def come_and_go() -> None:
        keyspace = server.open_keyspace(f"round-{next(numbers)}")
        with blocked(keyspace.port, b"/never") as client, Raw(keyspace.port) as other:
            other.send(set_(b"/%d" % len(keyspace.name), bytes(100_000)))
            assert other.fence() == b""
            keyspace.wipe()
            assert other.ask(bytes([NUM_KEYS]), 8) == u64(0)
            keyspace.close()
            assert client.until_close() == b""

    steady = server.open_keyspace("steady")
    with (
        blocked(server.port, b"/later") as here,
        blocked(steady.port, b"/later") as there,
        Bystanders(server.port) as first,
        Bystanders(steady.port) as second,
        repeated(come_and_go) as done,
    ):
        while done() < 20:
            first.advance(5)
            second.advance(5)
        for waiting, port in ((here, server.port), (there, steady.port)):
            assert waiting.fence() == b""
            with Raw(port) as client:
                client.send(set_(b"/later", b""))
            assert waiting.receive(1) == STOP_WAITING


def test_keyspaces_are_opened_and_closed_by_many_threads(server: StoreServer) -> None:
    errors: list[BaseException] = []

    def work(name: str) -> None:
        try:
            for _ in range(20):
                keyspace = server.open_keyspace(name)
                with Raw(keyspace.port) as client:
                    client.send(set_(b"/k", name.encode()))
                    assert client.fence() == b""
                    assert keyspaces(server)[name]["keys"] == 1
                    keyspace.close()
                    assert client.until_close() == b""
        except BaseException as error:
            errors.append(error)

    before = open_files()
    threads = [threading.Thread(target=work, args=(f"k{number}",)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert not errors
    assert list(keyspaces(server)) == ["first"]
    expect_no_more_files(before)


def test_a_name_is_given_once(server: StoreServer) -> None:
    other = server.open_keyspace("other")
    before = open_files()
    for name in ("other", "first"):
        with pytest.raises(ValueError, match=f"'{name}'"):
            server.open_keyspace(name)
    expect_no_more_files(before)
    with Raw(other.port) as client:
        assert client.fence() == b""


def test_closing_twice_does_not_close_a_successor_of_the_same_name(server: StoreServer) -> None:
    old = server.open_keyspace("round-1")
    old.close()
    old.close()
    new = server.open_keyspace("round-1")
    with Raw(new.port) as client:
        client.send(set_(b"/k", b"new"))
        assert client.fence() == b""
        old.close()
        assert client.ask(get(b"/k"), 11) == text(b"new")
    assert list(keyspaces(server)) == ["first", "round-1"]


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


def test_a_port_that_is_taken_is_no_keyspace(server: StoreServer) -> None:
    with pytest.raises(AddressInUse, match=f"keyspace 'other' .*{server.port}"):
        server.open_keyspace("other", port=server.port)
    assert list(keyspaces(server)) == ["first"]
    server.open_keyspace("other")


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


CLOSE_FREES = """
from pathlib import Path
from rdzv_plugins.kvstore.native.server import StoreServer
from kits.wire.wire_client import Raw, set_

def resident():
    return int(Path("/proc/self/status").read_text().split("VmRSS:")[1].split()[0]) // 1024

with StoreServer("127.0.0.1", threads=2) as server:
    empty = resident()
    for forget in ("wipe", "close"):
        keyspace = server.open_keyspace("big")
        with Raw(keyspace.port) as client:
            for number in range(200):
                client.send(set_(b"/%d" % number, bytes(2**20)))
            client.fence()
        full = resident()
        getattr(keyspace, forget)()
        print(full - empty > 150, resident() - empty < 100)
        keyspace.close()
"""


def test_wiping_and_closing_give_memory_back() -> None:
    """200 MiB, in a process of its own. glibc may keep the last 64 MiB of a thread's heap."""
    path = os.pathsep.join(sys.path)
    child = subprocess.run(
        [sys.executable, "-c", CLOSE_FREES],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE,
    )
    assert (child.stdout, child.stderr) == ("True True\nTrue True\n", "")
