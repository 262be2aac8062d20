"""How a session with the native store ends, what it promises beyond the contract, and what goes wrong inside it, at the
server or in a call-back: that ends this session and no other."""

from __future__ import annotations

import gc
import logging
import multiprocessing
import os
import queue
import select
import signal
import socket
import struct
import threading
import weakref
from typing import Any

import pytest
from kits.clock import Clock
from kits.eventually import eventually
from kits.wire.attack_kit import ServerProcess, stopped
from kits.wire.session_peers import (
    LONG,
    Losses,
    Recorder,
    answering,
    at,
    client_of,
    keys_of,
    leave,
    opens,
    reply,
    session_at,
    stop,
)
from kits.wire.wire_client import PATIENCE

from rdzv_plugins.clock import now
from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.errors import Compacted, ConnectionLost
from rdzv_plugins.kvstore.coordination.framed_connection import FramedConnection, Lease
from rdzv_plugins.kvstore.coordination.sessions import NativeCoordination
from rdzv_plugins.kvstore.native.server import StoreServer

T = PATIENCE


def test_a_silent_server_is_given_up_after_the_time_to_live(apart: ServerProcess) -> None:
    losses = Losses()
    session = session_at(apart.port, ttl=2.0, losses=losses)
    stop(apart.pid)
    with pytest.raises(TimeoutError, match=f"'k'.*127.0.0.1:{apart.port} within 0.1 s"):
        session.put({"k": b""}, timeout=0.1)
    with pytest.raises(ConnectionLost, match=f"127.0.0.1:{apart.port} has not answered for 2 s"):
        session.list("", timeout=LONG)
    assert "for 2 s" in str(losses.next())
    assert losses.none


def test_a_server_that_does_not_read_blocks_nobody_and_an_answer_that_comes_late_is_nobody_elses(
    apart: ServerProcess,
) -> None:
    session, recorder = session_at(apart.port), Recorder()
    items = {f"{number}": bytes([number]) * 2**20 for number in range(15)}
    session.put({"a": b"1"}, timeout=T)
    with stopped(apart.pid):
        for call in (
            lambda: session.list("a", timeout=0.05),
            lambda: session.create("b", b"2", timeout=0),
            lambda: session.watch("", recorder, timeout=0.05),
            lambda: session.put(items, timeout=0.1),
            lambda: session.put({"small": b""}, timeout=0.1),
        ):
            with pytest.raises(TimeoutError):
                call()
    assert keys_of(session, "b") == {"b": b"2"}
    assert keys_of(session) == items | {"a": b"1", "b": b"2", "small": b""}
    eventually(lambda: apart.stats()["runs"][0]["watches"] == 0, apart.stats)
    assert recorder.events == []
    with pytest.raises(ValueError, match="too much"):
        session.put({f"{number}": bytes(2**20) for number in range(17)}, timeout=T)


def test_a_sign_of_life_is_due_only_when_nothing_else_was_sent() -> None:
    clock = Clock()
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as ours:
        theirs, _ = listener.accept()
        # it is never started
        lease = Lease("them", 30.0, 0.0, clock.now())
        connection = FramedConnection(ours, lease, 9, lambda *_: None, lambda _: None, runtime=clock)
        with theirs:
            clock.seconds += 5
            connection.tell(5, b"request")
            assert connection.tick(clock.seconds + 9) == clock.seconds + 10
            clock.seconds += 10
            assert connection.tick(clock.seconds) == clock.seconds + 10
            sent = theirs.recv(9 + 7 + 9, socket.MSG_WAITALL)
            assert [sent[8], sent[-1], len(sent)] == [5, 9, 9 + 7 + 9]
            with pytest.raises(BlockingIOError):
                theirs.recv(1, socket.MSG_DONTWAIT)
            theirs.sendall(reply(0, b""))
            assert select.select([ours], [], [], T)[0]
            clock.seconds += 31  # as if this process had not come to read for so long
            assert connection.tick(clock.seconds) is not None, "what was said in time counts"


def test_a_watch_of_what_is_forgotten_says_so() -> None:
    forgotten = reply(4, b"revision 1 is forgotten", number=2)
    with answering(opens(forgotten)) as port, pytest.raises(Compacted, match="watching 'k/'") as caught:
        session_at(port).watch("k/", Recorder(), after=1, timeout=T)
    assert caught.value.remedy


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_forked_child_leaves_its_parents_session_alone_and_can_open_its_own(apart: ServerProcess) -> None:
    session, recorder = session_at(apart.port), Recorder()
    watch = session.watch("", recorder, timeout=T)
    session.put({"parent": b""}, ephemeral=True, timeout=T)
    reading, writing = multiprocessing.Pipe(duplex=False)
    child = os.fork()
    if child == 0:
        try:
            with pytest.raises(ConnectionLost) as caught:
                session.list("", timeout=T)
            watch.cancel()
            session.close()
            own = session_at(apart.port)
            own.put({"child": b""}, timeout=T)
            writing.send((str(caught.value), sorted(keys_of(own))))
        finally:
            os._exit(0)
    assert reading.poll(T)
    error, there = reading.recv()
    os.waitpid(child, 0)
    assert error == f"the session with 127.0.0.1:{apart.port} belongs to the process that this one was forked from"
    assert there == ["child", "parent"]
    session.put({"later": b""}, timeout=T)
    assert recorder.take(3) == [("parent", b""), ("child", b""), ("later", b"")]


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_fork_amid_a_call_back_does_not_stop_the_child(apart: ServerProcess) -> None:
    session, running, go = session_at(apart.port), threading.Event(), threading.Event()

    def call(events: Any) -> None:
        running.set()
        assert go.wait(T)

    watch = session.watch("", call, timeout=T)
    with client_of([Endpoint("127.0.0.1", apart.port)], "key", LONG):
        assert running.wait(T)
        child = os.fork()
        if child == 0:
            signal.alarm(int(T))
            watch.cancel()
            session.close()
            os._exit(0)
        go.set()
        assert os.waitpid(child, 0)[1] == 0
    session.list("", timeout=T)


def test_a_closed_server_is_let_go_of() -> None:
    """By the thread of the sessions too, which may wait for ever: its descriptors go with it."""
    server = StoreServer("127.0.0.1")
    held, here = weakref.ref(server), Endpoint("127.0.0.1", server.port)
    hosting = NativeCoordination(here, "run", name="parallel", who="it", server=server)
    hosting.open_session(1.0, on_lost=Losses(), timeout=T)  # so long it may be due
    hosting.close()
    del server, hosting
    eventually(lambda: gc.collect() is not None and held() is None)


@pytest.mark.parametrize("how", ["cancel", "close"])
def test_ending_a_watch_waits_for_the_call_that_runs(server: StoreServer, how: str) -> None:
    session, running, go, history = session_at(server.port), threading.Event(), threading.Event(), []

    def call(_: object) -> None:
        if not running.is_set():  # a later event: the end may not have begun
            running.set()
            assert go.wait(T)
            history.append("the call ends")

    def end() -> None:
        watch.cancel() if how == "cancel" else session.close()
        history.append("ended")

    watch = session.watch("", call, timeout=T)
    with client_of([Endpoint("127.0.0.1", server.port)], "from another process, ours being busy", LONG) as process:
        leave(process)
    assert running.wait(T)
    thread = threading.Thread(target=end)
    thread.start()
    thread.join(0.2)  # it should not come to its end before the call has
    go.set()
    thread.join(T)
    assert history == ["the call ends", "ended"]


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
        with pytest.raises(ConnectionLost, match="malformed answer"):
            session.create("k", b"", timeout=T)
        assert "malformed answer" in str(losses.next())


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
    assert keys_of(session) == {"k": b""}


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
