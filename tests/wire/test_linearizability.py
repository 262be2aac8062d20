"""What clients see at the same time, one thread could have told them: recorded histories."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import Any

import pytest
from kits.wire.linearizability import Operation, violations
from kits.wire.processes import outputs, read_line, say, started
from kits.wire.store_servers import running


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
    with started("history.py", arguments) as processes:
        for process in processes:
            assert read_line(process) == "ready\n"
        for process in processes:
            say(process, "go")
        return [
            Operation(name, tuple(map(as_bytes, parts)), as_bytes(result), begin, end, as_bytes(key), client)
            for client, text in enumerate(outputs(processes))
            for name, key, parts, result, begin, end in json.loads(text)
        ]


def as_bytes(part: Any) -> Any:
    return part.encode() if isinstance(part, str) else part


THOROUGH = pytest.mark.thorough


@pytest.mark.parametrize(
    ("kind", "size"),
    [
        *[("threads=4", 4), ("proxies", 4), ("tiers", 1)],
        *[pytest.param(kind, size, marks=THOROUGH) for kind, size in (("threads=4", 1), ("proxies", 1), ("tiers", 4))],
    ],
)
def test_concurrent_clients_see_one_order(kind: str, size: int) -> None:
    """In batches the server's threads meet more often."""
    count = 1000 // min(size, 2)
    for keys in (2, 24):  # few, so that they meet; many, so that they are spread over the shards
        with running(kind) as server:
            history = by_processes(server.ports, 4, count, size, keys)
        assert overlaps(history) > 30, "they did not meet: says nothing"
        assert violations(history) == []


@pytest.mark.parametrize(
    ("kind", "size"), [("proxies", 4), *[pytest.param(*row, marks=THOROUGH) for row in (("proxies", 1), ("tiers", 4))]]
)
def test_what_proxies_keep_is_never_old(kind: str, size: int) -> None:
    """Values that are read often, through proxies and at the root, and overwritten meanwhile from everywhere."""
    with running(kind) as server:
        assert server.ours is not None
        ports = [*server.ports, server.ours.port]
        history = by_processes(ports, 2 * len(ports), 2400 // size, size, 3, "kept")
        hits = [stats["proxy"]["saved"]["hits"] for stats in server.stats()]
    assert all(each > 300 for each in hits), f"proxies answered {hits}: says nothing"
    assert overlaps(history) > 100, "they did not meet: says nothing"
    assert violations(history) == []
