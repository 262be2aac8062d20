"""The Store API through torch's own client: values, numbers, and waiting for them, as one client gets to see it."""

from __future__ import annotations

import pytest
from kits.wire.stock_client import LATE, SOON, assert_works, connect
from kits.wire.store_servers import Server
from torch.distributed import DistNetworkError, DistStoreError, TCPStore

BINARY = bytes(range(256)) * 3
MIB = 2**20


@pytest.fixture
def store(server: Server) -> TCPStore:
    return connect(server)


def set_and_ask(store: TCPStore, key: str, value: bytes) -> None:
    store.set(key, value)  # not answered: that the server hung up may show now or with the next request
    store.num_keys()


@pytest.mark.parametrize("value", [b"", b"v", BINARY, b"\0", "ü€".encode()], ids=len)
def test_get_returns_what_set_stored(store, value):
    store.set("key", value)
    assert store.get("key") == value
    store.set("key", b"other")
    assert store.get("key") == b"other"


@pytest.mark.parametrize("size", [1439, 1440, 4096, 65536, 8 * MIB])
def test_value_of_any_size_up_to_8_mib(store, size):
    value = (BINARY * (size // len(BINARY) + 1))[:size]
    store.set("key", value)
    assert store.get("key") == value
    assert_works(store)


def test_value_beyond_8_mib_closes_that_client_only(server, store):
    other = connect(server)
    with pytest.raises(DistNetworkError):
        set_and_ask(store, "key", b"x" * (8 * MIB + 1))
    assert not other.check(["key"])
    assert_works(other)


def test_key_of_8192_bytes_with_its_slash(server, store):
    longest = "k" * 8191
    store.set(longest, b"v")
    assert store.get(longest) == b"v"
    assert store.delete_key(longest)
    other = connect(server)
    with pytest.raises(DistNetworkError):
        set_and_ask(other, "k" * 8192, b"v")
    assert_works(store)


def test_keys_are_bytes_and_case_matters(store):
    store.set("", b"empty")
    store.set("a", b"lower")
    store.set("A", b"upper")
    store.set("ü/€ \n", b"odd")
    assert [store.get(key) for key in ("", "a", "A", "ü/€ \n")] == [b"empty", b"lower", b"upper", b"odd"]


def test_add_counts_in_decimal_text(store):
    assert store.add("n", 5) == 5
    assert store.get("n") == b"5"
    assert store.add("n", -7) == -2
    assert store.get("n") == b"-2"
    assert store.add("zero", 0) == 0
    assert store.check(["zero"])
    store.set("given", "40")
    assert store.add("given", 2) == 42
    assert store.add("big", 2**63 - 1) == 2**63 - 1


def test_add_to_what_is_no_number_closes_that_client_only(server, store):
    other = connect(server)
    store.set("word", b"abc")
    with pytest.raises(DistNetworkError):
        store.add("word", 1)
    assert other.get("word") == b"abc"
    assert_works(other)


def test_check(store):
    store.set("a", b"")
    store.set("b", b"1")
    assert store.check(["a"])
    assert store.check(["a", "b"])
    assert not store.check(["a", "missing", "b"])
    assert store.check([])


def test_wait_for_what_is_there(store):
    store.multi_set(["a", "b"], ["1", "2"])
    store.wait(["a", "b"])
    store.wait(["a"], LATE)
    store.wait([])
    assert_works(store)


def test_client_works_on_after_a_wait_timed_out(server, store):
    other = connect(server)
    for _ in range(3):
        with pytest.raises(DistStoreError):
            store.wait(["a", "b"], SOON)
        assert_works(store)
        store.delete_key("sum")
    # nobody is told of keys that come after it gave up
    other.set("a", b"1")
    other.set("b", b"2")
    assert_works(other)
    other.delete_key("sum")
    assert_works(store)
    store.wait(["a", "b"])


def test_get_of_a_missing_key_times_out_with_the_stores_timeout(store):
    store.set_timeout(SOON)
    assert store.timeout == SOON
    with pytest.raises(DistStoreError):
        store.get("missing")
    with pytest.raises(DistStoreError):
        store.multi_get(["missing"])
    store.set_timeout(LATE)
    assert_works(store)


def test_compare_set(store):
    assert store.compare_set("key", "", "first") == b"first"
    assert store.compare_set("key", "", "second") == b"first"
    assert store.compare_set("key", "wrong", "second") == b"first"
    assert store.compare_set("key", "first", "second") == b"second"
    assert store.get("key") == b"second"
    assert store.compare_set("key", "second", "") == b""
    assert store.compare_set("key", "", "third") == b"third"


def test_compare_set_of_a_missing_key_returns_what_was_expected_and_stores_nothing(store):
    assert store.compare_set("missing", "expected", "new") == b"expected"
    assert not store.check(["missing"])
    assert store.num_keys() == 0


def test_delete_key(store):
    store.set("key", b"v")
    assert store.delete_key("key") is True
    assert store.delete_key("key") is False
    assert not store.check(["key"])
    assert store.add("key", 1) == 1, "a deleted number is forgotten"


def test_num_keys_counts_values_not_queues(store):
    assert store.num_keys() == 0
    store.set("a", b"1")
    store.set("a", b"2")
    store.add("b", 1)
    store.queue_push("q", b"x")
    assert store.num_keys() == 2
    store.delete_key("a")
    assert store.num_keys() == 1


def test_append(store):
    store.append("key", b"one")
    store.append("key", b"")
    store.append("key", BINARY)
    assert store.get("key") == b"one" + BINARY
    store.append("number", b"1")
    store.append("number", b"2")
    assert store.add("number", 0) == 12


def test_values_may_grow_beyond_8_mib_by_append(store):
    part = b"x" * (5 * MIB)
    store.append("key", part)
    store.append("key", part)
    assert store.get("key") == part + part
    assert_works(store)


def test_multi_set_and_multi_get(store):
    keys = [f"key{n}" for n in range(1000)]
    values = [b"%d" % n * (n % 7) for n in range(1000)]
    store.multi_set(keys, values)
    assert store.multi_get(keys) == values
    assert store.multi_get(keys[::-1] + keys[:1]) == values[::-1] + values[:1]
    assert store.multi_get([]) == []
    store.multi_set([], [])
    assert store.num_keys() == 1000
    assert store.has_extended_api()
