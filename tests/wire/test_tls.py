"""TLS under all that crosses machines, over real sockets: who may speak, who hears what, whom a stranger holds up."""

from __future__ import annotations

import queue
import select
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, nullcontext
from pathlib import Path
from typing import Any

import pytest
from kits.eventually import eventually
from kits.relay import Relay
from kits.wire import proof_kit as proofs
from kits.wire import wire_client as wire
from kits.wire.attack_kit import Workers
from kits.wire.proof_kit import MINE, OTHER, RUN
from kits.wire.proxy_kit import Node
from kits.wire.tls_kit import Issued

from rdzv_plugins.coordination import Event
from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.errors import AccessRefused, ConnectionLost
from rdzv_plugins.kvstore.coordination.sessions import NativeCoordination, NativeSession
from rdzv_plugins.kvstore.native.framing import ask_statistics, frame
from rdzv_plugins.kvstore.native.server import StoreServer
from rdzv_plugins.kvstore.sockets.reach import CancelToken, try_connect
from rdzv_plugins.kvstore.sockets.secured import secure
from rdzv_plugins.security.certificates import NodeCertificates
from rdzv_plugins.security.job_token import JobToken

LONG_S = 60.0
SECRET = b"a word that is not to be heard on the way"
MIB = 2**20


@pytest.fixture
def ours(tmp_path: Path) -> Issued:
    return Issued(tmp_path / "ours")


@pytest.fixture
def server(ours: Issued) -> Iterator[StoreServer]:
    with StoreServer("127.0.0.1", threads=2, tls=ours.files) as served:
        yield served


def at(server: StoreServer) -> Endpoint:
    return Endpoint("127.0.0.1", server.port)


def test_what_is_said_behind_the_handshake_waits_for_nothing(server: StoreServer, ours: Issued) -> None:
    """Its last flight has no answer: by Nagle's algorithm the next words would wait for its acknowledgement, 40 ms."""
    connection, why = try_connect(at(server), LONG_S, None, tls=ours.files)
    assert connection is not None, why
    with connection:
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1


def session_at(
    port: int,
    tls: NodeCertificates | None,
    undo: ExitStack,
    token: JobToken | None = None,
    on_lost: Callable[[ConnectionLost], None] = lambda _: None,
) -> NativeSession:
    there = NativeCoordination(Endpoint("127.0.0.1", port), RUN, name="parallel", who="the store", token=token, tls=tls)
    undo.callback(there.close)
    return there.open_session(LONG_S, on_lost=on_lost, timeout=LONG_S)


def test_sessions_and_statistics_of_any_size(ours: Issued) -> None:
    tokens = MINE.accepted(RUN)
    with StoreServer("127.0.0.1", threads=2, tls=ours.files, tokens=tokens) as server, ExitStack() as undo:
        session = session_at(server.port, ours.files, undo, MINE)
        events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        session.watch("", lambda news: [events.put(each) for each in news][:0], timeout=LONG_S)
        for size in (0, 1, 16383, 16384, 16385, 65536, 5 * MIB):  # around what one record holds, and what one read does
            value = bytes(range(256)) * (size // 256) + bytes(size % 256)
            session.put({"key": value}, timeout=LONG_S)
            (held,), _ = session.list("key", timeout=LONG_S)
            assert held.value == events.get(timeout=LONG_S).value == value
        assert ask_statistics(at(server), LONG_S, token=MINE, tls=ours.files)["refused"] == {}


@pytest.mark.parametrize(("under_tls", "tiers"), [(False, 1), (True, 2)], ids=["token", "token and TLS"])
def test_trunks_that_break_are_secured_again(ours: Issued, under_tls: bool, tiers: int) -> None:
    how: dict[str, Any] = {"token": MINE, "run_id": RUN, "tls": ours.files if under_tls else None}
    heard: list[bytes] = []
    with (
        StoreServer("127.0.0.1", threads=2, tokens=MINE.accepted(RUN), tls=how["tls"]) as server,
        Relay(server.port) as relay,
        Node(relay.port, leaf=tiers == 1, **how) as node,
    ):
        relay.spoil(lambda data: heard.append(data) or data)  # type: ignore[func-returns-value]
        below = Node(node.proxy.listen(admit="token", under_tls=under_tls), **how) if tiers == 2 else node
        with below, Workers(below.port, name=SECRET) as workers, closing(wire.Raw(below.port)) as worker:
            for _ in range(3):
                workers.advance(2)
                relay.break_()
                relay.mend()
            workers.advance(2)
            worker.send(wire.set_(b"large", SECRET * 100_000))
            assert worker.get(b"large") == SECRET * 100_000
        assert node.proxy.lost == ""
        assert node.proxy.stats()["proxy"]["reconnects"] >= 3
    assert (SECRET in b"".join(heard)) is not under_tls


EXPIRED = {"years_from": -2, "years_to": -1}
LATER = {"years_from": 1, "years_to": 2}
NODES = "this node's certificate"
MINE_IS_NOT = "does not accept this side's certificate"

# what is wrong with the certificates of server and client, what the client says, and why the server refuses it
WRONG: list[tuple[Callable[[Issued, Issued], object], str, str]] = [
    (lambda _, client: client.issue(**EXPIRED), f"{NODES} has expired", "certificate expired"),
    (lambda _, client: client.issue(**LATER), f"accept {NODES}", "certificate not yet valid"),
    (lambda server, _: server.trust("theirs"), "does not know the authority", "certificate of another authority"),
    (lambda server, _: server.issue(**EXPIRED), "has expired", MINE_IS_NOT),
    (lambda server, _: server.issue(**LATER), "not valid yet", MINE_IS_NOT),
    (lambda server, _: server.issue(("127.0.0.2",)), "for 127.0.0.1", MINE_IS_NOT),
    (lambda _, client: client.trust("theirs"), "by an authority that this node", MINE_IS_NOT),
]


@pytest.mark.parametrize(("change", "told", "reason"), WRONG)
def test_each_side_says_which_has_to_change_what(
    ours: Issued,
    tmp_path: Path,
    change: Callable[[Issued, Issued], object],
    told: str,
    reason: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    theirs = Issued(tmp_path / "theirs")
    change(ours, theirs)
    with StoreServer("127.0.0.1", threads=1, tls=ours.files) as server, ExitStack() as undo:
        with pytest.raises(AccessRefused, match=told) as refused:
            session_at(server.port, theirs.files, undo)
        assert refused.value.remedy
        with Node(server.port, tls=theirs.files) as node:
            node.expect_lost("TLS: ")
        eventually(lambda: server.stats()["refused"] == {reason: 2}, server.stats)
        eventually(lambda: reason in caplog.text, lambda: caplog.text)


def test_one_side_without_certificates(ours: Issued, server: StoreServer, caplog: pytest.LogCaptureFixture) -> None:
    with ExitStack() as undo, StoreServer("127.0.0.1", threads=1) as plain:
        for token in (None, MINE):
            with pytest.raises(AccessRefused, match="no certificates"):
                session_at(server.port, None, undo, token)
        with pytest.raises(AccessRefused, match="certificate of this node"):
            session_at(server.port, NodeCertificates(str(ours.cacert)), undo)
        with pytest.raises(AccessRefused, match="does not speak TLS"):
            session_at(plain.port, ours.files, undo)
        with Node(plain.port, tls=ours.files) as node:
            node.expect_lost("TLS 1.3")
        assert server.stats()["refused"] == {"no TLS": 2, "no certificate": 1}
        assert plain.stats()["refused"] == {"TLS offered": 2}
        for reason in ("no TLS", "TLS offered"):
            eventually(lambda reason=reason: reason in caplog.text, lambda: caplog.text)


def test_without_authorities_only_the_server_shows_who_it_is(ours: Issued) -> None:
    alone, anybody = NodeCertificates(None, str(ours.cert), str(ours.key)), NodeCertificates(str(ours.cacert))
    with StoreServer("127.0.0.1", threads=1, tls=alone, tokens=MINE.accepted(RUN)) as server, ExitStack() as undo:
        session_at(server.port, anybody, undo, MINE)
        with pytest.raises(AccessRefused, match="token"):
            session_at(server.port, anybody, undo, OTHER)


def test_nobody_is_answered_in_plain(server: StoreServer) -> None:
    needed = b"RDZA" + bytes([6, 0, 0, 0])
    said = [wire.validate() + wire.set_(b"key", b"value"), b"GET / HTTP/1.1\r\n\r\n"]
    said += [bytes([opcode]) + bytes(64) for opcode in range(256) if opcode not in (0x16, 0xF7, 0xF8)]
    ours = [b"\xf7RDZV\1\0\0\0" + frame(1, operation) for operation in range(24)] + [proofs.Client().introduction]
    for each in said + ours:
        with closing(wire.Raw(server.port, validated=False)) as raw:
            try:
                raw.send(each)
                answer = raw.until_close()
            except wire.Closed:  # while it was being said
                continue
            assert answer in (b"", needed if each in ours else b"")
    assert server.stats()["refused"] == {"no TLS": len(said) + len(ours)}
    assert server.stats()["keyspaces"][0]["keys"] == 0


@pytest.mark.parametrize("heard", [False, True])
def test_a_connection_that_is_reset_at_once_is_one_that_hangs_up(ours: Issued, heard: bool) -> None:
    """As the kernel of a server that dies does with the queue of its listener."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        connection = socket.create_connection(listener.getsockname(), LONG_S)
        other, _ = listener.accept()
        other.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        other.close()
        assert select.select([connection], [], [], LONG_S)[0]
        with pytest.raises(ConnectionResetError) if heard else nullcontext():
            connection.recv(1 if heard else 0)
        with pytest.raises(ConnectionError, match="hangs up"):
            secure(connection, ours.files, Endpoint("127.0.0.1", 1), CancelToken())


def shown_by(server: StoreServer, ours: Issued) -> bytes:
    """The certificate that a new connection is shown."""
    with (
        socket.create_connection(("127.0.0.1", server.port), LONG_S) as plain,
        ours.files.context().wrap_socket(plain, server_hostname="127.0.0.1") as secured,
    ):
        return secured.getpeercert(binary_form=True) or b""


def test_certificates_are_renewed_while_all_go_on(
    ours: Issued, server: StoreServer, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        Relay(server.port) as relay,
        Node(relay.port, tls=ours.files) as node,
        Workers(node.port) as workers,
        ExitStack() as undo,
    ):
        session = session_at(server.port, ours.files, undo)
        first = shown_by(server, ours)
        ours.issue()
        eventually(lambda: shown_by(server, ours) != first, lambda: caplog.text)  # without being told
        second = shown_by(server, ours)
        eventually(lambda: caplog.text.count("was read again") == 2, lambda: caplog.text)  # the proxy has seen it, too
        session.put({"key": b"value"}, timeout=LONG_S)
        workers.advance(1)
        assert node.proxy.stats()["proxy"]["reconnects"] == 0
        relay.break_()
        relay.mend()
        workers.advance(1)  # on a trunk with the new ones

        ours.cert.write_text("nothing")
        server.read_certificates()
        assert "the certificates stay as they were" in caplog.text
        ours.cert.unlink()
        server.read_certificates()
        assert "cannot be read: no such file" in caplog.text
        ours.issue()
        server.read_certificates()
        assert shown_by(server, ours) not in (first, second)
        session.put({"key": b"value"}, timeout=LONG_S)
        assert server.stats()["refused"] == {}
