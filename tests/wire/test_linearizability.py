"""What clients see at the same time, one thread could have told them: recorded histories, and their checker."""

from __future__ import annotations

import itertools
import json
import math
import random
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from kits.wire import linearizability, processes
from kits.wire.linearizability import Operation, linearizable, violations
from kits.wire.stock_client import connect
from kits.wire.store_servers import PROXIED, Server, running


def brute_force(history: list[Operation]) -> bool:
    """By the definition: any order that respects time and clients, and gives the results; some may not have been."""
    lasting = [operation for operation in history if operation.end == math.inf]
    for count in range(len(lasting) + 1):
        for left_out in itertools.combinations(lasting, count):
            happened = [operation for operation in history if operation not in left_out]
            if any(explains(order) for order in itertools.permutations(happened)):
                return True
    return False


def explains(order: Sequence[Operation]) -> bool:
    for earlier, later in itertools.combinations(order, 2):
        if later.end < earlier.begin or (later.client == earlier.client and later.begin < earlier.begin):
            return False
    state = None
    try:
        for operation in order:
            state = linearizability.apply(state, operation)
    except linearizability.Impossible:
        return False
    return True


def test_the_checker_agrees_with_the_definition():
    dice = random.Random(7)
    verdicts = []
    for _ in range(600):
        history = []
        for number in range(dice.randint(1, 4)):
            begin = dice.uniform(0, 10) + number / 100
            value = dice.choice([b"1", b"2"])
            name, arguments, result = dice.choice(
                [
                    ("set", (value,), None),
                    ("append", (value,), None),
                    ("get", (), dice.choice([b"", b"1", b"2"])),
                    ("check", (), dice.choice([0, 1])),
                    ("delete", (), dice.choice([0, 1])),
                    ("add", (1,), dice.choice([1, 2, 3])),
                    ("compare_set", (value, b"3"), dice.choice([b"3", value, b"1"])),
                ]
            )
            lasts = result is None and dice.random() < 0.3
            end = math.inf if lasts else begin + dice.uniform(0, 6)
            history.append(Operation(name, arguments, result, begin, end, client=number))
        verdicts.append(linearizable(history))
        assert verdicts[-1] == brute_force(history), history
    assert 100 < sum(verdicts) < 500, "both verdicts are common"


def test_the_checker_keeps_the_order_of_one_client():
    first, second = (Operation("set", (value,), None, 0, 9, client=1) for value in (b"a", b"b"))
    seen = Operation("get", (), b"b", 10, 11, client=2)
    assert linearizable([first, second, seen])
    assert not linearizable([second, first, seen])


def overlaps(history: list[Operation]) -> int:
    """Pairs of operations of different clients on one key at the same time: what makes a history worth checking."""
    count = 0
    for key in {operation.key for operation in history}:
        mine = sorted((each for each in history if each.key == key), key=lambda each: each.begin)
        for one, other in itertools.pairwise(mine):
            count += one.client != other.client and other.begin < one.end
    return count


def one_by_one(server: Server, clients: int, count: int, keys: int) -> list[Operation]:
    """Processes, each with one request at a time."""
    return by_processes(server.ports, clients, count, 1, keys)


def in_batches(server: Server, clients: int, count: int, keys: int) -> list[Operation]:
    """Processes that send many requests at once, so that the server's threads meet more often."""
    return by_processes(server.ports, clients, count // 2, 4, keys)


def by_processes(
    ports: Sequence[int], clients: int, batches: int, size: int, keys: int, requests: str = "all"
) -> list[Operation]:
    arguments = [(ports[client % len(ports)], client, batches, size, keys, requests) for client in range(clients)]
    with processes.started("history.py", arguments) as started:
        for process in started:
            assert process.stdout is not None
            assert process.stdin is not None
            assert process.stdout.readline() == "ready\n"
        for process in started:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        texts = processes.outputs(started)
    history = []
    for client, text in enumerate(texts):
        for name, key, parts, result, begin, end in json.loads(text):
            history.append(
                Operation(name, tuple(map(as_bytes, parts)), as_bytes(result), begin, end, as_bytes(key), client)
            )
    return history


def as_bytes(part: Any) -> Any:
    return part.encode() if isinstance(part, str) else part


def by_threads(server: Server, clients: int, count: int, keys: int) -> list[Operation]:
    """Threads with torch's own client."""
    clones = [connect(server) for _ in range(clients)]
    start = threading.Barrier(clients)

    def work(client: int) -> list[Operation]:
        dice, mine = random.Random(client), []
        start.wait(30)
        for turn in range(count):
            key = f"key{dice.randrange(keys)}"
            value, delta = b"%d" % (1000 * client + turn), dice.randint(-3, 3)
            name = dice.choice(["set", "add", "add", "compare_set"])
            begin = time.monotonic_ns()
            result: bytes | int
            if name == "set":  # its answer is that of the add behind it
                clones[client].set(key, value)
                mine.append(Operation("set", (value,), None, begin, key=key.encode(), client=client))
                begin = time.monotonic_ns()
                result, arguments = clones[client].add(key, 0), (0,)
                name = "add"
            elif name == "add":
                result, arguments = clones[client].add(key, delta), (delta,)
            else:
                expected = b"%d" % dice.randrange(-5, 5)
                result = clones[client].compare_set(key, expected.decode(), value.decode())
                arguments = (expected, value)
            end = time.monotonic_ns()
            if mine and mine[-1].name == "set":
                mine[-1] = Operation("set", mine[-1].arguments, None, mine[-1].begin, end, key.encode(), client)
            mine.append(Operation(name, arguments, result, begin, end, key.encode(), client))
        return mine

    with ThreadPoolExecutor(clients) as pool:
        return list(itertools.chain.from_iterable(pool.map(work, range(clients))))


THOROUGH = pytest.mark.thorough


@pytest.mark.parametrize(
    ("kind", "record", "count"),
    [
        ("threads=4", in_batches, 1000),
        ("proxies", in_batches, 1000),
        ("tiers", one_by_one, 1000),
        *[
            pytest.param(kind, record, 3000, marks=THOROUGH)
            for kind in ("threads=4", "torch", *PROXIED)
            for record in (one_by_one, in_batches, by_threads)
        ],
    ],
)
def test_concurrent_clients_see_one_order(kind, record, count):
    for keys in (2, 24):  # few, so that they meet; many, so that they are spread over the shards
        with running(kind) as server:
            history = record(server, 4, count, keys)
        assert len(history) >= 4 * count
        assert overlaps(history) > count / 30, "they did not meet: says nothing"
        assert violations(history) == []


@pytest.mark.parametrize(
    "kind", [pytest.param("proxy", marks=THOROUGH), "proxies", pytest.param("tiers", marks=THOROUGH)]
)
@pytest.mark.parametrize("size", [pytest.param(1, marks=THOROUGH), 4], ids=["one by one", "in batches"])
def test_what_proxies_keep_is_never_old(kind, size):
    """Values that are read often, through proxies and at the root, and overwritten meanwhile from everywhere."""
    with running(kind) as server:
        assert server.ours is not None
        ports = [*server.ports, server.ours.port]
        history = by_processes(ports, 2 * len(ports), 2400 // size, size, 3, "kept")
        hits = [stats["proxy"]["saved"]["hits"] for stats in server.stats()]
    assert all(each > 300 for each in hits), f"proxies answered {hits}: says nothing"
    assert overlaps(history) > 100, "they did not meet: says nothing"
    assert violations(history) == []
