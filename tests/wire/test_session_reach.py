"""Opening a session: who is reached, and every reason why not in its own words."""

from __future__ import annotations

import http.server
import re
import socket
import struct
import threading

import pytest
from kits.wire.attack_kit import wait_until
from kits.wire.coordination_kit import LONG, Losses
from kits.wire.session_peers import HELLO, OPENED, answering, at, reply, says, session_at
from kits.wire.store_servers import start_torch
from kits.wire.wire_client import PATIENCE

from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.errors import EndpointUnreachable, RunIdMismatch
from rdzv_plugins.kvstore.coordination.opening import Opening
from rdzv_plugins.kvstore.native.server import StoreServer

T = PATIENCE


def refusal(port: int, timeout: float = T, *, host: str = "127.0.0.1") -> EndpointUnreachable:
    with pytest.raises(EndpointUnreachable) as caught:
        at(port, host=host).open_session(LONG, on_lost=Losses(), timeout=timeout)
    assert caught.value.remedy
    return caught.value


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    assert f"127.0.0.1:{port} could not be reached within 0.2 s: connection refused" in str(refusal(port, 0.2))


def test_a_name_that_does_not_resolve() -> None:
    assert "does not resolve" in str(refusal(1, 0.1, host="no.such.host.invalid"))


def test_something_that_stays_silent() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        error = refusal(listener.getsockname()[1], 0.2)
    assert "accepts connections there, but does not answer as a native store" in str(error)
    assert "Another program" in error.remedy


def test_something_that_hangs_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        stopped = threading.Event()

        def serve() -> None:
            while not stopped.is_set():
                listener.accept()[0].close()

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            # where the thread is late, the last attempt may meet somebody who is silent
            wait_until(lambda: "hangs up" in str(refusal(listener.getsockname()[1], 0.3)), lambda: "it never hangs up")
        finally:
            stopped.set()
            socket.create_connection(listener.getsockname()).close()
            thread.join(T)


def test_torchs_store_is_named() -> None:
    server = start_torch()
    try:
        error = refusal(server.port)
    finally:
        server.close()
    assert "is not a native store of rdzv-plugins: it is torch's TCPStore or another program" in str(error)
    assert "it answers as torch's TCPStore does" in str(error)
    assert "--rdzv-backend" in error.remedy


def test_a_web_server_is_another_program() -> None:
    with http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler) as web:
        threading.Thread(target=web.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        try:
            error = refusal(web.server_address[1], 0.3)
        finally:
            web.shutdown()
    assert "does not answer as a native store of rdzv-plugins" in str(error)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", r"is not a native store.*HTTP/1\.1"),
        (b"RDZV" + struct.pack("<I", 7), "speaks version 7 of the framing, this node version 1"),
        (HELLO + reply(1, b"operation 3 is unknown"), "opens no session: operation 3 is unknown"),
        (HELLO + reply(0, b"short"), "of another version of rdzv-plugins"),
        (HELLO + reply(0, OPENED[:-1]) + reply(1, b"unknown operation 1"), "of another version of rdzv-plugins"),
        (HELLO + reply(0, OPENED[:-1]) + reply(0, b'{"server": {"version": "0.0.1"}}'), r"0\.0\.1.*this node.*\d"),
    ],
)
def test_who_answers_wrongly_is_refused_at_once(data: bytes, text: str) -> None:
    with answering(says(data)) as port:
        error = refusal(port)
    assert str(Endpoint("127.0.0.1", port)) in str(error)
    assert re.search(text, str(error))


@pytest.mark.parametrize("under_tls", [False, True])
def test_who_is_silent_under_tls_is_asked_nothing_in_plain(under_tls: bool) -> None:
    """It would warn of it when it goes on."""
    asked: list[str] = []

    def stranger() -> None:
        asked.append("whose is it?")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()
        opening = Opening(Endpoint(*address), "run", LONG, stranger=stranger, under_tls=under_tls)
        with socket.create_connection(address, 0.1) as connection:
            assert "does not answer" in opening.greet(connection)
        listener.setblocking(False)
        listener.accept()[0].close()
        if under_tls:
            with pytest.raises(BlockingIOError):
                listener.accept()
    assert bool(asked) is not under_tls


def test_a_store_of_another_run_is_named_at_once() -> None:
    with StoreServer("127.0.0.1", run="theirs") as server:
        with pytest.raises(RunIdMismatch, match="serves run 'theirs', and this node belongs to run 'run'") as caught:
            at(server.port).open_session(LONG, on_lost=Losses(), timeout=T)
        assert "--rdzv-id" in caught.value.remedy
        at(server.port, "theirs").open_session(LONG, on_lost=Losses(), timeout=T).close()


def test_a_store_that_comes_late_or_has_no_room_yet_is_tried_again() -> None:
    hang_up = socket.socket.close
    with answering(hang_up, hang_up, says(HELLO + reply(0, OPENED))) as port:
        session_at(port).close()


def test_an_impossible_time_to_live_is_refused_here() -> None:
    for ttl in (0.0, 0.09, 3601.0, float("nan")):
        with pytest.raises(ValueError, match="ttl="):
            at(1).open_session(ttl, on_lost=Losses(), timeout=0.1)


def test_addresses_of_both_sides() -> None:
    with StoreServer("") as server:
        session = at(server.port, host="::ffff:127.0.0.1").open_session(LONG, on_lost=Losses(), timeout=T)
        assert {session.local_addr, session.remote_addr, session.seen_as} == {"127.0.0.1"}
        session.close()


def test_no_reverse_look_up(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("getfqdn", "gethostbyaddr", "getnameinfo"):
        monkeypatch.setattr(socket, name, None)
    with StoreServer("127.0.0.1") as server:
        session_at(server.port).close()
