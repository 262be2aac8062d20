"""What sessions with the native store promise beyond the contract: it knows them by their connections."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from kits.wire.coordination_kit import (
    LONG,
    Recorder,
    check_that_an_end_waits_for_the_call,
    check_that_sessions_share_a_thread,
    client_of,
    leave,
)
from kits.wire.session_peers import at, session_at
from kits.wire.wire_client import PATIENCE

from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.kvstore.native.server import StoreServer

T = PATIENCE


@pytest.fixture
def server() -> Iterator[StoreServer]:
    with StoreServer("127.0.0.1", threads=2) as server:
        yield server


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


def test_each_item_has_a_revision_of_its_own(server: StoreServer) -> None:
    recorder = Recorder()
    session = session_at(server.port)
    session.watch("", recorder, timeout=T)
    session.put({"a": b"", "b": b"", "c": b""}, timeout=T)
    recorder.take(3)
    assert len({each.revision for each in recorder.events}) == 3


def test_a_time_to_live_is_granted_as_it_was_asked_for(server: StoreServer) -> None:
    session = session_at(server.port, ttl=7.5)
    assert session.ttl == 7.5
    assert (session.local_addr, session.remote_addr) == ("127.0.0.1", "127.0.0.1")
