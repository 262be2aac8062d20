"""The Store API through torch's own client, from many threads and many processes at the same time."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from kits.wire import processes
from kits.wire import wire_client as wire
from kits.wire.stock_client import SOON, another, connect
from kits.wire.store_servers import Server, running
from torch.distributed import DistStoreError, TCPStore

THREADS = 8


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    # joined before the server ends (fixtures end in reverse), so that no thread is left inside torch's client
    with ThreadPoolExecutor(THREADS) as pool:
        yield pool


def flat(lists: Iterable[list[Any]]) -> list[Any]:
    return list(itertools.chain.from_iterable(lists))


def in_threads(
    pool: ThreadPoolExecutor, server: Server, store: TCPStore, job: Callable[[TCPStore, int], Any]
) -> list[Any]:
    """``job`` in each thread, with a client of its own."""
    clients = [another(server, store) for _ in range(THREADS)]
    return [future.result(120) for future in [pool.submit(job, client, rank) for rank, client in enumerate(clients)]]


def until_waiting(server: Server, key: str, count: int, jobs: list[Future[Any]]) -> None:
    deadline = time.monotonic() + 60
    while server.waiters(key) != count:  # nobody can tell us, so we poll
        time.sleep(0.002)
        assert time.monotonic() < deadline, f"{server.waiters(key)} instead of {count} wait for {key}"
        for job in jobs:
            if job.done():
                job.result()  # raises what it raised
    for number in range(len(server.ports)):  # and the root knows it
        with server.connect(number) as raw:
            assert raw.fence() == b""


def test_add_gives_every_thread_its_own_numbers(server, pool):
    store = connect(server)
    numbers = in_threads(pool, server, store, lambda clone, _: [clone.add("n", 1) for _ in range(100)])
    assert all(mine == sorted(mine) for mine in numbers)
    assert sorted(flat(numbers)) == list(range(1, THREADS * 100 + 1))
    assert store.get("n") == b"%d" % (THREADS * 100)


def test_threads_share_one_client_too(server, pool):
    store = connect(server)
    futures = [pool.submit(lambda: [store.add("n", 1) for _ in range(100)]) for _ in range(THREADS)]
    assert sorted(flat(future.result(120) for future in futures)) == list(range(1, THREADS * 100 + 1))


def test_compare_set_lets_one_thread_win(server, pool):
    store = connect(server)
    for turn in range(50):
        key = f"turn{turn}"
        seen = in_threads(pool, server, store, lambda clone, rank, key=key: clone.compare_set(key, "", f"rank{rank}"))
        assert len(set(seen)) == 1
        assert store.get(key) == seen[0]


def test_append_loses_nothing_and_tears_nothing(server, pool):
    store = connect(server)
    words = [(b"%d" % rank) * (2000 + rank) + b" " for rank in range(THREADS)]

    def job(clone: TCPStore, rank: int) -> None:
        for _ in range(20):
            clone.append("log", words[rank])
        clone.num_keys()  # answered: all before has been done

    in_threads(pool, server, store, job)
    found = store.get("log").split()
    assert sorted(found) == sorted(word.strip() for word in words for _ in range(20))


def test_multi_set_is_seen_whole_or_not_at_all(server, pool):
    """By multi_get, which is one request."""
    store = connect(server)
    keys = [f"k{n}" for n in range(40)]
    store.multi_set(keys, ["start"] * 40)
    readers = threading.Semaphore(0)  # those that have done

    def write(clone: TCPStore, rank: int) -> list[bytes]:
        """As long as somebody reads."""
        for turn in itertools.count():
            clone.multi_set(keys, [f"{rank}.{turn % 50}"] * 40)
            clone.num_keys()  # has an answer: torch's server takes what does not come alone in parts
            if turn % 10 == 9 and readers.acquire(blocking=False):
                return []
        raise AssertionError("there is no end")

    def read(clone: TCPStore) -> list[bytes]:
        seen: list[bytes] = []
        try:
            while len(seen) < 50 or len(set(seen)) < 2:  # until readers and writers have met
                values = set(clone.multi_get(keys))
                assert len(values) == 1, values
                seen += values
        finally:
            readers.release()  # lets one writer end
        return seen

    def job(clone: TCPStore, rank: int) -> list[bytes]:
        return write(clone, rank) if rank % 2 else read(clone)

    in_threads(pool, server, store, job)


def test_every_pushed_item_is_popped_once(server, pool):
    store = connect(server)

    def job(clone: TCPStore, rank: int) -> list[bytes]:
        for item in range(50):
            clone.queue_push("q", b"%d:%d" % (rank, item))
        return [clone.queue_pop("q") for _ in range(50)]

    popped = in_threads(pool, server, store, job)
    assert sorted(flat(popped)) == sorted(b"%d:%d" % (rank, item) for rank in range(THREADS) for item in range(50))
    for mine in popped:  # a queue hands out each producer's items in order
        for rank in range(THREADS):
            items = [int(item.split(b":")[1]) for item in mine if item.startswith(b"%d:" % rank)]
            assert items == sorted(items)


def test_barrier_holds_all_until_the_last(server, pool):
    store = connect(server)

    def job(clone: TCPStore, rank: int) -> list[int]:
        seen = []
        for turn in range(20):
            clone.add(f"arrived{turn}", 1)
            clone.barrier(f"barrier{turn}", THREADS)
            seen.append(int(clone.get(f"arrived{turn}")))
        return seen

    assert in_threads(pool, server, store, job) == [[THREADS] * 20] * THREADS


def test_waiters_are_released_by_the_last_key_of_another_client(ours, pool):
    store = connect(ours)
    clones = [another(ours, store) for _ in range(THREADS)]
    jobs = [pool.submit(clone.wait, ["a", "b", "c"]) for clone in clones]
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


def test_a_blocked_get_returns_the_value_that_is_set(ours, pool):
    store = connect(ours)
    jobs = [pool.submit(clone.get, "key") for clone in [another(ours, store) for _ in range(THREADS)]]
    until_waiting(ours, "/key", THREADS, jobs)
    store.set("key", b"value")
    assert [job.result(60) for job in jobs] == [b"value"] * THREADS


def test_each_push_wakes_one_consumer_in_the_order_they_came(ours, pool):
    store = connect(ours)
    jobs = []
    for count in range(1, THREADS + 1):
        jobs.append(pool.submit(another(ours, store).queue_pop, "q"))
        until_waiting(ours, "/q", count, jobs)
    for turn, job in enumerate(jobs):
        store.queue_push("q", b"%d" % turn)
        assert job.result(60) == b"%d" % turn
    assert store.queue_len("q") == 0


def test_a_clone_works_while_the_original_waits(ours, pool):
    store = connect(ours)
    clone = store.clone()
    job = pool.submit(store.wait, ["key"])
    until_waiting(ours, "/key", 1, [job])
    clone.set("other", b"1")
    assert clone.get("other") == b"1"
    clone.set("key", b"1")
    job.result(60)


def test_a_client_that_is_gone_waits_no_longer(ours):
    store = connect(ours)
    with ours.connect() as raw:
        raw.send(wire.keyed(wire.WAIT, [b"/key"]))
        assert raw.fence() == b""
        assert ours.waiters("/key") == 1
    until_waiting(ours, "/key", 0, [])
    store.set("key", b"1")
    assert store.get("key") == b"1"


def test_a_wait_that_timed_out_is_no_longer_there(ours):
    store = connect(ours)
    with pytest.raises(DistStoreError):
        store.wait(["a", "b"], SOON)
    with pytest.raises(DistStoreError):
        store.barrier("c", 2, SOON)
    assert [ours.waiters(key) for key in ("/a", "/b", "/c")] == [0, 0, 0]


@pytest.mark.parametrize("kind", ["threads=4", "proxies"])
def test_many_processes(kind):
    size, rounds = 4, 50
    with running(kind) as server:
        arguments = [(server.next_port(), rank, size) for rank in range(size)]
        with processes.started("store_process.py", arguments) as started:
            reports = [json.loads(processes.last_line(text)) for text in processes.outputs(started)]
        with server.connect() as raw:
            raw.send(wire.get(b"init/"))
            assert raw.receive_text() == b"%d" % size
    ranks = [str(rank) for rank in range(size)]
    assert [report["greetings"] for report in reports] == [ranks] * size
    assert sorted(flat(report["tickets"] for report in reports)) == list(range(1, size * rounds + 1))
    items = sorted(f"{rank}:{item}" for rank in range(size) for item in range(rounds))
    assert sorted(flat(report["items"] for report in reports)) == items
    end = {
        "tickets": size * rounds,
        "cas": size * rounds,
        "log": ["", *ranks],
        "left": 0,
        "keys": sorted(["cas", "done", "log", "tickets", *(f"hello/{rank}" for rank in range(size))]),
    }
    assert [report["end"] for report in reports] == [end] * size
