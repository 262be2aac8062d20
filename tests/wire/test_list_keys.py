"""A client that lists very many keys does not keep the others of its event loop waiting."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest
from kits.wire.proxy_kit import crowd, silent
from kits.wire.wire_client import LIST_KEYS, Raw, delete, multi_set, op, set_

from rdzv_plugins.kvstore.native.server import StoreServer

pytestmark = pytest.mark.thorough

KEYS = 100_000
TURNS = 20
"""Far fewer than the slices of so many keys, far more than others get while all are listed in one go."""


@pytest.fixture(scope="module")
def full() -> Iterator[StoreServer]:
    with StoreServer("127.0.0.1", threads=1) as server:
        with crowd(server.port, 1) as (filler,):
            for start in range(0, KEYS, 10_000):
                filler.do(multi_set([(b"/key/%d" % number, b"") for number in range(start, start + 10_000)]))
        yield server


def listed(lister: Raw) -> list[bytes]:
    count = lister.receive_i64()
    return [lister.receive_text() for _ in range(count)]


def turns(server: StoreServer) -> int:
    """How often the thread that serves has looked around for what others ask."""
    return int(server.stats()["loops"][0]["turns"])


def change_until_listed(server: StoreServer, lister: Raw) -> None:
    """Others' requests are answered before the list is, each of which changes what is there."""
    with crowd(server.port, 1) as (other,):
        count = 0
        while silent([lister]):
            key = b"/new/%d" % count
            other.send(set_(key, b"x") + delete(key) + set_(b"/stays/%d" % count, b""))
            assert other.ask(b"", 8) == struct.pack("=q", 1)
            count += 1


def check(keys: list[bytes]) -> None:
    assert sum(key.startswith(b"/key/") for key in keys) == KEYS
    assert len(set(keys)) == len(keys)


def test_others_have_their_turns(full: StoreServer) -> None:
    with crowd(full.port, 2) as listers:
        before = turns(full)
        for each in listers:
            each.send(op(LIST_KEYS) + op(LIST_KEYS))
        change_until_listed(full, listers[0])
        assert turns(full) - before > TURNS
        for each in listers * 2:
            check(listed(each))
