"""Our own framing: statistics, and keyspaces entered by name. See native/PROTOCOL.md."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator
from typing import Any

import pytest
from kits.wire.attack_kit import wait_until
from kits.wire.wire_client import (
    BARRIER,
    CANCEL_WAIT,
    STOP_WAITING,
    WAIT,
    WAIT_CANCELED,
    Raw,
    get,
    i64,
    keyed,
    op,
    ping,
    set_,
    text,
)

from rdzv_plugins.kvstore.native.server import StoreServer

HELLO = b"RDZV" + struct.pack("<I", 1)
STATISTICS, ENTER = 1, 2
OK, ERROR = 0, 1


@pytest.fixture(params=[1, 4], ids=["1 thread", "4 threads"])
def server(request: pytest.FixtureRequest) -> Iterator[StoreServer]:
    with StoreServer("127.0.0.1", threads=request.param) as server:
        yield server


def frame(number: int, operation: int, payload: bytes = b"") -> bytes:
    return struct.pack("<IIB", 5 + len(payload), number, operation) + payload


def answer(client: Raw) -> tuple[int, int, bytes]:
    """Request number, status, payload."""
    size, number, status = struct.unpack("<IIB", client.receive(9))
    return number, status, client.receive(size - 5)


def framed(port: int) -> Raw:
    client = Raw(port, validated=False)
    client.send(b"\xf7" + HELLO)
    assert client.receive(len(HELLO)) == HELLO
    return client


def entered(port: int, name: str) -> Raw:
    client = framed(port)
    client.send(frame(3, ENTER, name.encode()))
    assert answer(client) == (3, OK, b"")
    return client


def waited(server: StoreServer, name: str = "default") -> list[dict[str, Any]]:
    (space,) = [each for each in server.stats()["keyspaces"] if each["name"] == name]
    waited: list[dict[str, Any]] = space["waited"]
    return waited


def waits(server: StoreServer) -> dict[int, float]:
    """For how long each process has waited."""
    waited = [entry for each in server.stats()["keyspaces"] for entry in each["waited"]]
    return {client["pid"]: client["waiting_s"] for entry in waited for client in entry["clients"]}


def test_statistics_are_those_of_stats(server: StoreServer) -> None:
    other = server.open_keyspace("other")
    with framed(other.port) as client:
        client.send(frame(77, STATISTICS))
        number, status, payload = answer(client)
        ours, theirs = server.stats(), json.loads(payload)
        assert (number, status) == (77, OK)
        assert theirs.keys() == ours.keys()
        assert theirs["keyspaces"] == ours["keyspaces"]
        assert theirs["server"]["pid"] == os.getpid()
        assert theirs["requests"]["framed"] == 1


def test_requests_may_be_sent_ahead_and_in_pieces(server: StoreServer) -> None:
    with Raw(server.port, validated=False) as client:
        for byte in b"\xf7" + HELLO + frame(1, STATISTICS) + frame(2, ENTER, b"nowhere"):
            client.send(bytes([byte]))
        assert client.receive(len(HELLO)) == HELLO
        assert answer(client)[:2] == (1, OK)
        assert answer(client)[:2] == (2, ERROR)
        client.send(b"".join(frame(number, STATISTICS) for number in range(100)))
        assert [answer(client)[:2] for _ in range(100)] == [(number, OK) for number in range(100)]


def test_a_keyspace_is_entered_by_name(server: StoreServer) -> None:
    other = server.open_keyspace("other", host="127.0.0.2")
    with entered(server.port, "other") as client, Raw(server.port) as neighbour:
        client.send(set_(b"/k", b"there"))  # no VALIDATE: the framing has said who we are
        assert client.ask(get(b"/k"), 13) == text(b"there")
        neighbour.send(set_(b"/k", b"here"))
        assert neighbour.ask(get(b"/k"), 12) == text(b"here")
        assert client.ask(get(b"/k"), 13) == text(b"there")
        other.wipe()
        assert client.ask(get(b"/k"), 8) == bytes(8)


def test_requests_behind_the_name_need_not_wait_for_its_answer(server: StoreServer) -> None:
    server.open_keyspace("other")
    with framed(server.port) as client:
        client.send(frame(9, ENTER, b"other") + set_(b"/k", b"x") + get(b"/k"))
        assert answer(client) == (9, OK, b"")
        assert client.receive(9) == text(b"x")
    assert [(each["name"], each["keys"]) for each in server.stats()["keyspaces"]] == [("default", 0), ("other", 1)]


def test_closing_breaks_who_entered_by_name_and_not_who_came_in_at_its_port(server: StoreServer) -> None:
    other = server.open_keyspace("other")
    with entered(server.port, "other") as inside, entered(other.port, "default") as guest:
        other.close()
        assert inside.until_close() == b""
        assert guest.fence() == b""


def test_an_unknown_name_or_operation_is_an_answer(server: StoreServer) -> None:
    server.open_keyspace("other")
    with framed(server.port) as client:
        client.send(
            frame(1, ENTER, b"nowhere") + frame(2, 99, b"payload") + frame(3, ENTER) + frame(4, ENTER, b"other")
        )
        number, status, message = answer(client)
        assert (number, status) == (1, ERROR)
        assert b"nowhere" in message
        number, status, message = answer(client)
        assert (number, status) == (2, ERROR)
        assert b"99" in message
        assert answer(client)[:2] == (3, ERROR)
        assert answer(client) == (4, OK, b"")
        assert client.fence() == b""
    assert server.stats()["refused"] == {}


def test_who_waits_for_which_key_since_when(server: StoreServer) -> None:
    other = server.open_keyspace("other")
    with Raw(server.port) as first, Raw(server.port) as second, entered(server.port, "other") as third:
        for pid, client, request in (
            (101, first, keyed(WAIT, [b"/a", b"/b"])),
            (102, second, op(BARRIER, text(b"/b"), i64(5))),
            (103, third, keyed(WAIT, [b"/a"])),
        ):
            assert client.ask(ping(pid), 4) == struct.pack("<I", pid)
            client.send(request)
            wait_until(lambda pid=pid: waits(server).get(pid, 0) >= 0.002, server.stats)  # it counts milliseconds
        here = {each["key"]: each for each in waited(server)}
        assert {key: [c["pid"] for c in each["clients"]] for key, each in here.items()} == {"/a": [101], "/b": [102]}
        (there,) = waited(server, "other")
        assert (there["key"], there["waiters"], there["clients"][0]["pid"]) == ("/a", 1, 103)
        address = "{}:{}".format(*first.socket.getsockname())
        assert here["/a"]["clients"][0]["address"] == address
        before = here["/a"]["oldest_s"]
        assert before >= here["/b"]["oldest_s"] >= 0
        wait_until(lambda: waited(server)[0]["clients"][0]["waiting_s"] > before, lambda: waited(server))
        assert waited(server)[0]["key"] == "/a", "who has waited longest comes first"
        second.send(set_(b"/a", b""))
        wait_until(lambda: [each["key"] for each in waited(server)] == ["/b"], lambda: waited(server))
        assert second.ask(op(CANCEL_WAIT), 1) == WAIT_CANCELED
        assert waited(server) == []
        third.close()
        wait_until(lambda: waited(server, other.name) == [], server.stats)


def test_many_waiters_are_counted_and_some_are_named(server: StoreServer) -> None:
    crowd = [Raw(server.port) for _ in range(50)]
    for client in crowd:
        client.send(keyed(WAIT, [b"/late"]))
        assert client.fence() == b""
    (late,) = waited(server)
    assert (late["key"], late["waiters"]) == ("/late", 50)
    assert 0 < len(late["clients"]) <= 50
    assert server.stats()["keyspaces"][0]["connections"] == 50
    with Raw(server.port) as setter:
        setter.send(set_(b"/late", b""))
    for client in crowd:
        assert client.receive(1) == STOP_WAITING
        client.close()


@pytest.mark.parametrize("key", [b"/\xff\xfe", b'/"quoted"\\', b"/\x00\x1f\n", "/ключ".encode(), b""])
def test_statistics_are_json_whatever_the_key(server: StoreServer, key: bytes) -> None:
    with Raw(server.port) as waiting, framed(server.port) as client:
        waiting.send(keyed(WAIT, [key]))
        assert waiting.fence() == b""
        (entry,) = waited(server)
        client.send(frame(1, STATISTICS))
        assert json.loads(answer(client)[2])["keyspaces"][0]["waited"][0]["key"] == entry["key"]
        try:
            assert entry["key"] == key.decode()
        except UnicodeDecodeError:
            assert entry["key"].startswith("/")
