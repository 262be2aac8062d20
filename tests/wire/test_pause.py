"""A keyspace that pauses when its process has stood still: nobody is served before somebody says so."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from datetime import timedelta

import pytest
from kits.eventually import eventually
from kits.wire.attack_kit import ServerProcess
from kits.wire.proxy_kit import silent
from kits.wire.standstill import stopped
from kits.wire.wire_client import PATIENCE, STOP_WAITING, WAIT, Raw, get, keyed, set_
from torch.distributed import TCPStore

from rdzv_plugins.kvstore.native.server import StoreServer

pytestmark = pytest.mark.thorough

AFTER = 7.0
"""Seconds: more than a busy machine makes a thread wait for a processor."""
STAND_S = 1.2 * AFTER


@pytest.fixture
def apart() -> Iterator[ServerProcess]:
    with ServerProcess(threads=3, pause=AFTER) as server:
        yield server


def expect_pause(server: ServerProcess, number: int) -> None:
    eventually(lambda: f"served WARNING paused {number}\n" in server.log(), server.log)
    assert space(server)["paused"]
    assert space(server)["pauses"] == number
    turns = [loop["turns"] for loop in server.stats()["loops"]]
    eventually(  # each loop has looked around since
        lambda: all(loop["turns"] > before + 3 for loop, before in zip(server.stats()["loops"], turns, strict=True)),
        server.stats,
    )


def space(server: ServerProcess) -> dict[str, object]:
    first: dict[str, object] = server.stats()["keyspaces"][0]
    return first


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def test_nobody_is_served_until_it_resumes(apart: ServerProcess, stack: ExitStack) -> None:
    stock = TCPStore("127.0.0.1", apart.port, timeout=timedelta(seconds=PATIENCE), wait_for_workers=False)
    waiting = TCPStore("127.0.0.1", apart.port, timeout=timedelta(seconds=PATIENCE), wait_for_workers=False)
    stock.set("old", "step")
    done = threading.Event()
    waiter = threading.Thread(target=lambda: (waiting.wait(["gate"]), done.set()))
    waiter.start()
    clients = [stack.enter_context(closing(Raw(apart.port))) for _ in range(6)]
    clients[0].send(keyed(WAIT, [b"/gate"]))
    eventually(lambda: apart.stats()["requests"]["wait"] == 2, apart.stats)  # both have been served so far
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(stock.get("old")))
    before = apart.stats()
    with stopped([apart.pid]):
        reader.start()
        for each in clients[1:3]:
            each.send(get(b"/old"))
        clients[3].send(set_(b"/gate", b"") + get(b"/gate"))
        time.sleep(STAND_S)
    expect_pause(apart, 1)
    late = stack.enter_context(closing(Raw(apart.port, validated=False)))  # the kernel takes it
    late.send(b"\0")
    after = apart.stats()
    assert {k: v for k, v in after["requests"].items() if v} == {k: v for k, v in before["requests"].items() if v}
    assert after["connections"]["accepted"] == before["connections"]["accepted"]
    assert silent([*clients, late])
    assert not done.is_set()
    assert not read
    assert apart.ask("resume 1") is True
    assert clients[0].receive(1) == STOP_WAITING
    assert [each.receive_text() for each in clients[1:4]] == [b"step", b"step", b""]
    reader.join(PATIENCE)
    waiter.join(PATIENCE)
    assert read == [b"step"]
    assert done.is_set()
    assert not space(apart)["paused"]
    stock.set("new", "step")
    assert waiting.get("new") == b"step"


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
        assert other.paused is False
