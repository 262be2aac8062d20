"""The root, a proxy or a worker is gone or frozen: who needed it is told at once, the others notice nothing."""

from __future__ import annotations

import os
import signal

import pytest
from kits.eventually import eventually
from kits.relay import Relay
from kits.wire import wire_client as wire
from kits.wire.attack_kit import PROXY, ServerProcess, Workers
from kits.wire.proxy_kit import FOREVER, Node, advance, crowd, trunks
from kits.wire.session_peers import stop

from rdzv_plugins.kvstore.native.server import StoreServer

pytestmark = pytest.mark.thorough

KEY = b"/key"


def awaited(root: StoreServer) -> list[str]:
    """Which of the keys that tests wait for somebody waits for, by the root's statistics."""
    keys = [entry["key"] for space in root.stats()["keyspaces"] for entry in space["waited"]]
    return sorted(key for key in keys if key in ("/key", "/queue", "/barrier"))


def expect_forgotten(root: StoreServer) -> None:
    """It knows of no proxy but the other one, and nobody waits: the trunk goes before its waits do."""
    eventually(lambda: [trunk["name"] for trunk in trunks(root.stats())] == ["other"], root.stats)
    eventually(lambda: awaited(root) == [], root.stats)


def expect_cut_off(node: Node, *clients: wire.Raw) -> None:
    """No worker is served any more, neither those that were there nor others."""
    for client in clients:
        assert client.until_close() == b""
    with pytest.raises((wire.Closed, OSError)):
        wire.Raw(node.port)


@pytest.mark.parametrize(
    ("how", "grace", "word"),
    [("break_", 2.0, ""), ("stall", 2.0, ""), ("refuse", FOREVER, "refuses")],  # who is refused does not wait
)
def test_a_root_that_is_cut_off_is_lost(
    root: StoreServer, others: list[Workers], how: str, grace: float, word: str
) -> None:
    with Relay(root.port) as relay, Node(relay.port, grace=grace) as node, crowd(node.port, 2) as (waiting, idle):
        waiting.do(wire.keyed(wire.WAIT, [KEY]) + wire.barrier(b"/barrier", 9))
        getattr(relay, how)()
        reason = node.expect_lost(str(relay.port), word)
        expect_cut_off(node, waiting, idle)
        advance(others)
        assert node.proxy.stats()["proxy"]["lost"] == reason
        assert node.proxy.stats()["connections"]["open"] == 0
        if how != "refuse":
            expect_forgotten(root)
            relay.mend()  # too late
            expect_cut_off(node)


def test_a_root_that_has_begun_anew_is_another(root: StoreServer, others: list[Workers]) -> None:
    """At the same address, and it does not know the proxy: what that has kept is worth nothing."""
    first = StoreServer("127.0.0.1")
    with Relay(first.port) as relay, Node(relay.port, grace=FOREVER) as node, crowd(node.port, 1) as (client,):
        client.send(wire.set_(KEY, b"old"))
        assert client.get(KEY) == b"old"
        relay.break_()
        first.close()
        with StoreServer("127.0.0.1", first.port) as second:
            relay.mend()
            node.expect_lost()
            expect_cut_off(node, client)
            assert second.stats()["keyspaces"][0]["keys"] == 0
        advance(others)


def hold(proxy: ServerProcess, writer: wire.Raw, value: bytes) -> None:
    """Have the proxy keep that value of KEY, which it is asked for until it does."""
    writer.do(wire.set_(KEY, value))

    def kept() -> bool:
        with wire.Raw(proxy.port) as reader:
            assert [reader.get(KEY), reader.get(KEY)] == [value] * 2
        return bool(proxy.stats()["proxy"]["cached"]["keys"])

    eventually(kept, proxy.stats)


def test_proxy_killed(root: StoreServer, others: list[Workers]) -> None:
    """It holds a value, waits for a key and for a barrier: its root forgets all that after its grace."""
    options = {"name": "killed", "grace": 4.0}
    with ServerProcess(threads=PROXY, root=root.port, proxy=options) as proxy, wire.Raw(root.port) as writer:
        hold(proxy, writer, b"old")
        with crowd(proxy.port, 2) as (waiting, arrived):
            waiting.do(wire.keyed(wire.WAIT, [b"/queue"]))
            arrived.do(wire.barrier(b"/barrier", 2))
            eventually(lambda: awaited(root) == ["/barrier", "/queue"], root.stats)
            proxy.kill()
            for client in (waiting, arrived):
                assert client.until_close() == b""
        writer.do(wire.set_(KEY, b"new"))
        advance(others)
        expect_forgotten(root)
        # who has arrived stays counted, as with any client; a push is for those who are still there
        assert writer.ask(wire.barrier(b"/barrier", 2), 1) == wire.STOP_WAITING
        with wire.Raw(root.port) as next_:
            next_.do(wire.keyed(wire.WAIT, [b"/queue"]))
            writer.send(wire.queue_push(b"/queue", b"x"))
            assert next_.receive(1) == wire.STOP_WAITING


def told_or_cut_off(reader: wire.Raw) -> bytes:
    try:
        return reader.receive_text()
    except wire.Closed as closed:
        return bytes(closed.args[0])


@pytest.mark.parametrize("tiers", [1, 2])
def test_frozen_proxy(root: StoreServer, others: list[Workers], tiers: int) -> None:
    """It holds a value that another writes, and does not answer. The writer goes on when the grace is over; when the
    proxy is awake again, it gives nobody the old value, and is cut off."""
    with (
        Node(root.port, leaf=False, grace=FOREVER) as top,
        wire.Raw(root.port) as writer,
        ServerProcess(threads=PROXY, root=(root.port, top.port)[tiers - 1], proxy={"grace": 4.0}) as proxy,
    ):
        hold(proxy, writer, b"old")
        with crowd(proxy.port, 20) as readers:
            stop(proxy.pid)
            writer.do(wire.set_(KEY, b"new"))
            assert writer.get(KEY) == b"new"
            advance(others)
            for reader in readers:
                reader.send(wire.get(KEY))
            os.kill(proxy.pid, signal.SIGCONT)
            answers = [told_or_cut_off(reader) for reader in readers]
            assert set(answers) <= {b"new", b""}
        advance(others)
