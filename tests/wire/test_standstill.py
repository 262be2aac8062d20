"""The silence of others is judged by the time in which the server itself has been running; and a keyspace may pause
when its process has stood still: nobody is served before somebody says so."""

from __future__ import annotations

import struct
import time
from contextlib import ExitStack, closing

import pytest
from kits.eventually import eventually
from kits.wire.attack_kit import ServerProcess, standing, stopped
from kits.wire.proxy_kit import crowd, silent
from kits.wire.trunk_peer import OK, RECEIVED, TAKEN, answer, attached, frame, framed, text
from kits.wire.wire_client import STOP_WAITING, WAIT, Raw, get, keyed, set_

from rdzv_plugins.kvstore.native.server import StoreServer

pytestmark = pytest.mark.thorough

OPEN, KEEP_ALIVE = 3, 9
TTL = 5.0
STILL = 6.0
AFTER = 5.0
"""Seconds: more than a busy machine makes a thread wait for a processor."""
BEAT = frame(2, RECEIVED, struct.pack("<Q", 0))


def session(port: int, ttl: float) -> Raw:
    client = framed(port)
    client.send(frame(1, OPEN, struct.pack("<I", int(ttl * 1000)) + text(b"run")))
    assert answer(client)[:2] == (1, OK)
    return client


def keep_alive(client: Raw) -> None:
    client.send(frame(7, KEEP_ALIVE))
    assert answer(client)[:2] == (7, OK)


def test_a_server_that_has_stood_still_gives_nobody_up() -> None:
    with ServerProcess(threads=1) as one, ServerProcess(threads=4) as four, ExitStack() as stack:
        keep = stack.enter_context
        places = [server.port for server in (one, four) for _ in range(8)]
        sessions = [keep(closing(session(port, TTL))) for port in places]
        speakers = [keep(closing(session(port, TTL))) for port in places]
        trunks = [
            keep(closing(attached(port, number, grace_ms=int(TTL * 1000)))) for number, port in enumerate(places, 1)
        ]
        with stopped(one.pid, four.pid):
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


def test_nobody_is_served_until_it_resumes() -> None:
    with (
        ServerProcess(threads=3, pause=AFTER) as server,
        crowd(server.port, 5) as (waiting, writer, *readers),
        ExitStack() as stack,
    ):
        writer.do(set_(b"/old", b"step"))
        waiting.do(keyed(WAIT, [b"/gate"]))
        before = server.stats()
        with stopped(server.pid):
            for each in readers:
                each.send(get(b"/old"))
            writer.send(set_(b"/gate", b"") + get(b"/gate"))
            time.sleep(1.2 * AFTER)  # the standstill in question
        eventually(lambda: "served WARNING paused 1\n" in server.log(), server.log)
        late = stack.enter_context(standing(server.port, b"\0", validated=False))  # the kernel takes it
        turns = [loop["turns"] for loop in server.stats()["loops"]]
        eventually(  # each loop has looked around since
            lambda: all(loop["turns"] > turn + 3 for loop, turn in zip(server.stats()["loops"], turns, strict=True)),
            server.stats,
        )
        after = server.stats()
        assert after["keyspaces"][0]["paused"]
        assert (after["requests"], after["connections"]["accepted"]) == (
            before["requests"],
            before["connections"]["accepted"],
        )
        assert silent([waiting, writer, *readers, *late])
        assert server.ask("resume 1") is True
        assert waiting.receive(1) == STOP_WAITING
        assert [each.receive_text() for each in (writer, *readers)] == [b"", *[b"step"] * 3]
        assert not server.stats()["keyspaces"][0]["paused"]


def test_what_cannot_pause() -> None:
    told: list[int] = []
    with StoreServer("127.0.0.1", threads=1) as server:
        other = server.open_keyspace("other")
        server.first.pause_after(0.1, told.append)
        with pytest.raises(ValueError, match="pauses already"):
            server.first.pause_after(1, told.append)
        with pytest.raises(ValueError, match="at least"):
            other.pause_after(0.01, told.append)
        assert server.first.resume(1) is False
        other.close()
        with pytest.raises(ValueError, match="is closed"):
            other.pause_after(1, told.append)
