"""A connection to a member that is given up: whoever waits for something on it goes on elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest
from kits.etcd.etcd_kit import Cluster
from kits.etcd.etcd_relay import HoldingRelay
from kits.wire.coordination_kit import LONG

from rdzv_plugins.backends.etcd.api import rpc
from rdzv_plugins.backends.etcd.connection import Connection, Dropped
from rdzv_plugins.backends.etcd.opening import make_channel
from rdzv_plugins.backends.etcd.security import EtcdSecurity
from rdzv_plugins.kit.loop import hold_for_good

pytestmark = pytest.mark.thorough

WATCH = rpc.WatchRequest(create_request=rpc.WatchCreateRequest(key=b"k"))


@pytest.fixture
def silent(single: Cluster) -> Iterator[HoldingRelay]:
    """It accepts connections, and nothing comes through: so gRPC's channel never gets ready."""
    with HoldingRelay(single.endpoints[0]) as relay:
        relay.hold_requests(after=0)
        yield relay


async def write(connection: Connection) -> Any:
    return await connection.stream("Watch/Watch").write(WATCH)


async def read(connection: Connection) -> Any:
    return await connection.stream("Watch/Watch").read()


async def ask(connection: Connection) -> Any:
    return await connection.unary("KV/Range", rpc.RangeRequest(key=b"k"), LONG)


@pytest.mark.parametrize("wait", [write, read, ask])
def test_whoever_waits_on_a_dropped_connection_is_told(
    silent: HoldingRelay, wait: Callable[[Connection], Coroutine[Any, Any, Any]]
) -> None:
    async def drop_while_it_waits() -> str:
        channel = make_channel(silent.endpoint, EtcdSecurity(), "127.0.0.1")
        connection = Connection(silent.endpoint, EtcdSecurity(), channel, "127.0.0.1", "127.0.0.1")
        waiting = asyncio.get_running_loop().create_task(wait(connection))
        while not silent.is_used:  # the channel is being made
            await asyncio.sleep(0.01)
        assert not waiting.done()
        await connection.drop("it is frozen")
        await connection.drop("once more")
        done, _ = await asyncio.wait({waiting}, timeout=LONG)
        assert done == {waiting}, "it waits on"
        with pytest.raises(Dropped) as raised:
            waiting.result()
        with pytest.raises(Dropped, match="it is frozen"):
            await wait(connection)
        return str(raised.value)

    assert hold_for_good().run(drop_while_it_waits(), 2 * LONG) == "it is frozen"
