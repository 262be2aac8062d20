"""Opening a session: who is reached, and why somebody is not."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext

import pytest
from kits.eventually import eventually
from kits.wire.session_peers import HELLO, LONG, OPENED, Losses, answering, at, opened, opens, reply, says, session_at
from kits.wire.store_servers import running
from kits.wire.wire_client import PATIENCE

from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.errors import EndpointUnreachable, RunIdMismatch, RunIdMissing
from rdzv_plugins.kvstore.coordination.sessions import NativeCoordination, SessionHandshake
from rdzv_plugins.kvstore.native.server import StoreServer
from rdzv_plugins.security.certificates import NodeCertificates

T = PATIENCE


def refusal(port: int, timeout: float = T, *, host: str = "127.0.0.1") -> EndpointUnreachable:
    with pytest.raises(EndpointUnreachable) as caught:
        at(port, host=host).open_session(LONG, on_lost=Losses(), timeout=timeout)
    assert caught.value.remedy
    assert f"{host}:{port}" in str(caught.value)
    return caught.value


@contextmanager
def nobody() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    yield port


@contextmanager
def torchs() -> Iterator[int]:
    with running("torch") as server:
        yield server.port


@pytest.mark.parametrize(
    ("there", "timeout", "words", "remedy"),
    [
        (nobody, 0.2, "refused", ""),
        (answering, 0.2, "does not answer", "Another program"),
        (torchs, T, "torch's TCPStore", "--rdzv-backend"),
    ],
)
def test_what_is_there_is_named(there, timeout, words, remedy):
    with there() as port:
        error = refusal(port, timeout)
    assert words in str(error)
    assert remedy in error.remedy


def test_a_name_that_does_not_resolve_and_something_that_hangs_up() -> None:
    assert "resolve" in str(refusal(1, 0.1, host="no.such.host.invalid"))
    with answering(*[socket.socket.close] * 1000) as port:
        # where its thread is late, the last attempt may meet somebody who is silent
        eventually(lambda: "hangs up" in str(refusal(port, 0.3)))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", ["HTTP/1.1"]),
        (b"RDZV" + struct.pack("<I", 7), ["version 7", "version 1"]),
        (HELLO + reply(1, b"operation 3 is unknown"), ["operation 3 is unknown"]),
        (HELLO + reply(0, b"short"), ["of another version"]),
        (HELLO + reply(0, OPENED[:-1]) + reply(1, b"unknown operation 1"), ["of another version"]),
        (HELLO + reply(0, OPENED[:-1]) + reply(0, b'{"server": {"version": "0.0.1"}}'), ["0.0.1", "this node"]),
    ],
)
def test_who_answers_wrongly_is_refused_at_once(data: bytes, words: list[str]) -> None:
    with answering(says(data)) as port:
        error = refusal(port)
    assert all(word in str(error) for word in words), error


@pytest.mark.parametrize("under_tls", [False, True])
def test_who_is_silent_under_tls_is_asked_nothing_in_plain(under_tls: bool) -> None:
    """It would warn of it when it goes on."""
    asked: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()
        stranger = lambda: asked.append("whose is it?")  # noqa: E731
        tls = NodeCertificates() if under_tls else None
        service = NativeCoordination(Endpoint(*address), "run", name="x", who="it", stranger=stranger, tls=tls)
        opening = SessionHandshake(service, LONG)
        with socket.create_connection(address, 0.1) as connection:
            assert "does not answer" in opening.greet(connection)
        listener.setblocking(False)
        listener.accept()[0].close()
        if under_tls:
            with pytest.raises(BlockingIOError):
                listener.accept()
    assert bool(asked) is not under_tls


def test_what_listens_by_now_where_the_server_was_is_not_found_out() -> None:
    """It takes some seconds, and this node waits for the server whatever else is there."""
    asked: list[str] = []

    def fails_at(backend: NativeCoordination) -> None:
        with pytest.raises(EndpointUnreachable):
            backend.open_session(LONG, on_lost=print, timeout=1.5)

    def backend(port: int) -> NativeCoordination:
        stranger = lambda: asked.append("who is it?")  # noqa: E731
        return NativeCoordination(Endpoint("127.0.0.1", port), "run", name="parallel", who="it", stranger=stranger)

    with answering() as port:
        fails_at(backend(port))
    assert asked
    asked.clear()
    with StoreServer("127.0.0.1") as server, closing(backend(server.port)) as known:
        opened(known)
        server.close()
        with socket.create_server(("127.0.0.1", server.port)):
            fails_at(known)
    assert asked == []


def opens_at(server: StoreServer, run: str, named: bool = True) -> None:
    where = Endpoint("127.0.0.1", server.port)
    service = NativeCoordination(where, run, name="test", who="the test", named=named)
    service.open_session(LONG, on_lost=Losses(), timeout=T).close()


def test_a_store_of_another_run_is_named_at_once() -> None:
    with StoreServer("127.0.0.1", run="theirs") as server:
        with pytest.raises(RunIdMismatch, match=r"'theirs'.*'run'") as caught:
            opens_at(server, "run")
        assert "--rdzv-id" in caught.value.remedy
        opens_at(server, "theirs")


def test_the_default_run_id_will_do_only_where_no_other_run_meets() -> None:
    for run in ("", "none"):
        with StoreServer("127.0.0.1", run=run) as server, pytest.raises(RunIdMissing) if not run else nullcontext():
            opens_at(server, "none", named=False)


def test_a_store_that_comes_late_or_has_no_room_yet_is_tried_again() -> None:
    hang_up = socket.socket.close
    with answering(hang_up, hang_up, opens()) as port:
        session_at(port).close()


def test_an_impossible_time_to_live_is_refused_here() -> None:
    for ttl in (0.0, 0.09, 3601.0, float("nan")):
        with pytest.raises(ValueError, match="ttl="):
            at(1).open_session(ttl, on_lost=Losses(), timeout=0.1)


def test_addresses_of_both_sides_without_a_reverse_look_up(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("getfqdn", "gethostbyaddr", "getnameinfo"):
        monkeypatch.setattr(socket, name, None)
    with StoreServer("") as server:
        session = at(server.port, host="::ffff:127.0.0.1").open_session(7.5, on_lost=Losses(), timeout=T)
        assert {session.local_addr, session.remote_addr, session.seen_as} == {"127.0.0.1"}
        assert session.ttl == 7.5
        session.close()
