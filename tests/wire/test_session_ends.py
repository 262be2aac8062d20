"""How a session with the native store is lost and given up: every cause has its own words."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from kits import KITS
from kits.wire.attack_kit import ServerProcess, read_line, wait_until
from kits.wire.coordination_kit import LONG, Losses, Recorder, client_of, keys, stop
from kits.wire.processes import spawned
from kits.wire.session_peers import at, reply, session_at
from kits.wire.wire_client import PATIENCE

from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.errors import Compacted, ConnectionLost
from rdzv_plugins.kvstore.coordination.framed_connection import FramedConnection
from rdzv_plugins.kvstore.native.server import StoreServer

T = PATIENCE


@pytest.fixture
def server() -> Iterator[StoreServer]:
    with StoreServer("127.0.0.1") as server:
        yield server


@pytest.fixture
def apart() -> Iterator[ServerProcess]:
    """A server in another process, to be stopped."""
    with ServerProcess() as server:
        yield server
        os.kill(server.pid, signal.SIGCONT)


def test_a_killed_server_is_noticed_at_once() -> None:
    served = KITS / "wire" / "served.py"
    with spawned([[sys.executable, served, json.dumps({"limits": {}, "threads": 1})]]) as (process,):
        losses, port = Losses(), int(read_line(process))
        session = session_at(port, losses=losses)
        stop(process.pid)
        errors: list[Exception] = []

        def ask() -> None:
            try:
                session.list("", timeout=LONG)
            except ConnectionLost as error:
                errors.append(error)

        thread = threading.Thread(target=ask)
        thread.start()
        process.kill()
        thread.join(T)
        error = losses.next()
    assert str(error).startswith(f"the connection to 127.0.0.1:{port} ")
    assert str(error).endswith(("was closed by the other side", "was reset by the other side"))
    assert error.remedy
    assert [str(each) for each in errors] == [str(error)]
    with pytest.raises(ConnectionLost, match=f"127.0.0.1:{port}"):
        session.put({"k": b""}, timeout=T)
    session.close()
    assert losses.none


def test_a_silent_server_is_given_up_after_the_time_to_live(apart: ServerProcess) -> None:
    losses = Losses()
    session = session_at(apart.port, ttl=3.5, losses=losses)
    stop(apart.pid)
    with pytest.raises(TimeoutError, match=f"writing 'k': no answer from 127.0.0.1:{apart.port} within 0.1 s"):
        session.put({"k": b""}, timeout=0.1)
    with pytest.raises(ConnectionLost, match=f"no answer from 127.0.0.1:{apart.port} for 3.5 s"):
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
    assert session._connection._waiters == {}, "nothing is kept of what nobody waits for"
    os.kill(apart.pid, signal.SIGCONT)
    assert keys(session.list("b", timeout=T)) == {"b": b"2"}
    session.put({"c": b""}, timeout=T)
    wait_until(lambda: apart.stats()["runs"][0]["watches"] == 0, apart.stats)
    assert recorder.events == []


def test_a_server_that_does_not_read_blocks_nobody_and_gets_the_rest_later(
    apart: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = session_at(apart.port)
    stop(apart.pid)
    items = {f"{number}": bytes([number]) * 2**20 for number in range(15)}
    with pytest.raises(TimeoutError):
        session.put(items, timeout=0.1)
    with pytest.raises(TimeoutError):
        session.put({"small": b""}, timeout=0.1)
    os.kill(apart.pid, signal.SIGCONT)
    assert keys(session.list("", timeout=T)) == items | {"small": b""}
    written: list[None] = []
    monkeypatch.setattr(session._connection, "writable", lambda: written.append(None))
    for _ in range(10):
        session.list("small", timeout=T)
    assert written == [], "the reactor has nothing to send any more, and does not look for room"
    with pytest.raises(ValueError, match="too much for one request"):
        session.put({f"{number}": bytes(2**20) for number in range(17)}, timeout=T)


def test_signs_of_life_are_all_that_an_idle_session_sends(server: StoreServer) -> None:
    losses, recorder = Losses(), Recorder()
    session = session_at(server.port, ttl=3.6, losses=losses)
    session.watch("", recorder, timeout=T)

    def requests() -> dict[str, int]:
        counted: dict[str, int] = server.stats()["requests"]
        return counted

    before = requests()
    wait_until(lambda: requests()["keep_alive"] >= before["keep_alive"] + 4, requests)
    after = requests()
    assert {name: count for name, count in after.items() if count != before[name]}.keys() == {"keep_alive", "framed"}
    assert losses.none
    assert server.stats()["connections"]["open"] == 1


def test_a_sign_of_life_is_due_only_when_nothing_else_was_sent() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as ours:
        theirs, _ = listener.accept()
        with theirs:
            connection = FramedConnection(ours, "them", 30.0, 9, lambda *_: None, lambda _: None)  # never started
            connection.tell(5, b"request")
            now = time.monotonic()
            due = connection.tick(now)
            assert due is not None
            assert now < due <= now + 10
            assert connection.tick(now + 10) == pytest.approx(time.monotonic() + 10, abs=5)
            sent = theirs.recv(9 + 7 + 9, socket.MSG_WAITALL)
            assert [sent[8], sent[-1], len(sent)] == [5, 9, 9 + 7 + 9]
            with pytest.raises(BlockingIOError):
                theirs.recv(1, socket.MSG_DONTWAIT)
            theirs.sendall(reply(0, b""))
            assert select.select([ours], [], [], T)[0]
            connection._heard_at -= 31  # as if this process had not come to read for so long
            assert connection.tick(time.monotonic()) is not None, "what was said in time counts"


def test_a_watch_of_what_is_forgotten_says_so(server: StoreServer) -> None:
    session = session_at(server.port)
    many = {f"k/{number}": b"" for number in range(10_500)}
    session.put(many, timeout=T)
    session.delete(many, timeout=T)
    with pytest.raises(Compacted, match="watching 'k/'") as caught:
        session.watch("k/", Recorder(), after=1, timeout=T)
    assert caught.value.remedy
    session.watch("k/", Recorder(), after=session.list("k/", timeout=T)[1], timeout=T)


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


def inherited() -> Counter[str]:
    """What leads out of a program that is started, or to one of the kernel's own."""
    command = ["sh", "-c", "ls -l /proc/self/fd"]
    listed = subprocess.run(command, close_fds=False, capture_output=True, text=True, check=True).stdout
    names = [line.rpartition("-> ")[2] for line in listed.splitlines()]
    return Counter(name for name in names if any(kind in name for kind in ("socket:", "eventpoll", "eventfd")))


def test_a_program_that_is_started_inherits_no_descriptor() -> None:
    before = inherited()  # of other tests, whose sockets torch may have made
    with StoreServer("127.0.0.1") as server:
        session = session_at(server.port)
        assert not inherited() - before
        session.close()


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
