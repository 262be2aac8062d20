"""What a proxy keeps is never old, also while its connection to the root breaks, stands still, or is half gone."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from kits.eventually import eventually
from kits.wire import wire_client as wire
from kits.wire.attack_kit import Bystanders
from kits.wire.linearizability import Operation, violations
from kits.wire.proxy_kit import FOREVER, Node, assert_new_or_closed, crowd, trunks
from kits.wire.relay import Relay
from wire.test_linearizability import by_processes

from rdzv_plugins.kvstore.native.server import StoreServer

pytestmark = pytest.mark.thorough

KEY = b"/key"


def disturbed(relay: Relay, how: Callable[[], None], record: Callable[[], list[Operation]]) -> list[Operation]:
    """A history during which the relay is treated like that, again and again."""
    stopping = threading.Event()

    def run() -> None:
        while not stopping.wait(0.03):
            how()
            stopping.wait(0.05)
            relay.mend()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        return record()
    finally:
        stopping.set()
        thread.join()
        relay.mend()


@pytest.mark.timeout(600)  # beside other work
@pytest.mark.parametrize(("how", "requests"), [("break_", "all"), ("break_", "kept"), ("stall", "kept")])
def test_nobody_reads_what_is_old_while_it_breaks(
    root: StoreServer, way: tuple[Relay, Node], how: str, requests: str
) -> None:
    relay, node = way
    with Node(root.port) as other:
        ports = [node.port, other.port, root.port]
        history = disturbed(
            relay,
            getattr(relay, how),
            lambda: by_processes(ports, 2 * len(ports), 600, 4, 4, requests),
        )
        assert node.proxy.lost == other.proxy.lost == ""
        if how == "break_":
            eventually(lambda: relay.connections > 2, lambda: relay.connections)
    assert violations(history) == []


@pytest.mark.parametrize("request_", [wire.get(KEY), wire.keyed(wire.WAIT, [KEY])], ids=["get", "wait"])
def test_an_answer_that_was_sent_again_is_not_kept(root: StoreServer, relay: Relay, request_: bytes) -> None:
    """The break has lost it; when it comes again, the key has another value, and nobody was asked to give it up."""
    # a writer waits for half of the grace; in the rest of it the break has to be mended
    with Node(relay.port, grace=12.0) as node, crowd(node.port, 2) as (asking, reader), wire.Raw(root.port) as writer:
        for turn in range(3):
            writer.do(wire.set_(KEY, b"old") + wire.set_(b"/held", b"old"))
            assert reader.get(b"/held") == b"old"
            relay.break_after(0, upward=False)
            asking.send(request_)
            eventually(lambda: relay.broken, node.proxy.stats)
            # this waits until nothing counts any more that the proxy was ever given to hold; what follows does not
            writer.do(wire.set_(b"/held", b"new") + wire.set_(KEY, b"new"))
            relay.mend()
            asking.send(wire.queue_len(wire.NO_QUEUE))
            answer = asking.fence()
            assert answer in [text + wire.i64(0) for text in (wire.text(b"old"), wire.text(b"new"), wire.STOP_WAITING)]
            assert reader.get(KEY) == b"new", turn
        assert node.proxy.lost == ""


def test_half_open_break(root: StoreServer, relay: Relay) -> None:
    """The root has seen the end of the connection, the proxy not yet: the writer waits until it must have."""
    with Node(relay.port, grace=12.0) as node, crowd(node.port, 2) as readers, wire.Raw(root.port) as writer:
        writer.do(wire.set_(KEY, b"old"))
        for reader in readers * 2:
            assert reader.get(KEY) == b"old"
        relay.break_half()
        eventually(lambda: not trunks(root.stats())[0]["attached"], root.stats)
        writer.send(wire.set_(KEY, b"new"))
        relay_mended = threading.Timer(1.0, relay.break_)  # lets go of the other half, should the writer wait for that
        relay_mended.start()
        assert writer.fence() == b""
        for reader in readers:
            reader.send(wire.get(KEY))
        relay_mended.join()
        relay.mend()
        for reader in readers:
            assert reader.receive_text() == b"new"


def test_who_has_not_heard_from_the_root_answers_nothing_by_itself(root: StoreServer, relay: Relay) -> None:
    """The connection stands still, which neither side can know at once. A writer at the root goes on all the same, and
    from then on the old value is read by nobody."""
    with (
        Node(relay.port, grace=3.0) as node,
        Node(root.port, grace=FOREVER) as other,
        crowd(node.port, 8) as readers,
        crowd(other.port, 1) as (neighbour,),
        wire.Raw(root.port) as writer,
    ):
        writer.do(wire.set_(KEY, b"old"))
        for client in [*readers, neighbour] * 2:
            assert client.get(KEY) == b"old"
        relay.stall()
        with Bystanders(root.port) as direct, Bystanders(other.port) as neighbours:
            writer.send(wire.set_(KEY, b"new"))
            assert writer.fence() == b""  # within our patience: grace is three seconds
            direct.advance(1)
            neighbours.advance(1)
        for reader in readers:
            reader.send(wire.get(KEY))
        assert neighbour.get(KEY) == b"new"
        relay.mend()
        for reader in readers:
            assert_new_or_closed(reader)
