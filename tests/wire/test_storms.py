"""Thousands of requests at once from several clients, so that the event loops meet on the same keys without pause.

One at a time, as torch's client asks, two requests hardly ever meet within the nanoseconds that a race needs.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
from kits.wire import wire_client as wire
from kits.wire.store_servers import Server, running

pytestmark = pytest.mark.thorough

CLIENTS = 4
MANY = 5_000
KEY = b"/key"


@pytest.fixture
def clients(server: Server) -> list[wire.Raw]:
    return [server.connect() for _ in range(CLIENTS)]


def storm(clients: list[wire.Raw], requests: Callable[[int, int], bytes], count: int = MANY) -> None:
    """``requests(client, turn)`` of all turns, from all clients at once."""
    data = [b"".join(requests(client, turn) for turn in range(count)) for client in range(len(clients))]
    for connection, mine in zip(clients, data, strict=True):
        connection.send(mine)


def numbers(connection: wire.Raw, count: int) -> tuple[int, ...]:
    return struct.unpack(f"={count}q", connection.receive(8 * count))


def fetch(connection: wire.Raw, key: bytes) -> bytes:
    connection.send(wire.get(key))
    return connection.receive_text()


def test_every_add_counts_once(clients):
    count = 5 * MANY
    storm(clients, lambda *_: wire.add(KEY, 1), count)
    results = [numbers(connection, count) for connection in clients]
    assert all(list(mine) == sorted(mine) for mine in results)
    assert sorted(number for mine in results for number in mine) == list(range(1, CLIENTS * count + 1))


def test_compare_set_is_won_by_one_each_time(clients):
    """Create and delete in turn: as many creations as deletions, and what is left."""
    storm(clients, lambda client, turn: wire.compare_set(KEY, b"", b"%d.%d" % (client, turn)) + wire.delete(KEY))
    won = deleted = 0
    for client, connection in enumerate(clients):
        for turn in range(MANY):
            won += connection.receive_text() == b"%d.%d" % (client, turn)
            deleted += connection.receive_i64()
    assert won == deleted + (fetch(clients[0], KEY) != b"")
    assert won >= MANY, "after each deletion somebody creates it"


def test_no_append_is_lost(clients):
    storm(clients, lambda client, _: wire.append(KEY, b"%d" % client))
    for connection in clients:
        assert connection.fence() == b""
    assert Counter(fetch(clients[0], KEY)) == {ord(str(client)): MANY for client in range(CLIENTS)}


def test_a_get_sees_a_whole_value(clients):
    values = [(b"%d" % client) * (client * 5000 + 7) for client in range(CLIENTS)]
    storm(clients, lambda client, _: wire.set_(KEY, values[client]) + wire.get(KEY), 400)
    seen = {connection.receive_text() for connection in clients for _ in range(400)}
    assert seen <= set(values)


def test_a_multi_get_sees_a_whole_multi_set(clients):
    keys = [b"/key%d" % number for number in range(10)]
    storm(
        clients,
        lambda client, turn: (
            wire.multi_set([(key, b"%d.%05d" % (client, turn)) for key in keys]) + wire.keyed(wire.MULTI_GET, keys)
        ),
        500,
    )
    for connection in clients:
        for _ in range(500):
            assert len({connection.receive_text() for _ in keys}) == 1


def test_every_item_is_popped_once(clients):
    storm(clients, lambda client, turn: wire.queue_push(KEY, b"%d.%d" % (client, turn)) + wire.queue_pop(KEY))
    popped = []
    for connection in clients:
        for _ in range(MANY):
            assert connection.receive_i64() > 0, "its own item was there, or another's"
            popped.append(connection.receive_text())
    assert sorted(popped) == sorted(b"%d.%d" % (client, turn) for client in range(CLIENTS) for turn in range(MANY))


@pytest.fixture
def four_loops() -> Iterator[list[wire.Raw]]:
    """Only ours: torch's server cannot keep several waits of one connection apart."""
    with running("threads=4") as server:
        yield [server.connect() for _ in range(CLIENTS)]


def test_no_wake_is_lost_between_looking_and_waiting(four_loops):
    """Each key is set by one client while others begin to wait for it."""
    storm(
        four_loops,
        lambda client, turn: (
            wire.set_(b"/%d.%d" % (client, turn), b"")
            + wire.keyed(wire.WAIT, [b"/%d.%d" % (other, turn) for other in range(CLIENTS)])
        ),
    )
    for connection in four_loops:
        assert connection.receive(MANY) == wire.STOP_WAITING * MANY
        assert connection.fence() == b""


def test_every_barrier_releases_all(four_loops):
    storm(four_loops, lambda _, turn: wire.barrier(b"/%d" % turn, CLIENTS))
    for connection in four_loops:
        assert connection.receive(MANY) == wire.STOP_WAITING * MANY
        assert connection.fence() == b""


def test_a_cancelled_wait_is_answered_once_or_not_at_all(four_loops):
    """WAIT and CANCEL_WAIT against another client's SET of the same keys."""
    waiting, setting, *_ = four_loops
    turns = range(MANY)
    setting.send(b"".join(wire.set_(b"/%d" % turn, b"") for turn in turns))
    waiting.send(b"".join(wire.keyed(wire.WAIT, [b"/%d" % turn]) + wire.op(wire.CANCEL_WAIT) for turn in turns))
    answers = waiting.fence()
    assert answers.count(wire.WAIT_CANCELED) == MANY
    for answer in answers.split(wire.WAIT_CANCELED)[:-1]:
        assert answer in (b"", wire.STOP_WAITING)
    assert answers.endswith(wire.WAIT_CANCELED)
    assert setting.fence() == b""
    assert waiting.fence() == b""
