"""What goes wrong inside a session, at the server or in a call-back, ends that session and no other."""

from __future__ import annotations

import logging
import queue
import socket
import struct
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from kits.wire.attack_kit import ServerProcess
from kits.wire.coordination_kit import LONG, Losses, Recorder, keys, stop
from kits.wire.session_peers import answering, at, opens, reply, session_at
from kits.wire.wire_client import PATIENCE

from rdzv_plugins.clock import now
from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.errors import ConnectionLost
from rdzv_plugins.kvstore.coordination.sessions import NativeCoordination
from rdzv_plugins.kvstore.native.server import StoreServer

T = PATIENCE


@pytest.fixture
def server() -> Iterator[StoreServer]:
    with StoreServer("127.0.0.1") as server:
        yield server


@pytest.mark.parametrize(
    "garbage", [struct.pack("<I", 0), reply(2, b"\1\0\0\0\1\0\0\0\0", number=0), reply(2, b"", number=0)]
)
def test_a_server_that_breaks_the_framing_is_left(
    server: StoreServer, garbage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    bystander, losses = session_at(server.port), Losses()
    with caplog.at_level(logging.ERROR), answering(opens(reply(0, b"", number=2) + garbage)) as port:
        session = session_at(port, losses=losses)
        session.watch("", Recorder(), timeout=T)
        assert f"127.0.0.1:{port}" in str(losses.next())
        with pytest.raises(ConnectionLost):
            session.list("", timeout=T)
    assert caplog.records
    assert bystander.create("k", b"", timeout=T)[0], "the thread goes on"


def test_an_answer_that_is_none_ends_the_session() -> None:
    losses = Losses()
    with answering(opens(reply(0, b"\1", number=2))) as port:
        session = session_at(port, losses=losses)
        with pytest.raises(ConnectionLost, match="answer that is none"):
            session.create("k", b"", timeout=T)
        assert "answer that is none" in str(losses.next())


def test_keys_of_strangers_that_are_not_text_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    """A server of an earlier version takes them. Each is told of once in a process, so this one is of no other test."""

    def string(data: bytes) -> bytes:
        return struct.pack("<I", len(data)) + data

    def pushed(*names: bytes) -> bytes:
        events = b"".join(struct.pack("<BQ", 0, 5) + string(name) + string(b"v") for name in names)
        return reply(2, struct.pack("<II", 1, len(names)) + events, number=0)

    listed = struct.pack("<QI", 7, 2) + b"".join(
        string(name) + struct.pack("<Q", 5) + string(b"v") for name in (b"members/stranger \x94", b"members/b")
    )

    watched = reply(0, b"", number=2) + pushed(b"members/stranger \x94") + pushed(b"\xff", b"members/a")
    put = reply(0, struct.pack("<BQ", 1, 8), number=4)
    recorder = Recorder()
    with caplog.at_level(logging.WARNING), answering(opens(watched, reply(0, listed, number=3), put)) as port:
        session = session_at(port)
        session.watch("", recorder, timeout=T)
        assert recorder.take(1) == [("members/a", b"v")]
        found, revision = session.list("members/", timeout=T)
        assert ([each.key for each in found], revision) == (["members/b"], 7)
        session.put({"k": b""}, timeout=T)  # it goes on
    assert r"members/stranger \x94" in caplog.text


def test_frames_in_pieces_and_pushes_for_nobody() -> None:
    push = reply(2, struct.pack("<IIBQI", 1, 1, 0, 5, 1) + b"k" + struct.pack("<I", 1) + b"v", number=0)
    stray = reply(2, struct.pack("<IIB", 99, 1, 0), number=0)

    def script(connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        opens(reply(0, b"", number=2))(connection)
        for byte in stray + push + stray + push:
            connection.sendall(bytes([byte]))

    recorder = Recorder()
    with answering(script) as port:
        session = session_at(port)
        session.watch("", recorder, timeout=T)
        assert recorder.take(2) == [("k", b"v")] * 2
        session.close()


def test_a_call_back_that_fails_ends_its_session_and_no_other(
    server: StoreServer, caplog: pytest.LogCaptureFixture
) -> None:
    losses, recorder = Losses(), Recorder()
    failing, other = session_at(server.port, losses=losses), session_at(server.port)

    def call(events: Any) -> None:
        raise KeyError("broken")

    failing.watch("", call, timeout=T)
    other.watch("", recorder, timeout=T)
    with caplog.at_level(logging.ERROR):
        other.put({"k": b""}, timeout=T)
        assert "KeyError('broken')" in str(losses.next())
    assert "KeyError" in caplog.text
    assert recorder.take(1) == [("k", b"")]


def test_an_on_lost_that_fails_hurts_nobody(apart: ServerProcess, server: StoreServer) -> None:
    called = threading.Event()

    def on_lost(error: ConnectionLost) -> None:
        called.set()
        raise KeyError("broken")

    at(apart.port).open_session(0.3, on_lost=on_lost, timeout=T)
    stop(apart.pid)
    assert called.wait(T)
    session_at(server.port).put({"k": b""}, timeout=T)


def test_a_request_in_a_call_back_is_refused_instead_of_waiting_for_ever(server: StoreServer) -> None:
    session, errors, called = session_at(server.port), [], threading.Event()

    def call(events: Any) -> None:
        try:
            session.list("", timeout=LONG)
        except RuntimeError as error:
            errors.append(str(error))
        called.set()

    session.watch("", call, timeout=T)
    session.put({"k": b""}, timeout=T)
    assert called.wait(T)
    assert errors
    assert keys(session.list("", timeout=T)) == {"k": b""}


def test_a_server_that_was_silent_before_it_ended_has_been_away_since_then() -> None:
    """An outage is counted from then on, and not anew when the connection ends."""
    losses, connections = Losses(), []
    looked: queue.SimpleQueue[float] = queue.SimpleQueue()

    script = lambda connection: (opens()(connection), connections.append(connection))  # noqa: E731
    with answering(script, lambda _: looked.put(now())) as port:
        begun = now()
        backend = NativeCoordination(Endpoint("127.0.0.1", port), "run", name="parallel", who="it", outage_timeout=T)
        backend.open_session(0.3, on_lost=losses, timeout=T)
        noted = looked.get(timeout=T)  # the session has fallen silent, and a second look is taken
        assert [each.name for each in threading.enumerate()].count("rdzv-second-look") == 1
        connections[0].shutdown(socket.SHUT_RDWR)
        error = losses.next()
        assert not error.silent
        assert error.silent_since is not None
        assert begun <= error.silent_since <= noted - 0.3
        backend.close()
    assert ConnectionLost("").silent_since is None, "one that was heard until its end"
