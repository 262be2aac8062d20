"""How a session with the native store ends, and what it promises beyond the contract."""

from __future__ import annotations

import gc
import os
import re
import select
import signal
import socket
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from kits.eventually import eventually
from kits.wire.attack_kit import ServerProcess
from kits.wire.coordination_kit import (
    LONG,
    Losses,
    Recorder,
    check_that_an_end_waits_for_the_call,
    check_that_sessions_share_a_thread,
    client_of,
    keys,
    leave,
    stop,
)
from kits.wire.session_peers import answering, at, opens, reply, session_at
from kits.wire.wire_client import PATIENCE

from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.errors import Compacted, ConnectionLost
from rdzv_plugins.kvstore.coordination.framed_connection import FramedConnection
from rdzv_plugins.kvstore.native.server import StoreServer
from rdzv_plugins.runtime import Runtime

T = PATIENCE


@pytest.fixture
def server() -> Iterator[StoreServer]:
    with StoreServer("127.0.0.1") as server:
        yield server


def test_a_killed_server_is_noticed_at_once(apart: ServerProcess) -> None:
    losses = Losses()
    session = session_at(apart.port, losses=losses)
    stop(apart.pid)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(session.list, "", timeout=LONG)
        apart.kill()
        error = losses.next()
        with pytest.raises(ConnectionLost, match=re.escape(str(error))):
            asked.result(T)
    assert f"127.0.0.1:{apart.port} was " in str(error), "closed or reset by the other side"
    assert error.remedy
    with pytest.raises(ConnectionLost, match=f"127.0.0.1:{apart.port}"):
        session.put({"k": b""}, timeout=T)
    session.close()
    assert losses.none


def test_a_silent_server_is_given_up_after_the_time_to_live(apart: ServerProcess) -> None:
    losses = Losses()
    session = session_at(apart.port, ttl=3.5, losses=losses)
    stop(apart.pid)
    with pytest.raises(TimeoutError, match=f"'k'.*127.0.0.1:{apart.port} within 0.1 s"):
        session.put({"k": b""}, timeout=0.1)
    with pytest.raises(ConnectionLost, match=f"127.0.0.1:{apart.port} for 3.5 s"):
        session.list("", timeout=LONG)
    assert "for 3.5 s" in str(losses.next())
    assert losses.none


def test_an_answer_that_comes_late_is_nobody_elses(apart: ServerProcess) -> None:
    session = session_at(apart.port)
    session.put({"a": b"1"}, timeout=T)
    stop(apart.pid)
    recorder = Recorder()
    with pytest.raises(TimeoutError):
        session.list("a", timeout=0.05)
    with pytest.raises(TimeoutError):
        session.create("b", b"2", timeout=0)
    with pytest.raises(TimeoutError):
        session.watch("", recorder, timeout=0.05)
    os.kill(apart.pid, signal.SIGCONT)
    assert keys(session.list("b", timeout=T)) == {"b": b"2"}
    session.put({"c": b""}, timeout=T)
    eventually(lambda: apart.stats()["runs"][0]["watches"] == 0, apart.stats)
    assert recorder.events == []


def test_a_server_that_does_not_read_blocks_nobody_and_gets_the_rest_later(apart: ServerProcess) -> None:
    session = session_at(apart.port)
    stop(apart.pid)
    items = {f"{number}": bytes([number]) * 2**20 for number in range(15)}
    for each in (items, {"small": b""}):
        with pytest.raises(TimeoutError):
            session.put(each, timeout=0.1)
    os.kill(apart.pid, signal.SIGCONT)
    assert keys(session.list("", timeout=T)) == items | {"small": b""}
    with pytest.raises(ValueError, match="too much"):
        session.put({f"{number}": bytes(2**20) for number in range(17)}, timeout=T)


class Clock(Runtime):
    time = 100.0

    def monotonic(self) -> float:
        return self.time


def test_a_sign_of_life_is_due_only_when_nothing_else_was_sent() -> None:
    clock = Clock()
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as ours:
        theirs, _ = listener.accept()
        # it is never started
        connection = FramedConnection(ours, "them", 30.0, 9, lambda *_: None, lambda _: None, runtime=clock)
        with theirs:
            clock.time += 5
            connection.tell(5, b"request")
            assert connection.tick(clock.time + 9) == clock.time + 10
            clock.time += 10
            assert connection.tick(clock.time) == clock.time + 10
            sent = theirs.recv(9 + 7 + 9, socket.MSG_WAITALL)
            assert [sent[8], sent[-1], len(sent)] == [5, 9, 9 + 7 + 9]
            with pytest.raises(BlockingIOError):
                theirs.recv(1, socket.MSG_DONTWAIT)
            theirs.sendall(reply(0, b""))
            assert select.select([ours], [], [], T)[0]
            clock.time += 31  # as if this process had not come to read for so long
            assert connection.tick(clock.time) is not None, "what was said in time counts"


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
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            said = []
            try:
                session.list("", timeout=T)
            except ConnectionLost as error:
                said.append(str(error))
            watch.cancel()
            session.close()
            own = session_at(apart.port)
            own.put({"child": b""}, timeout=T)
            said.append(",".join(sorted(keys(own.list("", timeout=T)))))
            os.write(writing, "\n".join(said).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading) as pipe:
        said = pipe.read().splitlines()
    os.waitpid(child, 0)
    assert said == [
        f"the session with 127.0.0.1:{apart.port} belongs to the process that this one was forked from",
        "child,parent",
    ]
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


def test_the_backend_of_the_hosting_process_closes_the_server() -> None:
    server = StoreServer("127.0.0.1", run="run")
    hosting, guest, losses = at(server.port, server=server), at(server.port), Losses()
    assert (hosting.hosts_service, guest.hosts_service) == (True, False)
    guest.open_session(LONG, on_lost=losses, timeout=T)
    hosting.open_session(LONG, on_lost=Losses(), timeout=T)
    hosting.close()
    assert "closed by the other side" in str(losses.next())
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", server.port))


def test_a_closed_server_is_let_go_of() -> None:
    """By the thread of the sessions too, which may wait for ever: its descriptors go with it."""
    server = StoreServer("127.0.0.1")
    held, hosting = weakref.ref(server), at(server.port, server=server)
    hosting.open_session(1.0, on_lost=Losses(), timeout=T)  # so long it may be due
    hosting.close()
    del server, hosting
    eventually(lambda: gc.collect() is not None and held() is None)


@pytest.mark.parametrize("child", ["", "fork", "spawn"])
def test_the_keys_of_a_killed_process_go_at_once(server: StoreServer, child: str) -> None:
    """Even if it leaves a child, which has inherited what it could."""
    recorder = Recorder()
    session_at(server.port).watch("node", recorder, timeout=T)
    longer_than_we_wait = 2 * LONG
    with client_of([Endpoint("127.0.0.1", server.port)], "node", longer_than_we_wait, child=child) as process:
        assert recorder.take(1) == [("node", b"here")]
        process.kill()
        assert recorder.take(2)[1] == ("node", None)


def test_many_sessions_of_one_process_have_one_thread(server: StoreServer) -> None:
    check_that_sessions_share_a_thread(at(server.port), session_at(server.port))


@pytest.mark.parametrize("how", ["cancel", "close"])
def test_ending_a_watch_waits_for_the_call_that_runs(server: StoreServer, how: str) -> None:
    def change() -> None:
        with client_of([Endpoint("127.0.0.1", server.port)], "from another process, ours being busy", LONG) as process:
            leave(process)

    check_that_an_end_waits_for_the_call(session_at(server.port), how, change)
