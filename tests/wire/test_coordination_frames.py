"""Sessions, keys with revisions and watches on the wire, with a client that knows nothing of ours. See PROTOCOL.md.

What is refused, and how frames may be cut: ``native/tests/coordination_frames_test.cpp``.
"""

from __future__ import annotations

import select
import struct
import time
from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple

import pytest
from kits.eventually import eventually
from kits.wire.trunk_peer import ERROR, OK, PUSH, answer, frame, framed, text
from kits.wire.wire_client import Raw

from rdzv_plugins.kvstore.native.server import StoreServer

ENTER, OPEN, PUT, LIST, WATCH, UNWATCH, DELETE, KEEP_ALIVE = range(2, 10)
OTHER_RUN, COMPACTED = 3, 4
EPHEMERAL, GUARDED = 1, 2
LONG_MS = 600_000
SHORT_MS = 2_500  # a busy machine may stop the client for so long that it misses a much shorter one


@pytest.fixture
def server() -> Iterator[StoreServer]:
    with StoreServer("127.0.0.1", threads=4) as server:
        yield server
    while Peer.all:
        Peer.all.pop().close()


class Change(NamedTuple):
    gone: bool
    revision: int
    key: bytes
    value: bytes = b""


class Refused(Exception):
    """``args``: status, text."""


def take(payload: bytes, layout: str) -> list[Any]:
    """The fields of a payload, numbers by their sign, texts by "s", and what is left."""
    fields: list[Any] = []
    for kind in layout:
        (value,) = struct.unpack_from("<" + kind.replace("s", "I"), payload)
        payload = payload[struct.calcsize("<" + kind.replace("s", "I")) :]
        if kind == "s":
            value, payload = payload[:value], payload[value:]
        fields.append(value)
    return [*fields, payload]


class Peer:
    """One connection with a session, unless ``ttl_ms`` is 0. Closed after the test."""

    all: ClassVar[list[Raw]] = []

    def __init__(self, port: int, ttl_ms: int = LONG_MS, run: bytes = b"job") -> None:
        self.raw = framed(port)
        self.all.append(self.raw)
        self._number = 0
        self._pushed: list[tuple[int, Change]] = []
        if ttl_ms:
            opened = take(self.ask(OPEN, struct.pack("<I", ttl_ms) + text(run)), "QQsB")
            self.session, self.revision, self.address, self.any_run = opened[:-1]
            assert opened[-1] == b""

    def ask(self, operation: int, payload: bytes = b"") -> bytes:
        self._number += 1
        self.raw.send(frame(self._number, operation, payload))
        while True:
            number, status, payload = answer(self.raw)
            if status == PUSH:
                self._keep(number, payload)
                continue
            assert number == self._number
            if status != OK:
                raise Refused(status, payload)
            return payload

    def _keep(self, number: int, payload: bytes) -> None:
        assert number == 0
        watch, count, rest = take(payload, "II")
        for _ in range(count):
            gone, revision, key, value, rest = take(rest, "BQss")
            self._pushed.append((watch, Change(gone == 1, revision, key, value)))
        assert rest == b""

    def events(self, watch: int, count: int) -> list[Change]:
        """The next ones; of this watch they have to be."""
        while len(self._pushed) < count:
            number, status, payload = answer(self.raw)
            assert status == PUSH, payload
            self._keep(number, payload)
        found, self._pushed = self._pushed[:count], self._pushed[count:]
        assert {of for of, _ in found} == {watch}
        return [change for _, change in found]

    def silent(self) -> bool:
        """Nothing was pushed before the answer to this."""
        self.ask(KEEP_ALIVE)
        return not self._pushed

    def put(
        self, *pairs: tuple[bytes, bytes], ephemeral: bool = False, guard: tuple[bytes, int] | None = None
    ) -> tuple[bool, int, bytes]:
        """Done, revision, value of a guard that has failed."""
        flags = bytes([EPHEMERAL * ephemeral + GUARDED * (guard is not None)])
        items = struct.pack("<I", len(pairs)) + b"".join(text(key) + text(value) for key, value in pairs)
        done, revision, rest = take(self.ask(PUT, flags + self._guard(guard) + items), "BQ")
        return done == 1, revision, b"" if done else take(rest, "s")[0]

    def delete(self, *keys: bytes, guard: tuple[bytes, int] | None = None) -> tuple[bool, int, int | bytes]:
        items = struct.pack("<I", len(keys)) + b"".join(map(text, keys))
        asked = bytes([GUARDED * (guard is not None)]) + self._guard(guard) + items
        done, revision, rest = take(self.ask(DELETE, asked), "BQ")
        return done == 1, revision, take(rest, "I" if done else "s")[0]

    def _guard(self, guard: tuple[bytes, int] | None) -> bytes:
        return text(guard[0]) + struct.pack("<Q", guard[1]) if guard else b""

    def list(self, prefix: bytes = b"") -> tuple[int, list[tuple[bytes, int, bytes]]]:
        revision, count, rest = take(self.ask(LIST, text(prefix)), "QI")
        keys = []
        for _ in range(count):
            *key, rest = take(rest, "sQs")
            keys.append(tuple(key))
        assert rest == b""
        return revision, keys

    def watch(self, number: int, prefix: bytes = b"", after: int = 0) -> None:
        assert self.ask(WATCH, struct.pack("<I", number) + text(prefix) + struct.pack("<Q", after)) == b""


def test_keys_have_revisions_and_guards(server: StoreServer) -> None:
    one, two = Peer(server.port), Peer(server.port)
    assert (one.revision, one.address, one.any_run) == (0, b"127.0.0.1", 1)
    assert one.session != two.session
    assert one.put((b"b", b"1"), (b"a", b"2")) == (True, 2, b"")
    assert two.put((b"a", b"3"), guard=(b"a", 1)) == (False, 2, b"2")
    assert two.put((b"a", b"3"), guard=(b"missing", 1)) == (False, 0, b"")
    assert two.put((b"leader", b"two"), (b"a", b"3"), guard=(b"leader", 0)) == (True, 4, b"")
    assert one.put((b"leader", b"one"), guard=(b"leader", 0)) == (False, 3, b"two")
    assert one.list() == (4, [(b"b", 1, b"1"), (b"leader", 3, b"two"), (b"a", 4, b"3")])
    assert one.delete(b"a", b"b", guard=(b"leader", 1)) == (False, 3, b"two")
    assert one.delete(b"a", b"b", b"c", guard=(b"leader", 3)) == (True, 6, 2)
    assert two.list(b"l") == (6, [(b"leader", 3, b"two")])
    assert Peer(server.port).revision == 6


def test_watches_hear_what_is_there_and_then_every_change_in_order(server: StoreServer) -> None:
    writer, watcher, late = (Peer(server.port) for _ in range(3))
    writer.put((b"m/1", b"x"), (b"other", b""))
    watcher.watch(7, b"m/")
    assert watcher.events(7, 1) == [Change(False, 1, b"m/1", b"x")]
    writer.put((b"m/2", b"y"), (b"other", b""), (b"m/1", b""))
    writer.delete(b"m/2")
    changes = [Change(False, 3, b"m/2", b"y"), Change(False, 5, b"m/1", b""), Change(True, 6, b"m/2")]
    assert watcher.events(7, 3) == changes
    late.watch(1, b"m/", after=3)
    assert late.events(1, 2) == changes[1:]
    assert watcher.ask(UNWATCH, struct.pack("<I", 7)) == b""
    big = [(b"m/%d" % number, bytes([number]) * 3_000_000) for number in range(5)]
    writer.put(*big)
    assert watcher.silent()
    assert [(each.key, each.value) for each in late.events(1, 5)] == big
    writer.watch(9, b"own")
    for _ in range(20):
        _, revision, _ = writer.put((b"own", b""))
        assert writer.events(9, 1) == [Change(False, revision, b"own")]


@pytest.mark.parametrize("way", ["close", "bad frame", "keyspace"])
def test_ephemeral_keys_go_with_the_connection(server: StoreServer, way: str) -> None:
    aside = server.open_keyspace("aside")
    watcher, member = Peer(server.port), Peer(aside.port)
    watcher.watch(1)
    member.put((b"mine", b""), (b"kept", b""), (b"taken", b""), ephemeral=True)
    watcher.put((b"kept", b"now"))
    watcher.put((b"taken", b"now"), ephemeral=True)
    assert not any(each.gone for each in watcher.events(1, 5))
    ways = {
        "close": member.raw.close,
        "bad frame": lambda: member.raw.send(struct.pack("<I", 1)),
        "keyspace": aside.close,
    }
    ways[way]()
    assert watcher.events(1, 1) == [Change(True, 6, b"mine")]
    assert [key for key, _, _ in watcher.list()[1]] == [b"kept", b"taken"]
    assert watcher.silent()


@pytest.mark.thorough
def test_a_session_that_falls_silent_expires(server: StoreServer) -> None:
    watcher, started = Peer(server.port), time.monotonic()
    watcher.watch(1)
    silent, lively = Peer(server.port, SHORT_MS), Peer(server.port, SHORT_MS)
    silent.put((b"m", b""), ephemeral=True)
    assert watcher.events(1, 1) == [Change(False, 1, b"m")]
    # the lively one says something all the time, one byte of a frame after the other
    while not select.select([watcher.raw.socket], [], [], 0)[0]:
        for byte in frame(1, KEEP_ALIVE):
            lively.raw.send(bytes([byte]))
            time.sleep(SHORT_MS / 1e3 / 100)  # the pace of the client, not a wait for the server
        assert answer(lively.raw) == (1, OK, b"")
    assert watcher.events(1, 1) == [Change(True, 2, b"m")]
    assert time.monotonic() - started >= SHORT_MS / 1e3
    assert silent.raw.until_close() == b""
    assert server.stats()["refused"] == {"session expired": 1}
    assert lively.silent()


def test_runs_are_apart_and_go_with_their_last_session(server: StoreServer) -> None:
    def runs() -> dict[str, Any]:
        return {run["name"]: run for run in server.stats()["runs"]}

    one, two = Peer(server.port, run=b"one"), Peer(server.port, run=b"two")
    one.watch(1)
    two.watch(1, b"x")
    two.put((b"k", b"value"))
    assert one.list() == (0, [])
    assert one.silent()
    zero = {"sessions": 1, "keys": 0, "watches": 1, "revision": 0, "bytes": 0}
    assert runs() == {
        "one": zero | {"name": "one"},
        "two": zero | {"name": "two", "keys": 1, "revision": 1, "bytes": 6},
    }
    two.raw.close()
    eventually(lambda: set(runs()) == {"one"}, server.stats)
    assert Peer(server.port, run=b"two").list() == (0, [])


def test_what_is_refused_has_a_status_and_the_connection_goes_on(server: StoreServer) -> None:
    peer = Peer(server.port)

    def refused(operation: int, payload: bytes, peer: Peer = peer) -> int:
        with pytest.raises(Refused) as caught:
            peer.ask(operation, payload)
        return int(caught.value.args[0])

    many = [b"%d" % number for number in range(10_001)]
    peer.put(*((key, b"") for key in many))
    assert peer.delete(*many)[2] == 10_001
    forgotten = struct.pack("<I", 1) + text(b"") + struct.pack("<Q", 5)
    assert refused(WATCH, forgotten) == COMPACTED
    assert refused(OPEN, struct.pack("<I", LONG_MS) + text(b"job")) == ERROR
    assert refused(ENTER, b"default") == ERROR, "pushes would meet torch's wire format"
    assert refused(LIST, text(b"\xed\xa0\x80")) == ERROR, "no text"
    with StoreServer("127.0.0.1", run="mine") as other:
        opening = struct.pack("<I", LONG_MS)
        assert refused(OPEN, opening + text(b"yours"), Peer(other.port, 0)) == OTHER_RUN
        assert refused(PUT, bytes([0]) + struct.pack("<I", 0), Peer(other.port, 0)) == ERROR, "no session"
        assert Peer(other.port, run=b"mine").any_run == 0
    assert peer.silent()
    assert server.stats()["refused"] == {}
