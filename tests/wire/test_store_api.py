"""Torch's own client hears from our server what it hears from torch's. ``test_unix.py`` runs this, too."""

from __future__ import annotations

import functools
from datetime import timedelta
from typing import Any

import pytest
from kits.wire.store_servers import Server, assert_works, connect, running
from torch.distributed import DistError, TCPStore

MIB = 2**20
LONGEST = "k" * 8191  # 8192 bytes with its slash
NAMES = ("", "a", "A", "ü/€ \n", LONGEST)
KEYS = [f"key{n}" for n in range(1000)]
MANY = [b"%d" % n * (n % 7) for n in range(1000)]

SOON = timedelta(milliseconds=50)  # for what never comes
PROGRAMS: dict[str, list[tuple[Any, ...]]] = {
    "values": [
        *(("set", "k", "v"), ("get", "k"), ("set", "", b""), ("get", ""), ("set", "bytes", bytes(range(0, 256, 15)))),
        *(("get", "bytes"), ("add", "n", 5), ("add", "n", -7), ("get", "n"), ("add", "zero", 0), ("num_keys",)),
        *(("delete_key", "k"), ("delete_key", "k"), ("num_keys",), ("append", "ap", "po"), ("append", "ap", "st")),
        *(("compare_set", "cs", old, new) for old, new in (("", "A"), ("", "B"), ("X", "C"), ("A", "BB"))),
        *(("compare_set", "miss", "X", "C"), ("check", ["miss"]), ("multi_set", ["m1", "m2"], ["x", "yy"])),
        *(("multi_get", ["m2", "m1"]), ("multi_get", []), ("list_keys",), ("get", "ap"), ("get", "cs")),
    ],
    "check_wait": [  # a wait that times out is cancelled by the client
        *(("set", "k", "v"), ("check", ["k"]), ("check", ["k", "zz"]), ("check", []), ("wait", ["k"])),
        *(("wait", ["k", "nope"], SOON), ("check", ["k"])),
    ],
    "queue": [  # a pop waits first, unless it must not block; the length comes before the item
        *(("queue_push", "q", "one"), ("queue_push", "q", ""), ("queue_len", "q")),
        *(("queue_pop", "q"), ("queue_pop", "q", False), ("queue_pop", "q", False)),
    ],
    "barrier": [  # alone, in vain, and once more: who gave up stays counted
        *(("barrier", "b1", 1), ("barrier", "b2", 2, SOON), ("barrier", "b2", 2), ("get", "b2")),
    ],
    "sizes": [
        *[step for size in (1440, 65536, 8 * MIB) for step in [("set", "key", b"x" * size), ("get", "key")]],
        *([("append", "long", b"x" * 5 * MIB)] * 2 + [("get", "long")]),
    ],
    "keys are bytes, and case matters": [
        *[("set", key, key) for key in NAMES],
        *[("get", key) for key in NAMES],
        ("delete_key", LONGEST),
    ],
    "many": [("multi_set", KEYS, MANY), ("multi_get", KEYS[::-1] + KEYS[:1]), ("num_keys",), ("has_extended_api",)],
    "a queue is apart from the value": [
        *(("queue_push", "q", b"x"), ("check", ["q"]), ("wait", ["q"]), ("delete_key", "q"), ("num_keys",)),
        *(
            ("set", "q", b"value"),
            ("get", "q"),
            ("queue_pop", "q"),
            ("delete_key", "q"),
            ("check", ["q"]),
            ("list_keys",),
        ),
    ],
}


@pytest.fixture
def store(ours: Server) -> TCPStore:
    return connect(ours)


def told(store: TCPStore, calls: list[tuple[Any, ...]]) -> list[object]:
    """What comes of each call: the value (of ``list_keys`` in order), or the class of the exception."""
    seen: list[object] = []
    for name, *arguments in calls:
        try:
            result = getattr(store, name)(*arguments)
            seen.append(sorted(result) if name == "list_keys" else result)
        except DistError as error:
            seen.append(type(error))
    return seen


@functools.cache
def told_by_torch(name: str) -> list[object]:
    with running("torch") as server:
        return told(connect(server), PROGRAMS[name])


@pytest.mark.parametrize("name", PROGRAMS)
def test_calls(store: TCPStore, name: str) -> None:
    assert told(store, PROGRAMS[name]) == told_by_torch(name)
    assert_works(store)
