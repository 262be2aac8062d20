"""Requests that etcd cannot take in one piece, and values that it does not take at all."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
from kits.etcd.etcd_kit import Cluster
from kits.etcd.failover_kit import SessionAt
from kits.eventually import eventually
from kits.relay import Relay

from rdzv_plugins.backends.etcd.coordination import EtcdCoordination
from rdzv_plugins.coordination import Session
from rdzv_plugins.errors import RdzvError
from rdzv_plugins.testing.parts import LONG, Recorder, keys_of, opened

T = LONG
MIB = 2**20


@pytest.fixture
def session(single: Cluster, session_at: SessionAt) -> Session:
    return session_at(single.endpoints)


def big(count: int, size: int) -> dict[str, bytes]:
    return {f"big/{number:05}": bytes([number % 256]) * size for number in range(count)}


@pytest.mark.parametrize(
    ("count", "size"),
    [(129, 10), *(pytest.param(*each, marks=pytest.mark.thorough) for each in ((128, 10), (3, MIB - 1000)))],
    ids=str,
)
def test_a_put_and_a_delete_of_any_size_are_done_in_their_order(session: Session, count: int, size: int) -> None:
    recorder, items = Recorder(), big(count, size)
    session.watch("", recorder, timeout=T)
    _, guard = session.create("guard", b"", timeout=T)
    revision = session.put(items, ephemeral=True, guard=guard, timeout=T)
    found = session.list("big/", timeout=T)
    assert {each.key: each.value for each in found[0]} == items
    assert max(each.revision for each in found[0]) == revision
    assert [key for key, _ in recorder.take(1 + count)[1:]] == list(items)
    session.put({"stays": b""}, timeout=T)
    assert session.delete([*items, "guard"], guard=guard, timeout=T)
    assert keys_of(session) == {"stays": b""}


def test_a_guard_among_the_items_of_a_put_in_parts(session: Session) -> None:
    _, guard = session.create("guard", b"old", timeout=T)
    names = list(big(300, 10))
    names.insert(150, "guard")
    items = dict.fromkeys(names, b"new")
    assert session.put(items, guard=guard, timeout=T)
    assert keys_of(session) == items
    assert session.put(dict.fromkeys(names, b"newer"), guard=guard, timeout=T) is None
    assert keys_of(session) == items


@pytest.mark.thorough
@pytest.mark.parametrize("what", ["put", "delete"])
def test_a_guard_that_changes_in_between_stops_the_rest(single: Cluster, session: Session, what: str) -> None:
    names = [f"{number:05}/{'x' * 5000}" for number in range(512)]  # four parts, each far larger than the last bytes
    if what == "delete":
        session.put(dict.fromkeys(names, b""), timeout=T)
    _, guard = session.create("guard", b"", timeout=T)
    with (
        Relay(single.endpoints[0].port) as relay,
        ThreadPoolExecutor(1) as pool,
        closing(EtcdCoordination([relay.endpoint], "run")) as held_up_backend,
    ):
        held_up = opened(held_up_backend)
        relay.hold_after(1_000_000, answers=False)  # the first part, of 128 operations, and a bit
        ask: Callable[..., object] = held_up.put if what == "put" else held_up.delete
        asking = pool.submit(ask, dict.fromkeys(names, b""), guard=guard, timeout=LONG)
        relay.wait_held()
        changed = len(names) if what == "delete" else 0
        eventually(lambda: len(session.list("0", timeout=T)[0]) != changed, lambda: "no part has arrived")
        session.put({"guard": b"changed"}, timeout=T)
        relay.mend()
        assert asking.result(LONG) is (None if what == "put" else False)
        left = sorted(each.key for each in session.list("0", timeout=T)[0])
        assert left == (names[: len(left)] if what == "put" else names[len(names) - len(left) :]), "no gaps"
        assert 0 < len(left) < len(names)


def test_a_value_that_is_too_large_is_refused_and_the_session_goes_on(session: Session) -> None:
    with pytest.raises((RdzvError, ValueError), match=r"bytes|large"):
        session.put({"k": b"x" * (3 * MIB)}, timeout=T)
    session.put({"k": b"x" * MIB}, timeout=T)
    assert keys_of(session) == {"k": b"x" * MIB}
