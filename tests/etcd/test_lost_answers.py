"""Requests whose answers get lost: they are asked again elsewhere, and their result is that of the first time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pytest
from kits.etcd.etcd_kit import Cluster
from kits.etcd.failover_kit import SessionAt, home, path_of
from kits.eventually import eventually
from kits.relay import Relay

from rdzv_plugins.backends.etcd.coordination import EtcdCoordination
from rdzv_plugins.coordination import KeyValue, Session
from rdzv_plugins.testing.parts import LONG, Losses, Recorder, opened

T = LONG


@dataclass
class TwoWays:
    """A session on a cluster of one member, which it can reach in two ways, and another session beside."""

    session: Session
    losses: Losses
    used: Relay
    other: Session

    def ask(self, call: Callable[[], Any], meanwhile: Callable[[], object] = lambda: None) -> Any:
        """The result of a call that writes ``k`` and whose first answer is lost.

        ``meanwhile`` is what somebody else does after etcd has done it, and before it is asked again.
        """
        with ThreadPoolExecutor(1) as pool:
            self.used.hold_after(0, answers=True)
            asking = pool.submit(call)
            eventually(lambda: self.now("k"), lambda: "it was never done")
            meanwhile()
            self.used.cut()
            result = asking.result(T)
        assert self.losses.none
        return result

    def now(self, key: str) -> list[KeyValue]:
        return list(self.other.list(key, timeout=T)[0])


@pytest.fixture
def ways(single: Cluster) -> Iterator[TwoWays]:
    """Both ways lead to the same member."""
    losses = Losses()
    with (
        Relay(single.endpoints[0].port) as first,
        Relay(single.endpoints[0].port) as second,
        closing(EtcdCoordination([first.endpoint, second.endpoint], "run")) as backend,
        closing(EtcdCoordination(single.endpoints, "run")) as beside,
    ):
        session = opened(backend, LONG, losses)
        eventually(lambda: first.is_used != second.is_used, lambda: "both ways stay in use")
        yield TwoWays(session, losses, first if first.is_used else second, opened(beside))


def test_create(ways: TwoWays) -> None:
    done, held = ways.ask(lambda: ways.session.create("k", b"mine", ephemeral=True, timeout=T))
    assert [held] == ways.now("k")
    assert done


def test_a_put_that_is_asked_again_does_not_undo_what_came_between(ways: TwoWays) -> None:
    """What is asked again was done once: whoever writes after that has written last."""
    ways.ask(lambda: ways.session.put({"k": b"first"}, timeout=T), lambda: ways.other.put({"k": b"second"}, timeout=T))
    assert [each.value for each in ways.now("k")] == [b"second"]


@pytest.mark.thorough
def test_a_put_that_a_frozen_member_finds_when_it_wakes_up_comes_too_late(
    three: Cluster, session_at: SessionAt
) -> None:
    losses = Losses()
    session = session_at(three.endpoints, losses=losses)
    member = home(three)
    member.stop()
    session.put({"k": b"1"}, timeout=LONG)  # asked of the frozen member first
    session.put({"k": b"2"}, timeout=LONG)
    member.cont()
    three.wait_quorum()
    three.etcdctl("put", "/fence", "", only=member)  # behind all that it had to do
    assert [each.value for each in session.list("k", timeout=T)[0]] == [b"2"]
    assert losses.none
    assert list(three.keys(path_of()))


@pytest.mark.thorough
@pytest.mark.parametrize("answers", [True, False], ids=["answers", "requests"])
def test_a_way_that_breaks_at_any_byte(single: Cluster, answers: bool) -> None:
    """From the opening of a session to its end: each call is done once, and comes to what it does on a good way."""
    after, has_broken = 0, True
    while has_broken:
        after += 331
        losses, recorder = Losses(), Recorder()
        with Relay(single.endpoints[0].port) as relay:
            relay.cut_after(after, answers=answers)
            backend = EtcdCoordination([relay.endpoint], "run")
            session = opened(backend, LONG, losses)
            done, guard = session.create("k", b"1", ephemeral=True, timeout=T)
            session.watch("", recorder, timeout=T)
            changed = session.put({"k": b"2", "other": b""}, guard=guard, timeout=T)
            assert changed is not None, after
            deleted = session.delete(["k", "other"], guard=KeyValue("k", b"2", changed), timeout=T)
            told = recorder.take(5)
            backend.close()
            has_broken = relay.is_free
        assert (done, deleted) == (True, True), after
        assert told == [("k", b"1"), ("k", b"2"), ("other", b""), ("k", None), ("other", None)], after
        assert [each.revision for each in recorder.events[1:3]] == [changed, changed], after
        assert losses.none, after
        assert single.keys("") == {}, after
