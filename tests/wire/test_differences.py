"""Where our server is deliberately other than torch 2.13's libuv server, each tried on both: ours does right, and
torch's still does otherwise. Where it no longer does, the difference can go.

``native/PROTOCOL.md`` has the list; ``store_model.py`` models those that random programs meet.
"""

from __future__ import annotations

import pytest
from kits.wire import wire_client as wire
from kits.wire.store_servers import KINDS, running

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
