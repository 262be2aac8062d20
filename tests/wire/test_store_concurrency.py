"""From many clients at the same time: thousands of raw requests at once, and torch's own client in threads.

One request at a time, as torch's client asks, two hardly ever meet within the nanoseconds that a race needs.
"""

from __future__ import annotations

import itertools
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from kits.eventually import eventually
from kits.wire import wire_client as wire
from kits.wire.stock_client import SOON, another, connect
from kits.wire.store_servers import KINDS, Server, running
from torch.distributed import DistStoreError

CLIENTS = 4
THREADS = 8
KEY = b"/key"
FEW, MANY = 1_000, pytest.param(5_000, marks=pytest.mark.thorough)
TURNS = pytest.mark.parametrize("turns", [FEW, MANY])


@pytest.fixture(params=KINDS)
def clients(request: pytest.FixtureRequest) -> Iterator[list[wire.Raw]]:
    with running(request.param) as server:
        yield [server.connect() for _ in range(CLIENTS)]


@pytest.fixture
def four_loops() -> Iterator[list[wire.Raw]]:
    """Only ours: torch's server cannot keep several waits of one connection apart."""
    with running("threads=4") as server:
        yield [server.connect() for _ in range(CLIENTS)]


def storm(clients: list[wire.Raw], turns: int, requests: Callable[[int, int], bytes]) -> None:
    """``requests(client, turn)`` of all turns, from all clients at once."""
    data = [b"".join(requests(client, turn) for turn in range(turns)) for client in range(CLIENTS)]
    for connection, mine in zip(clients, data, strict=True):
        connection.send(mine)


@TURNS
def test_every_add_counts_once(clients, turns):
    storm(clients, turns, lambda *_: wire.add(KEY, 1))
    results = [struct.unpack(f"={turns}q", connection.receive(8 * turns)) for connection in clients]
    assert all(list(mine) == sorted(mine) for mine in results)
    assert sorted(number for mine in results for number in mine) == list(range(1, CLIENTS * turns + 1))


@TURNS
def test_compare_set_is_won_by_one_each_time(clients, turns):
    """Create and delete in turn: as many creations as deletions, and what is left."""
    storm(clients, turns, lambda client, turn: wire.compare_set(KEY, b"", b"%d.%d" % (client, turn)) + wire.delete(KEY))
    won = deleted = 0
    for client, connection in enumerate(clients):
        for turn in range(turns):
            won += connection.receive_text() == b"%d.%d" % (client, turn)
            deleted += connection.receive_i64()
    assert won == deleted + (clients[0].get(KEY) != b"")
    assert won >= turns, "after each deletion somebody creates it"


@TURNS
def test_no_append_is_lost(clients, turns):
    storm(clients, turns, lambda client, _: wire.append(KEY, b"%d" % client))
    for connection in clients:
        assert connection.fence() == b""
    assert Counter(clients[0].get(KEY)) == {ord(str(client)): turns for client in range(CLIENTS)}


def test_values_are_seen_whole(clients):
    """One, and those of one multi_set by one multi_get."""
    values = [(b"%d" % client) * (client * 5000 + 7) for client in range(CLIENTS)]
    keys = [b"/key%d" % number for number in range(10)]

    def requests(client: int, turn: int) -> bytes:
        many = wire.multi_set([(key, b"%d.%05d" % (client, turn)) for key in keys]) + wire.keyed(wire.MULTI_GET, keys)
        return wire.set_(KEY, values[client]) + wire.get(KEY) + many

    storm(clients, 200, requests)
    for connection in clients:
        for _ in range(200):
            assert connection.receive_text() in values
            assert len({connection.receive_text() for _ in keys}) == 1


@TURNS
def test_every_item_is_popped_once(clients, turns):
    storm(clients, turns, lambda client, turn: wire.queue_push(KEY, b"%d.%d" % (client, turn)) + wire.queue_pop(KEY))
    popped = []
    for connection in clients:
        for _ in range(turns):
            assert connection.receive_i64() > 0, "its own item was there, or another's"
            popped.append(connection.receive_text())
    assert sorted(popped) == sorted(b"%d.%d" % (client, turn) for client in range(CLIENTS) for turn in range(turns))


@TURNS
def test_no_wake_is_lost_between_looking_and_waiting(four_loops, turns):
    """Each key is set by one client while others begin to wait for it; and they meet at barriers."""

    def requests(client: int, turn: int) -> bytes:
        waited = wire.keyed(wire.WAIT, [b"/%d.%d" % (other, turn) for other in range(CLIENTS)])
        return wire.set_(b"/%d.%d" % (client, turn), b"") + waited + wire.barrier(b"/%d" % turn, CLIENTS)

    storm(four_loops, turns, requests)
    for connection in four_loops:
        assert connection.receive(2 * turns) == wire.STOP_WAITING * 2 * turns
        assert connection.fence() == b""


@TURNS
def test_a_cancelled_wait_is_answered_once_or_not_at_all(four_loops, turns):
    """WAIT and CANCEL_WAIT against another client's SET of the same keys."""
    waiting, setting, *_ = four_loops
    keys = [b"/%d" % turn for turn in range(turns)]
    setting.send(b"".join(wire.set_(key, b"") for key in keys))
    waiting.send(b"".join(wire.keyed(wire.WAIT, [key]) + wire.op(wire.CANCEL_WAIT) for key in keys))
    answers = waiting.fence()
    assert answers.count(wire.WAIT_CANCELED) == turns
    for answer in answers.split(wire.WAIT_CANCELED)[:-1]:
        assert answer in (b"", wire.STOP_WAITING)
    assert answers.endswith(wire.WAIT_CANCELED)
    assert setting.fence() == b""
    assert waiting.fence() == b""


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    # joined before the server ends (fixtures end in reverse), so that no thread is left inside torch's client
    with ThreadPoolExecutor(THREADS) as pool:
        yield pool


def until_waiting(server: Server, key: str, count: int, jobs: list[Future[Any]]) -> None:
    eventually(lambda: server.waiters(key) == count or any(job.done() for job in jobs), server.stats)
    for job in jobs:
        if job.done():
            job.result()  # raises what it raised
    for number in range(len(server.ports)):  # and the root knows it
        with server.connect(number) as raw:
            assert raw.fence() == b""


def test_threads_share_one_client(server, pool):
    store = connect(server)
    futures = [pool.submit(lambda: [store.add("n", 1) for _ in range(100)]) for _ in range(THREADS)]
    numbers = itertools.chain.from_iterable(future.result(120) for future in futures)
    assert sorted(numbers) == list(range(1, THREADS * 100 + 1))


def test_waiters_are_released_by_the_last_key_of_another_client(ours, pool):
    store = connect(ours)
    jobs = [pool.submit(another(ours, store).wait, ["a", "b", "c"]) for _ in range(THREADS)]
    until_waiting(ours, "/c", THREADS, jobs)
    store.set("a", b"1")
    store.add("b", 1)
    assert all(another(ours, store).check(["a", "b"]) for _ in ours.ports)
    assert ours.waiters("/a") == ours.waiters("/b") == 0
    assert ours.waiters("/c") == THREADS
    assert not any(job.done() for job in jobs)
    store.compare_set("c", "", "1")
    for job in jobs:
        job.result(60)
    assert ours.waiters("/c") == 0


def test_who_is_gone_or_has_given_up_waits_no_longer(ours):
    store = connect(ours)
    with ours.connect() as raw:
        raw.do(wire.keyed(wire.WAIT, [b"/key"]))
        assert ours.waiters("/key") == 1
    until_waiting(ours, "/key", 0, [])
    with pytest.raises(DistStoreError):
        store.wait(["a", "b"], SOON)
    with pytest.raises(DistStoreError):
        store.barrier("c", 2, SOON)
    assert [ours.waiters(key) for key in ("/a", "/b", "/c")] == [0, 0, 0]
