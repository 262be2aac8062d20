"""What sessions with etcd promise beyond the contract: that is tested in ``tests/conformance``."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from kits.etcd.etcd_kit import Cluster
from kits.wire.coordination_kit import (
    LONG,
    check_that_an_end_waits_for_the_call,
    client_of,
    leave,
    opened,
)

from rdzv_plugins.backends.etcd.api import rpc
from rdzv_plugins.backends.etcd.coordination import EtcdCoordination
from rdzv_plugins.backends.etcd.space import Space
from rdzv_plugins.coordination import Event, KeyValue


@pytest.fixture
def backend(single: Cluster) -> Iterator[EtcdCoordination]:
    backend = EtcdCoordination(single.endpoints, "run")
    yield backend
    backend.close()


@pytest.mark.thorough
def test_ending_a_watch_waits_for_the_call_that_runs(single: Cluster, backend: EtcdCoordination) -> None:
    def change() -> None:
        with client_of(single.endpoints, "from another process, ours being busy", LONG, kind="etcd") as process:
            leave(process)

    for how in ("cancel", "close"):
        check_that_an_end_waits_for_the_call(opened(backend), how, change)


def test_a_time_to_live_is_in_whole_seconds(backend: EtcdCoordination) -> None:
    session = opened(backend, ttl=7.5)
    assert session.ttl == 8
    assert (session.local_addr, session.remote_addr) == ("127.0.0.1", "127.0.0.1")


def test_keys_of_strangers_that_are_not_text_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    space = Space("/rdzv", "run")
    pairs = [{"key": space.full("") + name, "value": b"v", "mod_revision": 7} for name in (b"members/\x94", b"a")]
    with caplog.at_level(logging.WARNING):
        assert space.held(rpc.RangeResponse(kvs=pairs)) == [KeyValue("a", b"v", 7)]
        told = rpc.WatchResponse(events=[{"kv": pair} for pair in pairs])
        assert list(space.events(told)) == [Event("a", b"v", 7)]
    assert r"members/\x94" in caplog.text
