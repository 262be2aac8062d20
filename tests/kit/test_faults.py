"""A service that is slow, frozen, wrong or gone, under a session of the kit: a real server, and bad ways to it."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from kits.eventually import eventually
from kits.kit.kit_parts import T, backend_at, listening, refused, session_at
from kits.relay import Relay
from rdzv_http.client import HttpClient

from rdzv_plugins.clock import now
from rdzv_plugins.coordination import EndsSessions, Event, KeyValue, Session
from rdzv_plugins.errors import AccessRefused, BrokenPlugin, ConnectionLost, EndpointUnreachable
from rdzv_plugins.kit import client as client_module
from rdzv_plugins.kit import coordination, loop
from rdzv_plugins.kit import session as session_module
from rdzv_plugins.testing import ServerProcess
from rdzv_plugins.testing.parts import Losses, Recorder, frozen, keys_of, opened

TTL = 2
SHORT = 1.0


def test_a_service_that_is_gone_for_good(server: ServerProcess, caplog: pytest.LogCaptureFixture) -> None:
    with session_at(server.port, TTL, outage=6) as (session, losses):
        server.kill()
        with pytest.raises(TimeoutError, match="connection refused"):
            session.list("", timeout=SHORT)
        error = losses.next()
        assert error.silent
        assert error.silent_since is not None, "the outage is counted from then on"
        for words in (f"rdzv-http at 127.0.0.1:{server.port} has not answered for", "connection refused"):
            assert words in str(error)
        assert "Is rdzv-http running there" in error.remedy
        assert "this node goes on without it for another" in caplog.text
        with pytest.raises(ConnectionLost, match="has not answered for"):
            session.list("", timeout=T)
    assert losses.none


@pytest.mark.thorough
def test_a_service_that_stands_still_for_longer_than_a_session_lives(
    server: ServerProcess, caplog: pytest.LogCaptureFixture
) -> None:
    told, ttl = Recorder(), 8
    with session_at(server.port, ttl) as (session, losses):
        session.watch("seen/", told, timeout=T)
        session.put({"mine": b""}, ephemeral=True, timeout=T)
        with frozen(server):
            with pytest.raises(TimeoutError, match="does not answer"):
                session.put({"late": b""}, timeout=1.5 * ttl)
            eventually(lambda: "this node goes on without it" in caplog.text, lambda: caplog.text)
        session.put({"seen/after": b""}, timeout=T)
        assert told.take(1) == [("seen/after", b"")]
        assert "mine" in keys_of(session)
        assert losses.none
        eventually(lambda: "answers again" in caplog.text, lambda: caplog.text)


@pytest.mark.parametrize(
    "error", [AccessRefused("it may not do that"), NotImplementedError("nobody has written it"), ValueError("a fault")]
)
def test_a_keep_alive_that_raises_is_waited_out_like_silence(server: ServerProcess, error: Exception) -> None:
    """The session may live all the same: only the service knows."""
    began = now()
    with session_at(server.port, 1, outage=3, client=client_whose("keep_alive", error)) as (session, losses):
        assert session.create("k", b"", timeout=T)[0]
        lost = losses.next()
        assert now() - began >= 3
        assert lost.silent
        assert lost.silent_since is not None
        assert str(error) in str(lost)


def test_a_service_that_has_lost_its_data(server: ServerProcess) -> None:
    with session_at(server.port) as (session, losses):
        server.kill()
        server.start_again()
        with pytest.raises(ConnectionLost):
            session.list("", timeout=T)
        error = losses.next()
        assert not error.silent
        assert "or rdzv-http has lost data" in str(error)
    with session_at(server.port) as (session, _):
        assert session.create("k", b"", timeout=T)[0], "another session begins anew"
    assert losses.none


def test_a_service_that_is_another_one_by_now(server: ServerProcess) -> None:
    """What was right once is expected to become right again, for as long as the user allows."""
    with session_at(server.port, TTL, outage=4) as (_, losses):
        server.kill()
        with listening(saying(OTHERS), server.port):
            error = losses.next()
        assert error.silent
        assert "something else answers there" in str(error)


def saying(words: bytes) -> Callable[[socket.socket], None]:
    def serve(connection: socket.socket) -> None:
        connection.recv(1)
        connection.sendall(words)
        connection.recv(1 << 16)

    return serve


OURS = b"HTTP/1.0 200 OK\r\nServer: rdzv-http\r\n"
OTHERS = b"HTTP/1.0 200 OK\r\nServer: rdzv-ftp\r\nContent-Length: 2\r\n\r\n{}"
BUSY = OURS.replace(b"200", b"503") + b"Content-Length: 0\r\n\r\n"


@pytest.mark.parametrize(
    ("words", "says", "timeout"),
    [  # what may become right is waited for
        (OTHERS, "something else answers there", T),
        (b"\0\1\2\r\n\r\n", "something else answers there", T),
        (OURS + b"\r\n", "makes no sense here", T),
        (OURS + b"Content-Length: 2\r\n\r\n}{", "makes no sense here", T),
        (BUSY, "answers HTTP 503", SHORT),
        (OURS + b"Content-Length: 99999999999\r\n\r\n", "which nobody has asked for", SHORT),
        (b"", "hangs up", SHORT),
    ],
)
def test_what_answers_there_is_named(words: bytes, says: str, timeout: float) -> None:
    with listening(saying(words)) as port:
        assert says in str(refused(port, timeout))


def test_what_it_has_said_counts_for_more_than_an_attempt_that_is_cut_short() -> None:
    """It is busy, and then silent until the time is up: sooner than an answer would count as lost."""
    words = iter([BUSY])
    silent = threading.Event()

    def serve(connection: socket.socket) -> None:
        if said := next(words, b""):
            saying(said)(connection)
        else:
            silent.set()
            connection.recv(1 << 16)
            connection.recv(1)  # until it hangs up

    with listening(serve) as port:
        error = refused(port, timeout=2.5)
    assert silent.is_set()
    assert "answers HTTP 503" in str(error)


def test_who_never_answers_and_who_is_unknown() -> None:
    with listening(lambda connection: threading.Event().wait(T)) as port:
        error = str(refused(port, timeout=SHORT))
    assert "it accepts connections, but does not answer" in error
    assert "could not be reached within 1 s" in error
    assert "does not resolve" in str(refused(1, timeout=SHORT, host="nowhere.invalid"))


def test_nobody_listens(server: ServerProcess) -> None:
    server.kill()
    error = refused(server.port, timeout=SHORT)
    assert isinstance(error, EndpointUnreachable)
    assert "connection refused" in str(error)
    with backend_at(server.port) as backend, ThreadPoolExecutor() as pool:  # it is waited for
        opening = pool.submit(opened, backend)
        server.start_again()
        assert opening.result(T).create("k", b"", timeout=T)[0]


def test_connections_that_break_are_made_again(server: ServerProcess) -> None:
    told = Recorder()
    with Relay(server.port) as relay, session_at(relay.port) as (session, losses):
        session.watch("", told, timeout=T)
        for count in range(5):
            relay.cut()
            assert session.put({f"{count}": b""}, timeout=T)
        assert told.take(5) == [(f"{count}", b"") for count in range(5)]
    assert losses.none


class Deaf(HttpClient):
    """As if the way back were cut while it waits for changes for the first time; nor can it hang up."""

    waits = 0
    lists = 0

    async def changes(self, prefix: str, after: int, wait: float) -> tuple[Sequence[Event], int]:
        self.waits += 1
        if self.waits == 1:
            await asyncio.get_running_loop().create_future()
        return await super().changes(prefix, after, wait)

    async def list(self, prefix: str) -> tuple[Sequence[KeyValue], int]:
        self.lists += 1
        if self.lists == 2:
            raise ConnectionResetError
        return await super().list(prefix)

    async def disconnect(self) -> None:
        await asyncio.get_running_loop().create_future()


@pytest.mark.parametrize("hears", ["in time by itself", "by the trouble of others"])
def test_a_connection_that_is_dead_without_a_sign(
    server: ServerProcess, monkeypatch: pytest.MonkeyPatch, hears: str
) -> None:
    if hears == "in time by itself":
        monkeypatch.setattr(client_module, "WAIT_S", 0.1)
        monkeypatch.setattr(session_module, "LONGEST_ATTEMPT_S", 0.2)
    else:
        monkeypatch.setattr(client_module, "WAIT_S", 10 * T)
    told = Recorder()
    with session_at(server.port, client=Deaf) as (session, _):
        session.watch("", told, timeout=T)
        session.put({"k": b""}, timeout=T)
        if hears == "by the trouble of others":
            assert keys_of(session) == {"k": b""}
        assert told.take(1) == [("k", b"")]


class Renewed(HttpClient):
    """Says when it has said for the first time that its session lives."""

    renewed = threading.Event()

    async def keep_alive(self) -> None:
        await super().keep_alive()
        self.renewed.set()


class Once(Renewed):
    """On a service that does a write again if it is asked again."""

    renewed = threading.Event()
    repeats_writes = False


@pytest.mark.parametrize("client", [Renewed, Once])
def test_a_write_of_which_the_answer_is_lost(server: ServerProcess, client: type[Renewed]) -> None:
    """It is done once; where that cannot be known, whoever asked is told so, and looks."""
    client.renewed.clear()
    with (
        Relay(server.port) as relay,
        session_at(relay.port, client=client) as (session, _),
        session_at(server.port) as (other, _),
    ):
        _, guard = session.create("k", b"", timeout=T)
        assert client.renewed.wait(T)  # what is asked next is asked here
        relay.cut_after(0, answers=True)
        if client.repeats_writes:
            revision = session.put({"k": b"mine"}, guard=guard, timeout=T)
        else:
            with pytest.raises(TimeoutError):
                session.put({"k": b"mine"}, guard=guard, timeout=T)
            revision = None
        assert relay.is_free
        (mine,), _ = other.list("k", timeout=T)
        assert (mine.value, revision) == (b"mine", mine.revision if client.repeats_writes else None)
        assert session.put({"k": b"next"}, guard=mine, timeout=T), "the next one is done as ever"


def test_a_call_back_that_fails_ends_the_session(server: ServerProcess, caplog: pytest.LogCaptureFixture) -> None:
    with session_at(server.port) as (session, losses), session_at(server.port) as (other, _):
        session.watch("", lambda events: 1 // 0, timeout=T)
        other.put({"k": b""}, timeout=T)
        assert "it may have missed an event: ZeroDivisionError" in str(losses.next())
    assert "a watch's call-back has failed" in caplog.text


def test_a_watch_whose_changes_are_forgotten_compares_what_is_there(server: ServerProcess) -> None:
    """Where it does not know what was there before, it may have missed an event: the session ends."""
    told = Recorder()
    with (
        Relay(server.port) as relay,
        session_at(relay.port) as (session, losses),
        session_at(relay.port) as (late, late_losses),
        session_at(server.port) as (other, _),
    ):
        other.put({"stays": b"", "goes": b""}, timeout=T)
        session.watch("", told, timeout=T)
        told.take(2)
        late.watch("", lambda _: None, after=session.list("", timeout=T)[1], timeout=T)
        relay.refuse()
        other.delete(["goes"], timeout=T)
        for _ in range(26):  # more than are remembered
            other.put({f"{number}": b"" for number in range(400)}, timeout=T)
        relay.accept()
        told.until(lambda events: len(events) == 2 + 1 + 400)
        assert [(each.key, each.value) for each in told.events[2:4]] == [("goes", None), ("0", b"")]
        assert losses.none
        assert "forgotten" in str(late_losses.next())


def test_a_child_of_fork_has_no_session(server: ServerProcess) -> None:
    with session_at(server.port) as (session, _):
        read, write = os.pipe()
        if (child := os.fork()) == 0:
            try:
                session.close()
                with pytest.raises(ConnectionLost, match="belongs to the parent"):
                    session.list("", timeout=T)
                with session_at(server.port) as (own, _):
                    own.put({"child": b""}, timeout=T)
                os.write(write, b"right")
            finally:
                os._exit(0)
        os.close(write)
        with open(read, "rb") as answer:
            assert answer.read() == b"right"
        os.waitpid(child, 0)
        assert session.put({"k": b""}, timeout=T)


def client_whose(method: str, wrong: Any) -> type[HttpClient]:
    """It is right in everything, but ``method`` returns or raises ``wrong``."""

    async def answer(self: HttpClient, *_: Any, **__: Any) -> Any:
        if isinstance(wrong, Exception):
            raise wrong
        return wrong

    return type("Wrong", (HttpClient,), {method: answer})


@pytest.mark.parametrize(
    ("method", "ask", "wrong", "value"),
    [
        ("create", lambda session: session.create("k", b"", timeout=T), KeyValue("k", b"", 1), "KeyValue("),
        ("put", lambda session: session.put({"k": b""}, timeout=T), None, "None"),
        ("delete", lambda session: session.delete(["k"], timeout=T), None, "None"),
        ("list", lambda session: session.list("", timeout=T), [KeyValue("k", b"", 1)], "[KeyValue("),
        ("list", lambda session: session.list("", timeout=T), ([{"key": "k"}], 1), "[{'key': 'k'}]"),
    ],
)
def test_what_a_client_must_not_return_is_named(
    server: ServerProcess, method: str, ask: Callable[[Session], object], wrong: Any, value: str
) -> None:
    with session_at(server.port, client=client_whose(method, wrong)) as (session, losses):
        with pytest.raises(ConnectionLost) as caught:
            ask(session)
        for each in (caught.value, losses.next()):
            assert isinstance(each.__cause__, BrokenPlugin)
        for word in (f"Wrong.{method}()", value, f"127.0.0.1:{server.port}"):
            assert word in str(caught.value)


@pytest.mark.parametrize(
    ("wrong", "error", "says"),
    [
        ("3", BrokenPlugin, r"Wrong\.open\(\) .* at 127\.0\.0\.1:\d+ returned '3'"),
        (NotImplementedError("Half.open is not written yet"), NotImplementedError, r"Half\.open"),
    ],
)
def test_what_is_wrong_with_open_is_said_as_it_is(
    server: ServerProcess, wrong: Any, error: type[Exception], says: str
) -> None:
    with backend_at(server.port, client=client_whose("open", wrong)) as backend, pytest.raises(error, match=says):
        opened(backend)


@pytest.mark.parametrize("wrong", [KeyError("slot"), ([("k", b"")], 1), NotImplementedError("not yet")], ids=repr)
def test_a_watch_that_fails_in_the_background_ends_the_session(
    server: ServerProcess, wrong: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The service answers everything else, so nothing but the watch can tell; the user hears of it at once."""
    with session_at(server.port, TTL, client=client_whose("changes", wrong)) as (session, losses):
        session.watch("", lambda _: None, timeout=T)
        error = losses.next()
    assert isinstance(error.__cause__, BrokenPlugin)
    assert "changes()" in str(error)
    if isinstance(wrong, KeyError):
        assert "KeyError: 'slot'" in str(error)
        (told,) = [each for each in caplog.records if "Wrong.changes() raised KeyError" in each.getMessage()]
        assert told.levelname == "WARNING"


class Falters(HttpClient):
    """Cannot read the first two answers to ``list`` after the first."""

    asked = 0

    async def list(self, prefix: str) -> tuple[Sequence[KeyValue], int]:
        self.asked += 1
        if self.asked in (2, 3):
            raise ValueError("half an answer")
        return await super().list(prefix)


def test_nonsense_for_a_moment_is_put_up_with(server: ServerProcess, caplog: pytest.LogCaptureFixture) -> None:
    with session_at(server.port, client=Falters) as (session, losses):
        assert [keys_of(session) for _ in range(2)] == [{}, {}]
    assert losses.none
    assert len([each for each in caplog.records if "Falters.list() raised ValueError" in each.getMessage()]) == 1


class Blocks(HttpClient):
    """Waits without ``await`` when it connects."""

    blocking = threading.Event()

    async def connect(self) -> None:
        self.blocking.wait(T)


def test_who_blocks_the_loop_is_named_with_the_users_time_out(
    server: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordination, "_SLACK_S", 0.0)
    monkeypatch.setattr(loop, "_SLACK_S", 0.5)
    threading.Timer(2, Blocks.blocking.set).start()  # else its thread would be waited for
    with backend_at(server.port, client=Blocks) as backend, pytest.raises(BrokenPlugin) as caught:
        backend.open_session(T, on_lost=lambda _: None, timeout=0.25)
    for word in ("connect()", __file__, f"127.0.0.1:{server.port}", "0.25 s"):
        assert word in str(caught.value)


def test_closing_while_nobody_answers_is_quick_and_final(server: ServerProcess) -> None:
    losses = Losses()
    with backend_at(server.port) as backend, ThreadPoolExecutor() as pool:
        session = opened(backend, T, losses)
        with frozen(server):
            asking = pool.submit(session.list, "", timeout=T)
            backend.close()
            with pytest.raises(ConnectionLost, match="has been closed"):
                asking.result(T)
        with pytest.raises(ConnectionLost, match="closed"):
            opened(backend)
    assert losses.none


class Ends(HttpClient):
    """A client of a service that can end other sessions; this one has been asked to."""

    asked: Sequence[str] = ()

    async def end_session(self, key: str) -> bool:
        Ends.asked = (*Ends.asked, key)
        if len(Ends.asked) == 1:
            raise EOFError
        return key == "members/gone"


def test_a_client_may_end_the_session_of_a_node_that_is_gone(server: ServerProcess) -> None:
    """What went wrong is asked again."""
    with session_at(server.port, client=Ends) as (session, _):
        assert isinstance(session, EndsSessions)
        assert session.end_session("members/gone", timeout=T)
        assert not session.end_session("members/lives", timeout=T)
        assert Ends.asked == ("members/gone", "members/gone", "members/lives")


@pytest.mark.parametrize(
    "client",
    [
        HttpClient,
        *(client_whose("end_session", error) for error in (AccessRefused("no right"), NotImplementedError())),
    ],
)
def test_who_cannot_or_may_not_end_another_session_keeps_its_own(server: ServerProcess, client: type) -> None:
    with session_at(server.port, client=client) as (session, losses):
        assert isinstance(session, EndsSessions)
        assert not session.end_session("members/gone", timeout=T)
        assert session.create("k", b"", timeout=T)[0]
    assert losses.none
