"""Sessions, keys with revisions and watches on the wire, with a client that knows nothing of ours. See PROTOCOL.md."""

from __future__ import annotations

import select
import struct
import time
from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple

import pytest
from kits.wire.attack_kit import wait_until
from kits.wire.wire_client import Closed, Raw

from rdzv_plugins.kvstore.native.server import StoreLimits, StoreServer

pytestmark = pytest.mark.thorough

HELLO = b"RDZV" + struct.pack("<I", 1)
ENTER, OPEN, PUT, LIST, WATCH, UNWATCH, DELETE, KEEP_ALIVE = range(2, 10)
DONE, REFUSED, PUSH, OTHER_RUN, COMPACTED = range(5)
EPHEMERAL, GUARDED = 1, 2
LONG_MS = 600_000
SHORT_MS = 2_500  # a busy machine may stop the client for so long that it misses a much shorter one


@pytest.fixture(params=[1, 2, 4], ids=["1 loop", "2 loops", "4 loops"])
def server(request: pytest.FixtureRequest) -> Iterator[StoreServer]:
    with StoreServer("127.0.0.1", threads=request.param) as server:
        yield server


def string(text: bytes) -> bytes:
    return struct.pack("<I", len(text)) + text


class Reader:
    def __init__(self, payload: bytes) -> None:
        self._left = payload

    def take(self, kind: str) -> int:
        (number,) = struct.unpack_from(kind, self._left)
        self._left = self._left[struct.calcsize(kind) :]
        return int(number)

    def text(self) -> bytes:
        size = self.take("<I")
        text, self._left = self._left[:size], self._left[size:]
        assert len(text) == size
        return text

    def end(self) -> None:
        assert self._left == b""


class Change(NamedTuple):
    gone: bool
    revision: int
    key: bytes
    value: bytes = b""


class Refused(Exception):
    """``args``: status, text."""


class Peer:
    """One connection with a session, unless ``ttl_ms`` is 0. Closed after the test."""

    all: ClassVar[list[Raw]] = []

    def __init__(self, port: int, ttl_ms: int = LONG_MS, run: bytes = b"job") -> None:
        self.raw = Raw(port, validated=False)
        self.all.append(self.raw)
        self.raw.send(b"\xf7" + HELLO)
        assert self.raw.receive(len(HELLO)) == HELLO
        self._number = 0
        self._pushed: list[tuple[int, Change]] = []
        if ttl_ms:
            opened = Reader(self.ask(OPEN, struct.pack("<I", ttl_ms) + string(run)))
            self.session, self.revision, self.address = opened.take("<Q"), opened.take("<Q"), opened.text()
            self.any_run = bool(opened.take("<B"))
            opened.end()

    def frame(self) -> tuple[int, int, bytes]:
        size, number, status = struct.unpack("<IIB", self.raw.receive(9))
        return number, status, self.raw.receive(size - 5)

    def send(self, operation: int, payload: bytes = b"") -> int:
        self._number += 1
        self.raw.send(struct.pack("<IIB", 5 + len(payload), self._number, operation) + payload)
        return self._number

    def ask(self, operation: int, payload: bytes = b"") -> bytes:
        sent = self.send(operation, payload)
        while True:
            number, status, answer = self.frame()
            if status == PUSH:
                self._keep(number, answer)
                continue
            assert number == sent
            if status != DONE:
                raise Refused(status, answer)
            return answer

    def _keep(self, number: int, payload: bytes) -> None:
        assert number == 0
        reader = Reader(payload)
        watch, count = reader.take("<I"), reader.take("<I")
        for _ in range(count):
            change = Change(reader.take("<B") == 1, reader.take("<Q"), reader.text(), reader.text())
            self._pushed.append((watch, change))
        reader.end()

    def event(self, watch: int) -> Change:
        """The next one; of this watch it has to be."""
        while not self._pushed:
            number, status, payload = self.frame()
            assert status == PUSH, payload
            self._keep(number, payload)
        of, change = self._pushed.pop(0)
        assert of == watch
        return change

    def silent(self) -> bool:
        """Nothing was pushed before the answer to this."""
        self.ask(KEEP_ALIVE)
        return not self._pushed

    def put(
        self, *pairs: tuple[bytes, bytes], ephemeral: bool = False, guard: tuple[bytes, int] | None = None
    ) -> tuple[bool, int, bytes]:
        """Done, revision, value of a guard that has failed."""
        answer = Reader(
            self.ask(
                PUT,
                bytes([EPHEMERAL * ephemeral + GUARDED * (guard is not None)])
                + (string(guard[0]) + struct.pack("<Q", guard[1]) if guard else b"")
                + struct.pack("<I", len(pairs))
                + b"".join(string(key) + string(value) for key, value in pairs),
            )
        )
        done, revision = answer.take("<B") == 1, answer.take("<Q")
        value = b"" if done else answer.text()
        answer.end()
        return done, revision, value

    def delete(self, *keys: bytes, guard: tuple[bytes, int] | None = None) -> tuple[bool, int, int | bytes]:
        answer = Reader(
            self.ask(
                DELETE,
                bytes([GUARDED * (guard is not None)])
                + (string(guard[0]) + struct.pack("<Q", guard[1]) if guard else b"")
                + struct.pack("<I", len(keys))
                + b"".join(string(key) for key in keys),
            )
        )
        done, revision = answer.take("<B") == 1, answer.take("<Q")
        return done, revision, answer.take("<I") if done else answer.text()

    def list(self, prefix: bytes = b"") -> tuple[int, list[tuple[bytes, int, bytes]]]:
        answer = Reader(self.ask(LIST, string(prefix)))
        revision, count = answer.take("<Q"), answer.take("<I")
        keys = []
        for _ in range(count):
            key, written = answer.text(), answer.take("<Q")
            keys.append((key, written, answer.text()))
        answer.end()
        return revision, keys

    def watch(self, number: int, prefix: bytes = b"", after: int = 0) -> None:
        assert self.ask(WATCH, struct.pack("<I", number) + string(prefix) + struct.pack("<Q", after)) == b""

    def unwatch(self, number: int) -> None:
        assert self.ask(UNWATCH, struct.pack("<I", number)) == b""


@pytest.fixture(autouse=True)
def hang_up() -> Iterator[None]:
    yield
    while Peer.all:
        Peer.all.pop().close()


def refused(peer: Peer, operation: int, payload: bytes = b"") -> tuple[int, str]:
    with pytest.raises(Refused) as caught:
        peer.ask(operation, payload)
    status, text = caught.value.args
    return status, text.decode()


def runs(server: StoreServer) -> dict[str, Any]:
    return {run["name"]: run for run in server.stats()["runs"]}


def test_keys_have_revisions_and_guards(server: StoreServer) -> None:
    one, two = Peer(server.port), Peer(server.port)
    assert (one.revision, one.address) == (0, b"127.0.0.1")
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
    writer, watcher = Peer(server.port), Peer(server.port)
    writer.put((b"m/1", b"x"), (b"other", b""))
    watcher.watch(7, b"m/")
    assert watcher.event(7) == Change(False, 1, b"m/1", b"x")
    writer.put((b"m/2", b"y"), (b"other", b""), (b"m/1", b""))
    writer.delete(b"m/2")
    assert [watcher.event(7) for _ in range(3)] == [
        Change(False, 3, b"m/2", b"y"),
        Change(False, 5, b"m/1", b""),
        Change(True, 6, b"m/2"),
    ]
    late = Peer(server.port)
    late.watch(1, b"m/", after=3)
    assert [late.event(1) for _ in range(2)] == [Change(False, 5, b"m/1"), Change(True, 6, b"m/2")]
    watcher.unwatch(7)
    writer.put((b"m/3", b""))
    assert watcher.silent()
    assert late.event(1).key == b"m/3"


def test_a_writer_hears_of_its_own_keys(server: StoreServer) -> None:
    one = Peer(server.port)
    one.watch(1)
    for revision in range(1, 20):
        assert one.put((b"k", b"")) == (True, revision, b"")
        assert one.event(1).revision == revision


@pytest.mark.parametrize("way", ["close", "bad frame", "keyspace"])
def test_ephemeral_keys_go_with_the_connection(server: StoreServer, way: str) -> None:
    aside = server.open_keyspace("aside")
    watcher, member = Peer(server.port), Peer(aside.port)
    watcher.watch(1)
    member.put((b"mine", b""), (b"kept", b""), (b"taken", b""), ephemeral=True)
    watcher.put((b"kept", b"now"))
    watcher.put((b"taken", b"now"), ephemeral=True)
    for _ in range(5):
        assert not watcher.event(1).gone
    if way == "close":
        member.raw.close()
    elif way == "bad frame":
        member.raw.send(struct.pack("<I", 1))
    else:
        aside.close()
    assert watcher.event(1) == Change(True, 6, b"mine")
    assert [key for key, _, _ in watcher.list()[1]] == [b"kept", b"taken"]
    assert watcher.silent()


def test_a_session_that_falls_silent_expires(server: StoreServer) -> None:
    watcher, started = Peer(server.port), time.monotonic()
    watcher.watch(1)
    silent, lively = Peer(server.port, SHORT_MS), Peer(server.port, SHORT_MS)
    silent.put((b"m", b""), ephemeral=True)
    heard = time.monotonic()
    assert watcher.event(1) == Change(False, 1, b"m")
    while not select.select([watcher.raw.socket], [], [], 0)[
        0
    ]:  # the lively one says something all the time, one byte of a frame after the other
        for byte in struct.pack("<IIB", 5, 1, KEEP_ALIVE):
            lively.raw.send(bytes([byte]))
            time.sleep(SHORT_MS / 1e3 / 100)  # the pace of the client, not a wait for the server
        assert lively.frame() == (1, DONE, b"")
        assert time.monotonic() < heard + 60
    assert watcher.event(1) == Change(True, 2, b"m")
    assert time.monotonic() - started >= SHORT_MS / 1e3
    assert silent.raw.until_close() == b""
    assert server.stats()["refused"] == {"session expired": 1}
    lively.send(KEEP_ALIVE)
    assert lively.frame()[1] == DONE


def test_a_keep_alive_in_time_is_enough(server: StoreServer) -> None:
    peer = Peer(server.port, SHORT_MS)
    end = time.monotonic() + 1.4 * SHORT_MS / 1e3
    while time.monotonic() < end:
        assert peer.silent()
        time.sleep(SHORT_MS / 1e3 / 20)  # the pace of the client
    assert server.stats()["refused"] == {}


def test_runs_are_apart_and_go_with_their_last_session(server: StoreServer) -> None:
    one, two = Peer(server.port, run=b"one"), Peer(server.port, run=b"two")
    one.watch(1)
    two.watch(1, b"x")
    two.put((b"k", b"value"))
    assert one.list() == (0, [])
    assert one.silent()
    zero = {"sessions": 1, "keys": 0, "watches": 1, "revision": 0, "bytes": 0}
    assert runs(server) == {
        "one": zero | {"name": "one"},
        "two": zero | {"name": "two", "keys": 1, "revision": 1, "bytes": 6},
    }
    two.raw.close()
    wait_until(lambda: set(runs(server)) == {"one"}, server.stats)
    assert Peer(server.port, run=b"two").list() == (0, [])


def test_a_server_of_one_run_refuses_others_by_name() -> None:
    with StoreServer("127.0.0.1", run="mine") as server:
        peer = Peer(server.port, 0)
        opening = struct.pack("<I", LONG_MS)
        assert refused(peer, OPEN, opening + string(b"yours")) == (OTHER_RUN, "mine")
        assert peer.ask(OPEN, opening + string(b"mine")).endswith(b"127.0.0.1\0")
        assert set(runs(server)) == {"mine"}
    with StoreServer("127.0.0.1") as anybodys:
        assert Peer(anybodys.port, run=b"mine").any_run


def test_deletions_that_are_forgotten_are_said_to_be(server: StoreServer) -> None:
    peer = Peer(server.port)
    peer.put((b"stays", b""))
    many = [b"%d" % number for number in range(10_001)]
    peer.put(*((key, b"") for key in many))
    assert peer.delete(*many) == (True, 20_003, 10_001)
    payload = struct.pack("<I", 1) + string(b"") + struct.pack("<Q", 5)
    status, text = refused(peer, WATCH, payload)
    assert (status, "revision 5" in text) == (COMPACTED, True)
    assert refused(peer, WATCH, payload[:-8] + struct.pack("<Q", 99_999))[0] == COMPACTED, "of another server"
    peer.watch(1, after=10_003)
    assert [peer.event(1).key for _ in many[1:]] == many[1:]
    peer.watch(2)
    assert peer.event(2) == Change(False, 1, b"stays")


def test_many_watchers_of_one_prefix_and_each_of_its_own() -> None:
    count = 100
    with StoreServer("127.0.0.1", threads=2) as server:
        peers = [Peer(server.port) for _ in range(count)]
        for number, peer in enumerate(peers):
            peer.watch(1, b"all")
            peer.watch(2, b"assign/%03d" % number)
        peers[0].put((b"all", b"go"), *((b"assign/%03d" % number, b"%d" % number) for number in range(count)))
        for number, peer in enumerate(peers):
            assert peer.event(1) == Change(False, 1, b"all", b"go")
            assert peer.event(2) == Change(False, 2 + number, b"assign/%03d" % number, b"%d" % number)
            assert peer.silent()
        stats = server.stats()
        assert (stats["events"], stats["pushes"]) == (2 * count, 2 * count)
        assert runs(server)["job"]["watches"] == 2 * count
        counts = {name: stats["requests"][name] for name in ("open_session", "watch", "put", "keep_alive", "framed")}
        assert counts == {
            "open_session": count,
            "watch": 2 * count,
            "put": 1,
            "keep_alive": count,
            "framed": 4 * count + 1,
        }


def test_large_values_are_pushed_whole(server: StoreServer) -> None:
    writer, watcher = Peer(server.port), Peer(server.port)
    watcher.watch(1)
    big = [(b"%d" % number, bytes([number]) * 3_000_000) for number in range(5)]
    writer.put(*big)
    assert [(event.key, event.value) for event in (watcher.event(1) for _ in big)] == big
    assert writer.put((b"8", bytes(8 << 20)), (b"7", bytes((8 << 20) - 1000)))[0], "a frame of almost 16 MiB"
    writer.send(PUT)
    with pytest.raises(Closed):
        writer.frame()


def test_what_is_out_of_place_is_an_answer(server: StoreServer) -> None:
    peer = Peer(server.port, 0)
    guardless = bytes([0]) + struct.pack("<I", 0)
    watch = struct.pack("<I", 1) + string(b"") + struct.pack("<Q", 0)
    for operation, payload in (
        (PUT, guardless),
        (LIST, string(b"")),
        (WATCH, watch),
        (UNWATCH, bytes(4)),
        (DELETE, guardless),
        (KEEP_ALIVE, b""),
    ):
        status, text = refused(peer, operation, payload)
        assert (status, "no session" in text) == (REFUSED, True)
    for ttl_ms in (0, 99, 3_600_001, 2**32 - 1):
        status, text = refused(peer, OPEN, struct.pack("<I", ttl_ms) + string(b"job"))
        assert (status, str(ttl_ms) in text) == (REFUSED, True)
    peer.ask(OPEN, struct.pack("<I", 100_000) + string(b"job"))
    assert refused(peer, OPEN, struct.pack("<I", LONG_MS) + string(b"job"))[0] == REFUSED
    assert refused(peer, UNWATCH, bytes(4))[0] == REFUSED
    peer.ask(WATCH, watch)
    assert refused(peer, WATCH, watch)[0] == REFUSED
    assert refused(peer, ENTER, b"default")[0] == REFUSED, "pushes would meet torch's wire format"
    assert server.stats()["refused"] == {}


def test_names_that_are_not_text_are_refused_and_nobody_hears_of_them(server: StoreServer) -> None:
    stranger, node = Peer(server.port), Peer(server.port)
    node.watch(1)
    one = bytes([0]) + struct.pack("<I", 1)
    for operation, payload in (
        (PUT, one + string(b"members/\x94") + string(b"")),
        (PUT, bytes([2]) + string(b"\xff") + bytes(8) + struct.pack("<I", 0)),
        (DELETE, one + string(b"\xc3")),
        (LIST, string(b"\xed\xa0\x80")),
        (WATCH, struct.pack("<I", 9) + string(b"\xff") + struct.pack("<Q", 0)),
    ):
        status, text = refused(stranger, operation, payload)
        assert (status, "UTF-8" in text) == (REFUSED, True)
    assert refused(Peer(server.port, 0), OPEN, struct.pack("<I", LONG_MS) + string(b"\xff"))[0] == REFUSED
    stranger.put(("größe/🙂".encode(), b"\xff"))
    assert node.event(1) == Change(False, 1, "größe/🙂".encode(), b"\xff")


@pytest.mark.parametrize(
    ("operation", "payload", "reason"),
    [
        (OPEN, struct.pack("<I", LONG_MS), "bad frame"),
        (PUT, b"", "bad frame"),
        (PUT, bytes([4]) + struct.pack("<I", 0), "bad frame"),
        (PUT, bytes([0]) + struct.pack("<I", 1), "bad frame"),
        (PUT, bytes([0]) + struct.pack("<I", 2**32 - 1), "too many keys"),
        (PUT, bytes([0]) + struct.pack("<I", 0) + b"x", "bad frame"),
        (PUT, bytes([2]) + string(b"k") + bytes(7), "bad frame"),
        (LIST, struct.pack("<I", 100), "bad frame"),
        (LIST, string(bytes(8193)), "key too long"),
        (WATCH, struct.pack("<I", 1) + string(b""), "bad frame"),
        (UNWATCH, bytes(5), "bad frame"),
        (DELETE, bytes([1]) + struct.pack("<I", 0), "bad frame"),
        (KEEP_ALIVE, b"x", "bad frame"),
    ],
)
def test_malformed_payloads_close_the_connection(
    server: StoreServer, operation: int, payload: bytes, reason: str
) -> None:
    bystander, peer = Peer(server.port), Peer(server.port)
    bystander.watch(1)
    peer.put((b"m", b""), ephemeral=True)
    assert bystander.event(1) == Change(False, 1, b"m")
    peer.send(operation, payload)
    with pytest.raises(Closed):
        peer.frame()
    assert bystander.event(1) == Change(True, 2, b"m")
    assert server.stats()["refused"] == {reason: 1}


def test_limits_hold_for_frames() -> None:
    limits = StoreLimits(request_bytes=1000, value_bytes=100)
    with StoreServer("127.0.0.1", limits=limits) as server:
        for request in (struct.pack("<I", 1001), struct.pack("<I", 2**24 + 1)):
            peer = Peer(server.port)
            peer.raw.send(request)
            with pytest.raises(Closed):
                peer.frame()
        peer = Peer(server.port)
        peer.send(PUT, bytes([0]) + struct.pack("<I", 1) + string(b"k") + string(bytes(101)))
        with pytest.raises(Closed):
            peer.frame()
        assert server.stats()["refused"] == {"request too long": 1, "bad frame": 1, "value too long": 1}
