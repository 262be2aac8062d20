"""The silence of others is judged by the time in which the server itself has been running."""

from __future__ import annotations

import struct
import time
from contextlib import ExitStack, closing

import pytest
from kits.eventually import eventually
from kits.wire.attack_kit import ServerProcess
from kits.wire.relay import Relay
from kits.wire.standstill import KEEP_ALIVE, keep_alive, session, stopped
from kits.wire.trunk_peer import RECEIVED, TAKEN, answer, attached, frame
from kits.wire.wire_client import Raw

from rdzv_plugins.kvstore.native.server import StoreServer

pytestmark = pytest.mark.thorough

TTL = 10.0
STILL = 12.0
BEAT = frame(2, RECEIVED, struct.pack("<Q", 0))


def test_a_server_that_has_stood_still_gives_nobody_up() -> None:
    with ServerProcess(threads=1) as one, ServerProcess(threads=4) as four, ExitStack() as stack:
        keep = stack.enter_context
        places = [server.port for server in (one, four) for _ in range(8)]
        sessions = [keep(closing(session(port, TTL))) for port in places]
        speakers = [keep(closing(session(port, TTL))) for port in places]
        trunks = [
            keep(closing(attached(port, number, grace_ms=int(TTL * 1000)))) for number, port in enumerate(places, 1)
        ]
        with stopped([one.pid, four.pid]):
            for each in speakers:
                each.send(frame(8, KEEP_ALIVE))
            time.sleep(STILL)
        for server in (one, four):
            for _ in range(8):
                Raw(server.port).close()  # served, so every loop has turned
        for each in sessions:
            keep_alive(each)
        for trunk in trunks:
            trunk.send(BEAT)
            assert answer(trunk)[1] == TAKEN
        for each in speakers:
            assert answer(each)[:2] == (8, 0)
        for server in (one, four):
            assert not server.stats()["refused"]
            assert all(loop["stalled_s"] > STILL / 2 for loop in server.stats()["loops"]), server.stats()["loops"]
            assert "this process stood still for" in server.log()
        # and now they are silent while it runs
        for each in sessions + speakers + trunks:
            each.until_close()
        for server in (one, four):
            refused = server.stats()["refused"]
            assert refused == {"session expired": 16, "trunk silent": 8}


def test_who_was_cut_off_is_given_up_and_hears_of_it() -> None:
    with StoreServer("127.0.0.1", threads=2) as server, Relay(server.port) as relay, ExitStack() as stack:
        client = stack.enter_context(closing(session(relay.port, 0.5)))
        relay.stall()
        eventually(lambda: server.stats()["refused"].get("session expired"), server.stats)
        relay.mend()
        client.send(frame(7, KEEP_ALIVE))
        assert client.until_close() == b""
