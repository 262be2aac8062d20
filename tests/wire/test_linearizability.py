"""What clients see at the same time, one thread could have told them: recorded histories, and their checker."""

from __future__ import annotations

import itertools
import json
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


def op(name: str, *arguments: Any, to: Any = None, at: tuple[float, float]) -> Operation:
    return Operation(name, arguments, to, *at)


NEVER = float("inf")
SET_A = op("set", b"a", at=(0, 1))
GOOD = {
    "nothing": [],
    "one get": [op("get", to=b"", at=(0, 1))],
    "in turn": [SET_A, op("get", to=b"a", at=(2, 3)), op("set", b"b", at=(4, 5)), op("get", to=b"b", at=(6, 7))],
    "a set that is under way may be seen": [op("set", b"a", at=(0, 9)), op("get", to=b"a", at=(1, 2))],
    "or not yet": [op("set", b"a", at=(0, 9)), op("get", to=b"", at=(1, 2)), op("get", to=b"a", at=(3, 4))],
    "or never": [op("set", b"a", at=(0, NEVER)), op("get", to=b"", at=(1, 2)), op("get", to=b"", at=(50, 51))],
    "or after long": [op("set", b"a", at=(0, NEVER)), op("get", to=b"", at=(1, 2)), op("get", to=b"a", at=(50, 51))],
    "sets at the same time, in either order": [
        op("set", b"a", at=(0, 9)),
        op("set", b"b", at=(0, 9)),
        op("get", to=b"b", at=(3, 4)),
        op("get", to=b"a", at=(5, 6)),
    ],
    "adds at the same time": [
        op("add", 1, to=2, at=(0, 9)),
        op("add", 1, to=1, at=(5, 9)),
        op("add", 1, to=3, at=(5, 9)),
        op("get", to=b"3", at=(10, 11)),
    ],
    "add to what was set": [op("set", b"40", at=(0, 1)), op("add", 2, to=42, at=(2, 3))],
    "appends": [
        op("append", b"x", at=(0, 5)),
        op("append", b"y", at=(0, 5)),
        op("get", to=b"y", at=(1, 3)),
        op("get", to=b"yx", at=(6, 7)),
    ],
    "one compare_set wins": [
        op("compare_set", b"", b"a", to=b"b", at=(0, 9)),
        op("compare_set", b"", b"b", to=b"b", at=(0, 9)),
        op("get", to=b"b", at=(10, 11)),
    ],
    "compare_set on nothing says what was expected": [
        op("compare_set", b"old", b"new", to=b"old", at=(0, 1)),
        op("get", to=b"", at=(2, 3)),
    ],
    "check and delete": [
        op("check", to=1, at=(0, 1)),
        op("delete", to=0, at=(0, 1)),
        op("set", b"a", at=(2, 9)),
        op("check", to=1, at=(3, 4)),
        op("check", to=0, at=(5, 6)),
        op("delete", to=1, at=(7, 8)),
        op("delete", to=0, at=(10, 11)),
    ],
    "compare_set that replaces": [
        SET_A,
        op("compare_set", b"a", b"b", to=b"b", at=(2, 3)),
        op("get", to=b"b", at=(4, 5)),
    ],
}
FIFO = [
    Operation("set", (b"a",), None, 0, 9, client=1),
    Operation("set", (b"b",), None, 0, 9, client=1),
    Operation("get", (), b"b", 10, 11, client=2),
]
BAD = {
    "out of thin air": [op("get", to=b"a", at=(0, 1))],
    "a set that was lost": [SET_A, op("get", to=b"", at=(2, 3))],
    "an old value": [SET_A, op("set", b"b", at=(2, 3)), op("get", to=b"a", at=(4, 5))],
    "a value from the future": [op("get", to=b"a", at=(0, 1)), op("set", b"a", at=(2, 3))],
    "seen, and then not": [op("set", b"a", at=(0, 9)), op("get", to=b"a", at=(1, 2)), op("get", to=b"", at=(3, 4))],
    "two orders at once": [
        op("set", b"a", at=(0, 1)),
        op("set", b"b", at=(0, 1)),
        op("get", to=b"a", at=(2, 3)),
        op("get", to=b"b", at=(4, 5)),
    ],
    "a lost update": [op("add", 1, to=1, at=(0, 9)), op("add", 1, to=1, at=(0, 9))],
    "a number left out": [op("add", 1, to=1, at=(0, 1)), op("add", 1, to=3, at=(2, 3))],
    "an append that was lost": [
        op("append", b"x", at=(0, 1)),
        op("append", b"y", at=(2, 3)),
        op("get", to=b"y", at=(4, 5)),
    ],
    "both compare_sets won": [
        op("compare_set", b"", b"a", to=b"a", at=(0, 9)),
        op("compare_set", b"", b"b", to=b"b", at=(0, 9)),
    ],
    "there, and then not": [op("set", b"a", at=(0, 9)), op("check", to=0, at=(1, 2)), op("check", to=1, at=(3, 4))],
    "deleted twice": [SET_A, op("delete", to=1, at=(2, 9)), op("delete", to=1, at=(2, 9))],
    "read after it was deleted": [SET_A, op("delete", to=1, at=(2, 3)), op("get", to=b"a", at=(4, 5))],
    "a compare_set that won and wrote nothing": [
        op("compare_set", b"", b"a", to=b"a", at=(0, 1)),
        op("get", to=b"", at=(2, 3)),
    ],
    "a failed compare_set that wrote": [
        SET_A,
        op("compare_set", b"x", b"b", to=b"a", at=(2, 3)),
        op("get", to=b"b", at=(4, 5)),
    ],
}


@pytest.mark.parametrize("history", GOOD.values(), ids=GOOD)
def test_checker_accepts(history):
    assert all(linearizable(order) for order in itertools.permutations(history))


@pytest.mark.parametrize("history", BAD.values(), ids=BAD)
def test_checker_rejects(history):
    assert not any(linearizable(order) for order in itertools.permutations(history))


def test_checker_keeps_the_order_of_one_client():
    first, second, get = FIFO
    assert linearizable([first, second, get])
    assert not linearizable([second, first, get])


def brute_force(history: list[Operation]) -> bool:
    """By the definition: any order that respects time and gives the results."""
    for order in itertools.permutations(history):
        if any(later.end < earlier.begin for earlier, later in itertools.combinations(order, 2)):
            continue
        state = None
        try:
            for operation in order:
                state = linearizability.apply(state, operation)
        except linearizability.Impossible:
            continue
        return True
    return False


def test_checker_agrees_with_the_definition():
    dice = random.Random(7)
    verdicts = []
    for _ in range(1500):
        history = []
        for _ in range(dice.randint(1, 5)):
            begin = dice.uniform(0, 10)
            at = (begin, begin + dice.uniform(0, 6))
            small = dice.choice([b"1", b"2"])
            history.append(
                dice.choice(
                    [
                        op("set", small, at=at),
                        op("get", to=dice.choice([b"", b"1", b"2"]), at=at),
                        op("add", 1, to=dice.choice([1, 2, 3]), at=at),
                        op("append", small, at=at),
                        op("compare_set", small, b"3", to=dice.choice([b"3", small, b"1"]), at=at),
                    ]
                )
            )
        verdicts.append(linearizable(history))
        assert verdicts[-1] == brute_force(history), history
    assert 300 < sum(verdicts) < 1200, "both verdicts are common"


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


@pytest.mark.parametrize("kind", ["threads=4", "torch", *PROXIED])
@pytest.mark.parametrize("record", [one_by_one, in_batches, by_threads])
def test_concurrent_clients_see_one_order(kind, record):
    for keys in (2, 24):  # few, so that they meet; many, so that they are spread over the shards
        with running(kind) as server:
            history = record(server, 4, 3000, keys)
        assert len(history) >= 12000
        assert overlaps(history) > 100, "they did not meet: says nothing"
        assert violations(history) == []


@pytest.mark.parametrize("kind", PROXIED)
@pytest.mark.parametrize("size", [1, 4], ids=["one by one", "in batches"])
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
