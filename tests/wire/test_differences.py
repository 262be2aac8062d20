"""Where our server is deliberately other than torch 2.13's libuv server, each tried on both: ours does right, and
torch's still does otherwise. Where it no longer does, the difference can go.

``native/PROTOCOL.md`` has the list; ``store_model.py`` models those that random programs meet.
"""

from __future__ import annotations

import time

import pytest
from kits.eventually import eventually
from kits.wire import wire_client as wire
from kits.wire.store_servers import KINDS, Server, running

pytestmark = pytest.mark.thorough

A, B, Q, X = b"/a", b"/b", b"/q", b"/x"
RELEASED, NOTHING = wire.STOP_WAITING, b""
CANCEL = wire.op(wire.CANCEL_WAIT)
FIVE = wire.i64(5)


@pytest.fixture(params=KINDS)
def server(request: pytest.FixtureRequest):
    with running(request.param) as server:
        yield server


def wait(*keys: bytes) -> bytes:
    return wire.keyed(wire.WAIT, keys)


def does(connection: wire.Raw, *requests: bytes) -> bytes:
    """What the connection has got once all of it is done."""
    for request in requests:
        connection.send(request)
    return connection.fence()


# who asks what, what it gets from ours, and from torch's; "" is a look at what has come meanwhile
STEPS: dict[str, list[tuple[int, bytes, bytes, bytes]]] = {
    "a compare_set that wrote nothing gives nobody anything to read": [
        (0, wait(A), NOTHING, NOTHING),
        (1, wire.compare_set(A, b"expected", b"new"), *2 * [wire.text(b"expected")]),
        (0, b"", NOTHING, RELEASED),
        (1, wire.keyed(wire.CHECK, [A]), b"\1", b"\1"),
        (1, wire.compare_set(A, b"", b"new"), *2 * [wire.text(b"new")]),
        (0, b"", RELEASED, NOTHING),
    ],
    "torch's server keeps one count per connection: a second WAIT forgets the first": [
        (0, wait(A) + wait(B, X), NOTHING, NOTHING),
        (1, wire.set_(A, b""), b"", b""),
        (0, b"", RELEASED, NOTHING),
        (1, wire.set_(B, b""), b"", b""),
        (0, b"", NOTHING, RELEASED),
        (1, wire.set_(X, b""), b"", b""),
        (0, b"", RELEASED, NOTHING),
        (0, wait(Q) + wait(Q) + CANCEL, wire.WAIT_CANCELED, wire.WAIT_CANCELED),
        (1, wire.set_(Q, b""), b"", b""),
        (0, b"", NOTHING, NOTHING),
    ],
    "a queue that has items is there, also for a WAIT that misses another key": [
        (1, wire.queue_push(Q, b"item"), b"", b""),
        (0, wait(Q, X), NOTHING, NOTHING),
        (1, wire.set_(X, b""), b"", b""),
        (0, b"", RELEASED, NOTHING),
    ],
    "torch's server keeps a released waiter in a queue's line: a later push releases its next WAIT": [
        (0, wait(Q), NOTHING, NOTHING),
        (1, wire.queue_push(Q, b"1"), b"", b""),
        (0, b"", RELEASED, RELEASED),
        (0, wait(X), NOTHING, NOTHING),
        (1, wire.queue_push(Q, b"2"), b"", b""),
        (0, b"", NOTHING, RELEASED),
    ],
    "torch's server takes a second push to one queue for the other key of the WAIT": [
        (0, wait(Q, X), NOTHING, NOTHING),
        (1, wire.queue_push(Q, b"1"), b"", b""),
        (0, b"", NOTHING, NOTHING),
        (1, wire.queue_push(Q, b"2"), b"", b""),
        (0, b"", NOTHING, RELEASED),
    ],
    "a barrier holds until as many as its own world size have arrived, whatever the others said": [
        (0, wire.barrier(B, 4), NOTHING, NOTHING),
        (1, wire.barrier(B, 3), NOTHING, NOTHING),
        (2, wire.barrier(B, 2), RELEASED, RELEASED),
        (1, b"", RELEASED, RELEASED),
        (0, b"", NOTHING, RELEASED),
        (3, wire.barrier(B, 4), RELEASED, RELEASED),
        (0, b"", RELEASED, NOTHING),
    ],
    "a barrier's first arrival makes its key: who waits for the key alone is told": [
        (0, wait(B), NOTHING, NOTHING),
        (1, wire.barrier(B, 2), NOTHING, NOTHING),
        (0, b"", RELEASED, NOTHING),
        (2, wire.barrier(B, 2), RELEASED, RELEASED),
        (0, b"", NOTHING, RELEASED),
    ],
    "a request is answered before the earlier WAITs that it released on its own connection": [
        (0, wait(A) + wire.add(A, 5), FIVE + RELEASED, RELEASED + FIVE),
        # but before what is asked next, in the same packet or not
        (0, wait(B) + wire.set_(B, b"v") + wire.get(B), *2 * [RELEASED + wire.text(b"v")]),
        (0, wait(X), NOTHING, NOTHING),
        (0, wire.set_(X, b"v"), RELEASED, RELEASED),
    ],
    **{
        f"torch's server takes any write of the key for a barrier's last arrival: {name}": [
            (0, wire.barrier(B, 2), NOTHING, NOTHING),
            (1, write, b"", b""),
            (0, b"", NOTHING, RELEASED),
        ]
        for name, write in {
            "no number": wire.set_(B, b"word"),
            "too few": wire.set_(B, b"1"),
            "nothing appended": wire.append(B, b""),
            "among others": wire.multi_set([(B, b"1")]),
            "an item": wire.queue_push(B, b"item"),
        }.items()
    },
    **{
        f"as many as it waits for have arrived, whoever has counted them: {name}": [
            (0, wire.barrier(B, 2), NOTHING, NOTHING),
            (1, write, b"", b""),
            (0, b"", RELEASED, RELEASED),
        ]
        for name, write in {
            "set": wire.set_(B, b"9"),
            "append": wire.append(B, b"0"),
            "multi_set": wire.multi_set([(B, b"2")]),
        }.items()
    },
}


@pytest.mark.parametrize("steps", STEPS.values(), ids=STEPS)
def test_difference(server, steps):
    clients = [server.connect() for _ in range(4)]
    for number, (client, request, ours, torchs) in enumerate(steps):
        assert does(clients[client], request) == (torchs if server.ours is None else ours), number


def closed(connection: wire.Raw) -> bool:
    try:
        connection.fence()
    except wire.Closed:
        return True
    return False


def test_tcp_may_cut_anywhere_and_torchs_server_closes_a_client_whose_validate_comes_in_two_packets(server):
    other = server.connect()  # answered after the server has looked at what came before: packets stay apart

    def in_two(cut: int) -> wire.Raw:
        connection = server.connect(validated=False)
        connection.send(wire.validate()[:cut])
        other.fence()
        other.fence()
        connection.send(wire.validate()[cut:])
        return connection

    for cut in range(1, 5):
        if server.ours is not None:
            assert does(in_two(cut), wire.set_(A, b"1"), wire.get(A)) == wire.text(b"1")
        else:  # a busy machine may accept the connection only when both packets are there
            assert any(closed(in_two(cut)) for _ in range(10))


def test_torchs_server_runs_what_a_stranger_sent_first_as_soon_as_a_second_packet_comes(server):
    other = server.connect()
    for first in (wire.set_(A, b"1"), wire.ping(1), b"GET / HTTP/1.1\r\n\r\n", wire.validate(1) + wire.set_(A, b"1")):
        with server.connect(validated=False) as stranger:
            stranger.send(first)
            if server.ours is not None:
                assert stranger.until_close() == b""
            other.fence()
            other.fence()
            assert other.ask(wire.op(wire.NUM_KEYS), 8) == wire.i64(0), "not run at once"

    def answered() -> bool:
        with server.connect(validated=False) as stranger:
            stranger.send(wire.set_(A, b"1"))
            other.fence()
            other.fence()
            stranger.socket.settimeout(3)
            try:
                return stranger.fence() == b""
            except TimeoutError:  # a busy machine may read both packets as one, which it then waits behind
                return False

    if server.ours is None:
        assert any(answered() for _ in range(10)), "answered like one that has shown what it is"
        assert other.ask(wire.op(wire.NUM_KEYS), 8) == wire.i64(1)


def test_torchs_server_reads_a_request_of_many_keys_from_its_first_byte_again_with_every_4_kib(server):
    """By the CPU time of this process, where the server runs too, compared with itself at another size."""
    connection = server.connect()

    def cpu(keys: int) -> float:
        request = wire.keyed(wire.MULTI_GET, [b"/key%05d" % number for number in range(keys)])
        begin = time.process_time()
        assert len(connection.ask(request, 8 * keys)) == 8 * keys
        return time.process_time() - begin

    few, many = (min(cpu(keys) for _ in range(3)) / keys for keys in (2_000, 32_000))
    assert many / few < 4 if server.ours is not None else many / few > 4, (few, many)


def test_torchs_server_writes_what_has_come_of_a_multi_set_and_again_with_every_4_kib(server: Server):
    ours = server.ours is not None
    slow, other, waiting = (server.connect() for _ in range(3))
    assert does(waiting, wait(A)) == NOTHING

    def has(value: bytes) -> bool:
        return does(other, wire.get(A)) == wire.text(value)

    def expect(value: bytes) -> None:
        """A has it: on torch's server a moment later, as its packets come; on ours at all times."""
        other.fence()
        assert has(value) if ours else eventually(lambda: has(value))

    slow.send(wire.op(wire.MULTI_SET, wire.u64(2), wire.text(A), wire.text(b"1"), wire.text(B)))
    expect(b"" if ours else b"1")
    assert waiting.fence() == (NOTHING if ours else RELEASED)
    assert does(other, wire.set_(A, b"others")) == b""
    assert does(slow, wire.text(b"2")) == b""
    assert does(other, wire.get(A), wire.get(B)) == wire.text(b"1") + wire.text(b"2"), "in both: the last write counts"
    slow.send(wire.op(wire.MULTI_SET, wire.u64(2), wire.text(A), wire.text(b"3"), wire.text(B)))
    expect(b"1" if ours else b"3")
    assert does(other, wire.set_(A, b"others")) == b""
    slow.send(wire.u64(1))
    expect(b"others" if ours else b"3")
