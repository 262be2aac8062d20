"""The exit barrier of three nodes, in a real store: who is waited for, how long, and what ends it."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from unittest.mock import Mock

import pytest
import torch.distributed as dist
from torch.distributed.elastic.agent.server.api import _TERMINAL_STATE_SYNC_ID
from torch.distributed.elastic.utils import store as store_util

from rdzv_launcher.run.agent.events import BarrierOver
from rdzv_launcher.run.agent.round_store import ExitBarrier
from rdzv_plugins.errors import RendezvousFailed, StoreLost
from rdzv_plugins.handler import must_join_again
from rdzv_plugins.kvstore.native.server import StoreServer
from rdzv_plugins.rounds import exit_barrier as keys
from rdzv_plugins.runtime import SYSTEM
from rdzv_plugins.torch_types import OfTorch


@pytest.fixture
def server() -> Iterator[StoreServer]:
    with StoreServer("127.0.0.1") as server:
        yield server


def torch_store(server: StoreServer) -> dist.Store:
    return dist.TCPStore("127.0.0.1", server.port, is_master=False, timeout=timedelta(seconds=120))


def store(server: StoreServer) -> OfTorch:
    """As an agent has it."""
    return OfTorch(torch_store(server))


def barrier(server: StoreServer, rank: int, timeout: float = 120) -> ExitBarrier:
    """Of one who knows nothing of the others."""
    others = Mock(must_rejoin=lambda: False, peer_lost=lambda: False, raise_if_ended=lambda: None, working_peers=list)
    return ExitBarrier(store(server), others, rank=rank, nodes=3, timeout=timeout, runtime=SYSTEM)


def test_all_wait_for_the_last_and_a_node_of_torchrun_too(server: StoreServer) -> None:
    with ThreadPoolExecutor(3) as threads:
        ours = [threads.submit(barrier(server, rank).wait) for rank in (0, 1)]
        looking = store(server)
        looking.wait([keys.node_key(0), keys.node_key(1)])
        assert not looking.check([keys.LAST])
        assert not any(each.done() for each in ours)
        torchs = threads.submit(
            store_util.barrier,
            store=torch_store(server),
            world_size=3,
            key_prefix=_TERMINAL_STATE_SYNC_ID,
            barrier_timeout=120,
        )
        assert torchs.result(120) is None
        assert [each.result(120) for each in ours] == [BarrierOver()] * 2


def test_who_is_missing_is_named_and_not_waited_for_when_nobody_knows_it_to_live(
    server: StoreServer, caplog: pytest.LogCaptureFixture
) -> None:
    store(server).set(keys.node_key(1), "")
    assert barrier(server, 0, timeout=0.0).wait() == BarrierOver()
    assert "node rank 2" in caplog.text


@pytest.mark.parametrize(
    ("error", "ended"),
    [
        (StoreLost("the round is over"), RendezvousFailed("node 1 has failed")),  # known sooner by the store than here
        (StoreLost("the round is over"), None),
        (RuntimeError("the server objects"), None),
    ],
)
def test_a_store_that_is_lost_or_fails_ends_it(error: Exception, ended: Exception | None) -> None:
    others = Mock(must_rejoin=Mock(return_value=False), peer_lost=Mock(return_value=False))
    others.raise_if_ended.side_effect = ended
    waiting = ExitBarrier(Mock(wait=Mock(side_effect=error)), others, rank=0, nodes=3, timeout=120, runtime=SYSTEM)
    if ended is None and isinstance(error, StoreLost):
        assert waiting.wait() == BarrierOver()
    else:
        with pytest.raises(type(ended or error)):
            waiting.wait()


@pytest.mark.parametrize(
    ("over", "lost", "again", "waits"),
    [
        ([True], False, True, False),
        ([False], True, True, True),
        ([False, True], False, True, True),  # another asks for a new round meanwhile
        ([False, False], False, False, True),
    ],
)
def test_a_round_is_over_and_nothing_is_waited_for_once_that_is_known(over, lost, again, waits):
    handler = Mock()
    handler.must_rejoin.side_effect, handler.peer_lost.return_value = over, lost
    assert must_join_again(handler) is again
    assert handler.peer_lost.called is waits
