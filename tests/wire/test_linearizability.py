"""What clients see at the same time, one thread could have told them: recorded histories."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import Any

import pytest
from kits.wire import processes
from kits.wire.linearizability import Operation, violations
from kits.wire.store_servers import PROXIED, running


def overlaps(history: list[Operation]) -> int:
    """Pairs of operations of different clients on one key at the same time: what makes a history worth checking."""
    count = 0
    for key in {operation.key for operation in history}:
        mine = sorted((each for each in history if each.key == key), key=lambda each: each.begin)
        for one, other in itertools.pairwise(mine):
            count += one.client != other.client and other.begin < one.end
    return count


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


THOROUGH = pytest.mark.thorough


@pytest.mark.parametrize(
    ("kind", "size", "count"),
    [
        ("threads=4", 4, 1000),
        ("proxies", 4, 1000),
        ("tiers", 1, 1000),
        *[
            pytest.param(kind, size, 3000, marks=THOROUGH)
            for kind in ("threads=4", "torch", *PROXIED)
            for size in (1, 4)
        ],
    ],
)
def test_concurrent_clients_see_one_order(kind, size, count):
    """In batches the server's threads meet more often."""
    for keys in (2, 24):  # few, so that they meet; many, so that they are spread over the shards
        with running(kind) as server:
            history = by_processes(server.ports, 4, count // min(size, 2), size, keys)
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
