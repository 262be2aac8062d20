"""What a store keeps is limited: a write beyond ends the connection that sends it, and the others go on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from kits.wire.proxy_kit import Node
from kits.wire.session_peers import session_at
from kits.wire.stock_client import LATE
from kits.wire.wire_client import PATIENCE
from torch.distributed import DistError, TCPStore

from rdzv_plugins.errors import RdzvError
from rdzv_plugins.kvstore.coordination.sessions import NativeSession
from rdzv_plugins.kvstore.native.limits import StoreLimits, usable_memory
from rdzv_plugins.kvstore.native.server import StoreServer

pytestmark = pytest.mark.thorough

MIB = 2**20
MOST = 8 * MIB


@pytest.fixture
def small() -> Iterator[StoreServer]:
    with StoreServer("127.0.0.1", threads=2, limits=StoreLimits(stored_bytes=MOST)) as server:
        yield server


def stock(port: int) -> TCPStore:
    return TCPStore("127.0.0.1", port, wait_for_workers=False, timeout=LATE)


def fill(client: TCPStore) -> None:
    for number in range(64):
        client.set(f"big/{number}", "x" * MIB)
        client.get(f"big/{number}")


def fill_with_little(client: TCPStore, way: str) -> None:
    for number in range(200_000):
        getattr(client, way)(f"{way}/{number}", "")
        if number % 1000 == 0:
            client.check(["any"])


def fill_run(session: NativeSession) -> None:
    for number in range(64):
        session.put({f"big/{number}": b"x" * MIB}, timeout=PATIENCE)


@pytest.mark.parametrize("through", ["direct", "proxy"])
def test_stock_clients_hear_of_a_full_store(small: StoreServer, through: str) -> None:
    with Node(small.port) as node:
        port = small.port if through == "direct" else node.port
        greedy, other = stock(port), stock(port)
        other.set("mine", "value")
        assert other.add("count", 1) == 1
        with pytest.raises((DistError, RuntimeError)):
            fill(greedy)
        assert small.stats()["keyspaces"][0]["bytes"] <= MOST
        assert small.stats()["bytes"]["stored_limit"] == MOST
        refused = (small if through == "direct" else node.proxy).stats()["refused"]
        assert sum(refused.values()) == 1, refused
        # small writes go on, what is there can be read, and there is room again when something has gone
        assert other.add("count", 1) == 2
        other.set("mine", "changed")
        assert other.get("mine") == b"changed"
        assert other.delete_key("big/0")
        assert other.delete_key("big/1")
        other.set("big/0", "y" * MIB)
        assert other.get("big/0") == b"y" * MIB


def test_small_values_and_queues_count_with_their_keys(small: StoreServer) -> None:
    for way in ("set", "queue_push"):
        client = stock(small.port)
        with pytest.raises((DistError, RuntimeError)):
            fill_with_little(client, way)
        assert small.stats()["keyspaces"][0]["keys"] < 100_000
        small.first.wipe()
    assert small.stats()["refused"] == {"store full": 2}
    stock(small.port).set("works", "again")


def test_a_run_has_room_for_so_much(small: StoreServer) -> None:
    session, other = session_at(small.port), session_at(small.port)
    with pytest.raises(RdzvError, match="store full: there may be 8388608 bytes for the keys of all runs"):
        fill_run(session)
    other.put({"small": b"x"}, timeout=PATIENCE)
    assert session.delete(["big/0"], timeout=PATIENCE)
    session.put({"big/0": b"y" * MIB}, timeout=PATIENCE)
    session.close()
    other.close()


def test_by_default_it_is_a_share_of_the_memory() -> None:
    assert 64 * MIB <= usable_memory() < 2**50
    assert StoreLimits().most_stored == max(64 * MIB, usable_memory() // 4)
    assert StoreLimits(stored_bytes=7).most_stored == 7
