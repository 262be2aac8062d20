"""A store that needs a token, over real sockets: who knows none is served nothing, and harms nobody who does."""

from __future__ import annotations

import functools
import os
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
from kits.eventually import eventually
from kits.relay import Relay
from kits.wire import proof_kit as proofs
from kits.wire import wire_client as wire
from kits.wire.attack_kit import Workers
from kits.wire.proof_kit import KEY, MINE, OTHER, RUN
from kits.wire.proxy_kit import Node
from kits.wire.session_peers import answering

from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.errors import AccessRefused, RunIdMismatch
from rdzv_plugins.kvstore.coordination.sessions import NativeCoordination
from rdzv_plugins.kvstore.native.framing import ask_statistics, frame, greet_guarded
from rdzv_plugins.kvstore.native.server import StoreProxy, StoreServer
from rdzv_plugins.kvstore.sockets.reach import try_connect
from rdzv_plugins.security.job_token import JobToken

FRAMED = b"\xf7RDZV" + struct.pack("<I", 1)
TLS, NO_TLS = b"\x16", b"RDZA" + struct.pack("<I", 7)
"""How TLS begins, and what is said to that where there is none."""
LONG_S = 60.0


@pytest.fixture
def guarded() -> Iterator[StoreServer]:
    with StoreServer("127.0.0.1", threads=2, tokens=MINE.accepted(RUN)) as server:
        yield server


def at(server: StoreServer) -> Endpoint:
    return Endpoint("127.0.0.1", server.port)


def service(server: StoreServer, token: JobToken | None, run: str = RUN) -> NativeCoordination:
    return NativeCoordination(at(server), run, name="parallel", who="the store", token=token)


def opened(server: StoreServer, token: JobToken | None, run: str = RUN) -> None:
    with closing(service(server, token, run)) as there:
        session = there.open_session(LONG_S, on_lost=lambda _: None, timeout=LONG_S)
        session.create("key", b"value", timeout=LONG_S)


def test_whoever_has_not_proved_a_token_is_served_no_operation(guarded: StoreServer) -> None:
    """Every request of both protocols, while a job works that must not notice."""
    said = [before + wire.op(number) for before in (wire.validate(), b"") for number in range(25)]
    said += [FRAMED + frame(1, number, payload) for number in range(1, 25) for payload in (b"", RUN.encode())]
    with Node(guarded.port, token=MINE, run_id=RUN) as node, Workers(node.port) as workers:
        workers.advance(1)
        before = guarded.stats()
        for each in said:
            with closing(wire.Raw(guarded.port, validated=False)) as stranger:
                stranger.send(each)
                told = stranger.until_close()
                answers = {FRAMED[:1]: proofs.NEEDED, TLS: NO_TLS}
                assert told in (b"", answers.get(each[:1], b""))
        workers.advance(1)
        after = guarded.stats()
        assert node.proxy.lost == ""
    assert sum(after["refused"].values()) == len(said)
    assert set(after["refused"]) <= {"no token", "not a store client", "TLS offered"}
    for name in ("validate", "open_session", "set", "add", "list_keys"):
        assert after["requests"][name] == before["requests"][name]
    assert after["runs"] == []


def test_each_side_says_what_is_wrong(guarded: StoreServer, caplog: pytest.LogCaptureFixture) -> None:
    opened(guarded, MINE)
    opened(guarded, JobToken((b"new" + KEY[3:], KEY)))  # which is being changed
    for token, words in ((None, "was given none"), (OTHER, "does not accept this node's token")):
        with pytest.raises(AccessRefused, match=words) as refused:
            opened(guarded, token)
        assert "RDZV_TOKEN" in refused.value.remedy
        with pytest.raises(AccessRefused, match=words):
            ask_statistics(at(guarded), LONG_S, token=token)
        with pytest.raises(AccessRefused, match=words):
            StoreProxy(at(guarded), token=token, run_id=RUN)
    with pytest.raises(AccessRefused, match="does not accept"):
        try_connect(at(guarded), LONG_S, functools.partial(greet_guarded, token=OTHER, run_id=RUN))
    with pytest.raises(RunIdMismatch, match="does not open run 'another'"):
        opened(guarded, MINE, "another")
    connection, why = try_connect(at(guarded), LONG_S, functools.partial(greet_guarded, token=MINE, run_id="another"))
    assert connection is None
    assert "of another run" in why, "the port may be that of a round that is over"
    with StoreServer("127.0.0.1", threads=1) as everybodys:
        with pytest.raises(AccessRefused, match="has no token"):
            opened(everybodys, MINE)
        with pytest.raises(AccessRefused, match="needs no token"):
            ask_statistics(at(everybodys), LONG_S, token=MINE)
    with StoreServer("127.0.0.1", threads=1, tokens=MINE.accepted(RUN)) as third, pytest.raises(AccessRefused):
        opened(third, OTHER)
    # the first of each server: there is one line in a second
    for line in ("no token, which is needed here", "its token or its run id is another", "none is known here"):
        eventually(lambda line=line: line in caplog.text, lambda: caplog.text)
    assert KEY.decode() not in caplog.text
    assert KEY.decode() not in repr(MINE) + repr(MINE.accepted(RUN)) + str(guarded.stats())


def test_a_second_look_at_a_server_that_is_another_jobs_now(guarded: StoreServer) -> None:
    for token, run in ((OTHER, RUN), (MINE, "another"), (None, RUN)):
        assert not service(guarded, token, run).answers()
    assert service(guarded, MINE).answers()


def test_whoever_does_not_know_the_token_is_told_no_more_than_a_greeting() -> None:
    heard: list[bytes] = []

    def pretend(connection: socket.socket) -> None:
        if connection.recv(1000)[:1] != b"\xf8":  # a client that has waited for a second asks who this is
            return
        connection.sendall(proofs.GO_ON + os.urandom(32))
        assert len(connection.recv(33, socket.MSG_WAITALL)) == 33
        connection.sendall(proofs.GO_ON + b"\0" + os.urandom(32))
        more = b""
        while part := connection.recv(1000):
            more += part
        heard.append(more)

    with answering(*[pretend] * 8) as port:
        where = Endpoint("127.0.0.1", port)
        attempts: list[Callable[[], object]] = [
            lambda: NativeCoordination(where, RUN, name="x", who="it", token=MINE).open_session(
                LONG_S, on_lost=lambda _: None, timeout=LONG_S
            ),
            lambda: ask_statistics(where, LONG_S, token=MINE),
            lambda: StoreProxy(where, token=MINE, run_id=RUN),
            lambda: try_connect(where, LONG_S, functools.partial(greet_guarded, token=MINE, run_id=RUN)),
        ]
        for attempt in attempts:
            with pytest.raises(AccessRefused, match="has not proved"):
                attempt()
        eventually(lambda: len(heard) == 4, lambda: heard)
    run = frame(1, 3, struct.pack("<II", round(LONG_S * 1000), len(RUN)) + RUN.encode())
    assert heard == [FRAMED + run, FRAMED, FRAMED, b""]


@pytest.mark.parametrize("what", ["accepts another", "proves nothing"])
def test_a_trunk_ends_where_its_token_is_accepted_or_proved_no_more(guarded: StoreServer, what: str) -> None:
    def spoil(data: bytes) -> bytes:
        is_proof = len(data) == 41 and data[:8] == proofs.GO_ON
        return data[:-1] + bytes([data[-1] ^ 1]) if is_proof else data

    with Relay(guarded.port) as relay, Node(relay.port, token=MINE, run_id=RUN) as node, Workers(node.port) as workers:
        workers.advance(1)
        if what == "accepts another":
            guarded.accept_tokens(OTHER.accepted(RUN))
        else:
            relay.spoil(spoil)
        workers.advance(1)  # it is connected
        relay.break_()
        relay.mend()
        node.expect_lost({"accepts another": "does not accept", "proves nothing": "has not proved"}[what])
        workers.expect_closed()
