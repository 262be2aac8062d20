"""The exit barrier of three nodes, in a real store: who is waited for, how long, and what ends it."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any
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


class Others:
    """What the rendezvous of a node knows of the others."""

    def __init__(self) -> None:
        self.lost = False
        self.works: list[str] = []
        """Who is known to work."""
        self.told_done = threading.Event()
        self.asked = threading.Event()

    def note_done(self) -> None:
        self.told_done.set()

    def must_rejoin(self) -> bool:
        return False

    def peer_lost(self) -> bool:
        return self.lost

    def raise_if_ended(self) -> None:
        pass

    def working_peers(self) -> list[str]:
        self.asked.set()
        return self.works


@pytest.fixture
def server() -> Iterator[StoreServer]:
    with StoreServer("127.0.0.1") as server:
        yield server


def torch_store(server: StoreServer) -> dist.Store:
    return dist.TCPStore("127.0.0.1", server.port, is_master=False, timeout=timedelta(seconds=120))


def store(server: StoreServer) -> OfTorch:
    """As an agent has it."""
    return OfTorch(torch_store(server))


def barrier(server: StoreServer, rank: int, others: Others | None = None, timeout: float = 120) -> ExitBarrier:
    return ExitBarrier(store(server), others or Others(), rank=rank, nodes=3, timeout=timeout, runtime=SYSTEM)


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
    others = Others()
    assert barrier(server, 0, others, timeout=0.0).wait() == BarrierOver()
    assert others.told_done.is_set()
    assert "workers of node rank 2 were not done 0 s after this node's; leaving without them" in caplog.text


class Counted:
    """A store of an agent that counts its requests."""

    def __init__(self, inner: OfTorch) -> None:
        self.inner, self.requests = inner, 0

    def __getattr__(self, name: str) -> Any:
        self.requests += 1
        return getattr(self.inner, name)


@pytest.mark.parametrize("nodes", [4, 300])
def test_of_all_who_want_to_know_who_is_missing_one_looks(server: StoreServer, nodes: int) -> None:
    there = [0, 1, nodes - 2]
    for rank in there:
        store(server).set(keys.node_key(rank), "")
        store(server).add(keys.ARRIVALS, 1)
    looks = [Counted(store(server)) for _ in there]
    expected = [rank for rank in range(nodes) if rank not in there]
    assert [keys.missing(each, nodes) for each in looks] == [expected] * 3
    assert [each.requests for each in looks[1:]] == [4, 4], "however many nodes there are"
    store(server).set(keys.node_key(nodes - 1), "")
    store(server).add(keys.ARRIVALS, 1)
    assert keys.missing(looks[1], nodes) == expected[:-1], "it is looked again when one more has arrived"


def test_a_store_that_is_lost_with_the_job_ends_it_by_the_end_of_the_job(server: StoreServer) -> None:
    """Known sooner by the store than here."""

    class Lost(OfTorch):
        def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
            raise StoreLost("the round is over")

    others = Mock(must_rejoin=Mock(return_value=False), peer_lost=Mock(return_value=False))
    for error in (RendezvousFailed("node 1 has failed"), None):
        others.raise_if_ended.side_effect = error
        waiting = ExitBarrier(Lost(torch_store(server)), others, rank=0, nodes=3, timeout=120, runtime=SYSTEM)
        if error is None:
            assert waiting.wait() == BarrierOver()
        else:
            with pytest.raises(RendezvousFailed):
                waiting.wait()


def test_a_store_that_fails_ends_it_at_once(server: StoreServer) -> None:
    class Fails(OfTorch):
        def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
            raise RuntimeError("the server objects")

    failing = ExitBarrier(Fails(torch_store(server)), Others(), rank=0, nodes=3, timeout=0.0, runtime=SYSTEM)
    with pytest.raises(RuntimeError, match="the server objects"):
        failing.wait()


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
