"""What clients see at the same time, one thread could have told them: recorded histories."""

from __future__ import annotations

import itertools

import pytest
from kits.wire.histories import Operation, recorded, violations, what_is_kept
from kits.wire.store_servers import running


def overlaps(history: list[Operation]) -> int:
    """Pairs of operations of different clients on one key at the same time: what makes a history worth checking."""
    count = 0
    for key in {operation.key for operation in history}:
        mine = sorted((each for each in history if each.key == key), key=lambda each: each.begin)
        for one, other in itertools.pairwise(mine):
            count += one.client != other.client and other.begin < one.end
    return count


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
            history = recorded(server.ports, 4, count, size, keys)
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
        history = recorded(ports, 2 * len(ports), 2400 // size, size, 3, what_is_kept)
        hits = [stats["proxy"]["saved"]["hits"] for stats in server.stats()]
    assert all(each > 300 for each in hits), f"proxies answered {hits}: says nothing"
    assert overlaps(history) > 100, "they did not meet: says nothing"
    assert violations(history) == []
