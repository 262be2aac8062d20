"""The Store API through torch's own client, as one client gets to see it. ``test_unix_transport.py`` runs it, too."""

from __future__ import annotations

from typing import Any

import pytest
from kits.wire import wire_client as wire
from kits.wire.stock_client import LATE, SOON, assert_works, connect
from kits.wire.store_servers import Server
from torch.distributed import DistError, DistNetworkError, DistStoreError, QueueEmptyError, TCPStore

BINARY = bytes(range(256)) * 3
MIB = 2**20
LONGEST = "k" * 8191  # 8192 bytes with its slash
VALUES = [b"", b"v", BINARY, b"\0", "ü€".encode()]
SIZES = [1439, 1440, 4096, 65536, 8 * MIB]
KEYS = [f"key{n}" for n in range(1000)]
MANY = [b"%d" % n * (n % 7) for n in range(1000)]

Calls = list[tuple[Any, ...]]
"""Name, arguments, and what comes of it: the value (of ``list_keys`` in order), or an exception."""

CALLS: dict[str, Calls] = {
    "values": [
        *(step for value in VALUES for step in [("set", "key", value, None), ("get", "key", value)]),
        *(("set", "key", b"other", None), ("get", "key", b"other")),
    ],
    "sizes": [step for size in SIZES for step in [("set", "key", b"x" * size, None), ("get", "key", b"x" * size)]],
    "keys are bytes, and case matters": [
        *[("set", key, key, None) for key in ("", "a", "A", "ü/€ \n", LONGEST)],
        *[("get", key, key.encode()) for key in ("", "a", "A", "ü/€ \n", LONGEST)],
        ("delete_key", LONGEST, True),
    ],
    "add counts in decimal text": [
        *(("add", "n", 5, 5), ("get", "n", b"5"), ("add", "n", -7, -2), ("get", "n", b"-2"), ("add", "zero", 0, 0)),
        *(("check", ["zero"], True), ("set", "given", "40", None), ("add", "given", 2, 42)),
        ("add", "big", 2**63 - 1, 2**63 - 1),
    ],
    "check and wait": [
        *(("multi_set", ["a", "b"], ["", "1"], None), ("check", ["a"], True), ("check", ["a", "b"], True)),
        *(("check", ["a", "missing", "b"], False), ("check", [], True)),
        *(("wait", ["a", "b"], None), ("wait", ["a"], LATE, None), ("wait", [], None)),
    ],
    "time out": [
        *(("set_timeout", SOON, None), ("get", "missing", DistStoreError), ("multi_get", ["missing"], DistStoreError)),
        *(("queue_pop", "q", DistStoreError), ("set_timeout", LATE, None), ("wait", ["a", "b"], SOON, DistStoreError)),
        *(
            ("barrier", "c", 2, SOON, DistStoreError),
            ("multi_set", ["a", "b"], ["1", "2"], None),
            ("wait", ["a"], None),
        ),
    ],
    "compare_set": [
        *(("compare_set", "key", "", "first", b"first"), ("compare_set", "key", "", "second", b"first")),
        *(("compare_set", "key", "no", "second", b"first"), ("compare_set", "key", "first", "second", b"second")),
        *(("get", "key", b"second"), ("compare_set", "key", "second", "", b"")),
        *(("compare_set", "key", "", "third", b"third"), ("compare_set", "missing", "expected", "new", b"expected")),
        *(("check", ["missing"], False), ("num_keys", 1)),
    ],
    "a deleted number is forgotten": [
        *(("set", "key", b"5", None), ("delete_key", "key", True), ("delete_key", "key", False)),
        *(("check", ["key"], False), ("add", "key", 1, 1)),
    ],
    "num_keys counts values, not queues": [
        *(("num_keys", 0), ("set", "a", b"1", None), ("set", "a", b"2", None), ("add", "b", 1, 1)),
        *(("queue_push", "q", b"x", None), ("num_keys", 2), ("delete_key", "a", True), ("num_keys", 1)),
    ],
    "append, also beyond 8 MiB": [
        *(("append", "key", b"one", None), ("append", "key", b"", None), ("append", "key", BINARY, None)),
        *(("get", "key", b"one" + BINARY), ("append", "n", b"1", None), ("append", "n", b"2", None)),
        *(("add", "n", 0, 12), ("append", "long", b"x" * 5 * MIB, None), ("append", "long", b"x" * 5 * MIB, None)),
        ("get", "long", b"x" * 10 * MIB),
    ],
    "multi_set and multi_get": [
        *(("multi_set", KEYS, MANY, None), ("multi_get", KEYS, MANY)),
        *(("multi_get", KEYS[::-1] + KEYS[:1], MANY[::-1] + MANY[:1]), ("multi_get", [], [])),
        *(("multi_set", [], [], None), ("num_keys", 1000), ("has_extended_api", True)),
    ],
    "a queue is first in, first out": [
        *[("queue_push", "q", value, None) for value in (b"one", b"", BINARY)],
        *(("queue_len", "q", 3), ("queue_pop", "q", b"one"), ("queue_pop", "q", False, b"")),
        *(("queue_pop", "q", BINARY), ("queue_len", "q", 0), ("queue_pop", "q", False, QueueEmptyError)),
    ],
    "a queue satisfies check and wait, and is apart from the value": [
        *(("queue_push", "q", b"x", None), ("check", ["q"], True), ("wait", ["q"], None), ("delete_key", "q", False)),
        *(("set", "q", b"value", None), ("get", "q", b"value"), ("queue_pop", "q", b"x")),
        *(("delete_key", "q", True), ("check", ["q"], False)),
    ],
    "list_keys": [
        *(("list_keys", []), ("multi_set", ["b", "a", "c/d"], ["1", "2", "3"], None)),
        *(("queue_push", "q", b"x", None), ("delete_key", "b", True), ("list_keys", ["a", "c/d"])),
    ],
    "barriers; who gave up stays counted": [
        *(("barrier", "alone", 1, LATE, None), ("barrier", "two", 2, SOON, DistError)),
        *(("barrier", "two", 2, LATE, None), ("barrier", "two", 2, LATE, None), ("get", "two", b"3")),
    ],
}


@pytest.fixture
def store(server: Server) -> TCPStore:
    return connect(server)


def in_turn(store: Any, calls: Calls) -> None:
    for name, *arguments, expected in calls:
        try:
            result = getattr(store, name)(*arguments)
        except DistError as error:
            assert isinstance(expected, type) and isinstance(error, expected), (name, arguments, error)  # noqa: PT017, PT018
            continue
        assert (sorted(result) if name == "list_keys" else result) == expected, (name, arguments)


def test_what_torch_asks_without_giving_up_the_gil_is_answered(server):
    """Nothing could end a hang of these: so they are asked raw, first."""
    with server.connect() as raw:
        assert raw.ask(wire.queue_len(b"/q"), 8) == wire.i64(0)
        assert raw.ask(wire.op(wire.LIST_KEYS), 8) == wire.i64(0)


@pytest.mark.parametrize("calls", CALLS.values(), ids=CALLS)
def test_calls(store, calls):
    in_turn(store, calls)
    assert_works(store)


def test_get_returns_what_set_stored(server, store):
    """Whoever asks."""
    other = connect(server)
    store.set("key", BINARY)
    assert store.get("key") == BINARY
    assert other.get("key") == BINARY


@pytest.mark.parametrize(
    ("key", "value", "call"),
    [
        ("key", b"x" * (8 * MIB + 1), ("num_keys",)),
        (LONGEST + "k", b"v", ("num_keys",)),
        ("word", b"abc", ("add", "word", 1)),
    ],
    ids=["value too long", "key too long", "not a number"],
)
def test_an_offence_closes_that_client_only(server, store, key, value, call):
    other = connect(server)
    with pytest.raises(DistNetworkError):  # set has no answer: that the server hung up may show with the next request
        in_turn_raising(store, ("set", key, value), call)
    assert_works(other)


def in_turn_raising(store: TCPStore, *calls: tuple[Any, ...]) -> None:
    for name, *arguments in calls:
        getattr(store, name)(*arguments)


def test_wait_for_workers_counts_each_client_and_no_clone_under_init(server, store):
    clients = [connect(server, world_size=3, wait_for_workers=True) for _ in range(3)]
    clone = clients[0].clone()
    assert_works(clone)
    with server.connect() as raw:
        assert raw.get(b"init/") == b"3"
    assert sorted(clients[0].list_keys()) == ["sum", "works"], "it has no slash: internal"


def test_clone_is_a_client_of_the_same_store(store):
    clone = store.clone()
    clone.set("key", b"v")
    assert store.get("key") == b"v"
    del store
    assert clone.get("key") == b"v"
    assert_works(clone)
