"""The Store API through torch's own client: queues, lists of keys, prefixes, barriers and clones."""

from __future__ import annotations

import pytest
from kits.wire import wire_client as wire
from kits.wire.stock_client import LATE, SOON, assert_works, connect
from kits.wire.store_servers import Server
from torch.distributed import DistError, DistStoreError, PrefixStore, QueueEmptyError, TCPStore

BINARY = bytes(range(256))


@pytest.fixture
def store(server: Server) -> TCPStore:
    return connect(server)


def test_queue_is_first_in_first_out(server, store):
    other = connect(server)
    for value in (b"one", b"", BINARY):
        store.queue_push("q", value)
    # asked raw first: torch holds the GIL while it waits for this answer, so that nothing could end a hang
    with server.connect() as raw:
        assert raw.ask(wire.queue_len(b"/q"), 8) == wire.i64(3)
    assert other.queue_len("q") == 3
    assert [other.queue_pop("q"), store.queue_pop("q", block=False), other.queue_pop("q")] == [b"one", b"", BINARY]
    assert store.queue_len("q") == 0


def test_queue_pop_of_an_empty_queue(store):
    with pytest.raises(QueueEmptyError):
        store.queue_pop("q", block=False)
    store.set_timeout(SOON)
    with pytest.raises(DistStoreError):
        store.queue_pop("q")
    store.set_timeout(LATE)
    store.queue_push("q", b"x")
    assert store.queue_pop("q") == b"x"
    assert_works(store)


def test_queue_satisfies_check_and_wait_and_is_apart_from_the_value(store):
    store.queue_push("q", b"x")
    assert store.check(["q"])
    store.wait(["q"])
    assert store.delete_key("q") is False
    store.set("q", b"value")
    assert store.get("q") == b"value"
    assert store.queue_pop("q") == b"x"
    assert store.delete_key("q") is True
    assert not store.check(["q"])


def test_list_keys(server, store):
    with server.connect() as raw:  # raw first, as for queue_len
        assert raw.ask(wire.op(wire.LIST_KEYS), 8) == wire.i64(0)
    assert store.list_keys() == []
    store.multi_set(["b", "a", "c/d"], ["1", "2", "3"])
    store.queue_push("q", b"x")
    store.delete_key("b")
    assert sorted(store.list_keys()) == ["a", "c/d"]


def test_prefix_store(server, store):
    inner = PrefixStore("in", store)
    nested = PrefixStore("deep", inner)
    inner.set("key", b"1")
    nested.set("key", b"2")
    assert store.get("in/key") == b"1"
    assert store.get("in/deep/key") == b"2"
    assert inner.get("deep/key") == b"2"
    assert inner.add("n", 3) == 3
    assert inner.compare_set("key", "1", "one") == b"one"
    inner.append("key", b"!")
    inner.multi_set(["x", "y"], ["8", "9"])
    assert nested.check(["key"])
    assert inner.multi_get(["key", "x", "y"]) == [b"one!", b"8", b"9"]
    inner.queue_push("q", b"item")
    assert store.queue_pop("in/q") == b"item"
    assert sorted(inner.list_keys()) == ["deep/key", "key", "n", "x", "y"]
    assert inner.num_keys() == store.num_keys() == 5
    assert inner.delete_key("x")
    with pytest.raises(DistError):
        inner.wait(["x"], SOON)
    assert_works(store)


def test_barrier_of_one_and_reuse(store):
    store.barrier("alone", 1, LATE)
    with pytest.raises(DistError):
        store.barrier("two", 2, SOON)
    store.barrier("two", 2, LATE)  # the one that gave up stays counted
    store.barrier("two", 2, LATE)
    assert store.get("two") == b"3"
    assert_works(store)


def test_barrier_of_a_prefix_store_is_an_add_and_a_wait(store):
    prefixed = PrefixStore("p", store)
    prefixed.barrier("one", 1, LATE)
    with pytest.raises(DistError):
        prefixed.barrier("two", 2, SOON)
    prefixed.barrier("two", 2, LATE)
    assert sorted(prefixed.list_keys()) == [
        f"{key}/{part}" for key in ("one", "two") for part in ("last_member", "num_members")
    ]


def test_wait_for_workers_counts_each_client_under_init(server, store):
    clients = [connect(server, world_size=3, wait_for_workers=True) for _ in range(3)]
    with server.connect() as raw:
        raw.send(wire.get(b"init/"))
        assert raw.receive_text() == b"3"
    assert clients[0].num_keys() == 1
    assert clients[0].list_keys() == [], "it has no slash: internal"
    clone = clients[0].clone()
    assert_works(clone)
    with server.connect() as raw:
        raw.send(wire.get(b"init/"))
        assert raw.receive_text() == b"3", "a clone is no further worker"


def test_clone_is_a_client_of_the_same_store(store):
    clone = store.clone()
    clone.set("key", b"v")
    assert store.get("key") == b"v"
    del store
    assert clone.get("key") == b"v"
    assert_works(clone)
