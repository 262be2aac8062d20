"""Our own framing: statistics, and keyspaces entered by name. See native/PROTOCOL.md."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator
from typing import Any

import pytest
from kits.eventually import eventually
from kits.wire import wire_client as wire
from kits.wire.trunk_peer import ERROR, HELLO, OK, answer, frame, framed
from kits.wire.wire_client import Raw

from rdzv_plugins.kvstore.native.server import StoreServer

STATISTICS, ENTER = 1, 2


@pytest.fixture
def server() -> Iterator[StoreServer]:
    with StoreServer("127.0.0.1", threads=4) as server:
        yield server


def entered(port: int, name: str) -> Raw:
    client = framed(port)
    client.send(frame(3, ENTER, name.encode()))
    assert answer(client) == (3, OK, b"")
    return client


def waited(server: StoreServer, name: str = "default") -> list[dict[str, Any]]:
    (space,) = [each for each in server.stats()["keyspaces"] if each["name"] == name]
    waited: list[dict[str, Any]] = space["waited"]
    return waited


def test_requests_may_be_sent_ahead_and_in_pieces(server: StoreServer) -> None:
    with Raw(server.port, validated=False) as client:
        for byte in b"\xf7" + HELLO + frame(77, STATISTICS) + frame(2, ENTER, b"nowhere"):
            client.send(bytes([byte]))
        assert client.receive(len(HELLO)) == HELLO
        number, status, payload = answer(client)
        ours, theirs = server.stats(), json.loads(payload)
        assert (number, status, theirs.keys(), theirs["keyspaces"]) == (77, OK, ours.keys(), ours["keyspaces"])
        assert (theirs["server"]["pid"], theirs["requests"]["framed"]) == (os.getpid(), 1)
        assert answer(client)[:2] == (2, ERROR)
        client.send(b"".join(frame(number, STATISTICS) for number in range(100)))
        assert [answer(client)[:2] for _ in range(100)] == [(number, OK) for number in range(100)]


def test_a_keyspace_is_entered_by_name(server: StoreServer) -> None:
    other = server.open_keyspace("other", host="127.0.0.2")
    with framed(server.port) as client, Raw(server.port) as neighbour:
        # no VALIDATE: the framing has said who we are; and nothing has to wait for the answer
        client.send(frame(3, ENTER, b"other") + wire.set_(b"/k", b"there") + wire.get(b"/k"))
        assert answer(client) == (3, OK, b"")
        assert client.receive_text() == b"there"
        neighbour.send(wire.set_(b"/k", b"here") + wire.get(b"/k"))
        assert neighbour.receive_text() == b"here"
        assert client.ask(wire.get(b"/k"), 13) == wire.text(b"there")
        other.wipe()
        assert client.ask(wire.get(b"/k"), 8) == bytes(8)


def test_an_unknown_name_or_operation_is_an_answer(server: StoreServer) -> None:
    server.open_keyspace("other")
    with framed(server.port) as client:
        client.send(frame(1, ENTER, b"nowhere") + frame(2, 99, b"payload") + frame(3, ENTER))
        for number, name in enumerate((b"nowhere", b"99", b""), 1):
            *told, message = answer(client)
            assert told == [number, ERROR]
            assert name in message
        client.send(frame(4, ENTER, b"other"))
        assert answer(client) == (4, OK, b"")
        assert client.fence() == b""
    assert server.stats()["refused"] == {}


def test_who_waits_for_which_key_since_when(server: StoreServer) -> None:
    def waits() -> dict[int, float]:
        """For how long each process has waited."""
        entries = [entry for each in server.stats()["keyspaces"] for entry in each["waited"]]
        return {client["pid"]: client["waiting_s"] for entry in entries for client in entry["clients"]}

    other = server.open_keyspace("other")
    with Raw(server.port) as first, Raw(server.port) as second, entered(server.port, "other") as third:
        for pid, client, request in (
            (101, first, wire.keyed(wire.WAIT, [b"/a", b"/b"])),
            (102, second, wire.barrier(b"/b", 5)),
            (103, third, wire.keyed(wire.WAIT, [b"/a"])),
        ):
            assert client.ask(wire.ping(pid), 4) == struct.pack("<I", pid)
            client.send(request)
            eventually(lambda pid=pid: waits().get(pid, 0) >= 0.002, server.stats)  # it counts milliseconds
        here = {each["key"]: each for each in waited(server)}
        assert {key: [c["pid"] for c in each["clients"]] for key, each in here.items()} == {"/a": [101], "/b": [102]}
        (there,) = waited(server, "other")
        assert (there["key"], there["waiters"], there["clients"][0]["pid"]) == ("/a", 1, 103)
        assert here["/a"]["clients"][0]["address"] == "{}:{}".format(*first.socket.getsockname())
        before = here["/a"]["oldest_s"]
        assert before >= here["/b"]["oldest_s"] >= 0
        eventually(lambda: waited(server)[0]["clients"][0]["waiting_s"] > before, lambda: waited(server))
        assert waited(server)[0]["key"] == "/a", "who has waited longest comes first"
        second.send(wire.set_(b"/a", b""))
        eventually(lambda: [each["key"] for each in waited(server)] == ["/b"], lambda: waited(server))
        assert second.ask(wire.op(wire.CANCEL_WAIT), 1) == wire.WAIT_CANCELED
        assert waited(server) == []
        third.close()
        eventually(lambda: waited(server, other.name) == [], server.stats)


@pytest.mark.parametrize("key", [b"/\xff\xfe", b'/"quoted"\\', b"/\x00\x1f\n", "/ключ".encode(), b""])
def test_statistics_are_json_whatever_the_key(server: StoreServer, key: bytes) -> None:
    with Raw(server.port) as waiting, framed(server.port) as client:
        waiting.do(wire.keyed(wire.WAIT, [key]))
        (entry,) = waited(server)
        client.send(frame(1, STATISTICS))
        assert json.loads(answer(client)[2])["keyspaces"][0]["waited"][0]["key"] == entry["key"]
        assert entry["key"] == key.decode() if key != b"/\xff\xfe" else entry["key"].startswith("/")
