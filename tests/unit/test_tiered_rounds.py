"""``store=tiered`` in a round: who connects to whom, and what workers are told. What follows from a lost connection:
``simulation/test_scenarios_tiers.py``."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest
from kits.eventually import eventually

from rdzv_plugins.elastic.current_round import FailureDetector, NodeContext
from rdzv_plugins.elastic.keys import Assignment
from rdzv_plugins.elastic.options import ElasticOptions
from rdzv_plugins.elastic.round_store import RoundStore
from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.errors import EndpointUnreachable, StoreLost
from rdzv_plugins.kvstore.native.framing import ask_statistics
from rdzv_plugins.options import PortRange
from rdzv_plugins.runtime import SYSTEM
from rdzv_plugins.testing.harness import free_port

PATIENCE_S = 60.0
HERE = "127.0.0.1"


class Round:
    """Nodes of one round after the other, each with what the engine has for its stores; they have reached it."""

    def __init__(self, count: int, **options: Any) -> None:
        settings = {"store": "tiered", "reach_timeout": PATIENCE_S} | options
        self.lost: queue.SimpleQueue[tuple[int, str]] = queue.SimpleQueue()
        self.stores = [RoundStore(ElasticOptions(**settings), self._of(rank), SYSTEM) for rank in range(count)]
        self.root = Endpoint(HERE, 0)
        self.number = 0

    def _of(self, rank: int) -> Any:
        return lambda number, reason: self.lost.put((rank, reason))

    def begin(self) -> list[Assignment]:
        for store in self.stores:
            store.leave()
        self.number += 1
        count = len(self.stores)
        _, _, port = self.stores[0].serve(Assignment(self.number, 0, count), HERE)
        self.root = Endpoint(HERE, port)
        places = [Assignment(self.number, rank, count, master_addr=HERE, master_port=port) for rank in range(count)]
        for store, place in zip(self.stores, places, strict=True):
            eventually(lambda store=store, place=place: store.reach(place) == "")  # type: ignore[misc]
        return places

    def open(self) -> list[Endpoint]:
        """Where the workers of each find their store."""
        return [store.open(place, None) for store, place in zip(self.stores, self.begin(), strict=True)]

    def at_root(self) -> list[str]:
        """The nodes whose proxies are connected to the store itself."""
        (space,) = ask_statistics(self.root, PATIENCE_S)["keyspaces"]
        return sorted(trunk["name"].partition(" on ")[0] for trunk in space["trunks"])


@pytest.fixture
def rounds() -> Iterator[Any]:
    with ExitStack() as held:

        def make(count: int, **options: Any) -> Round:
            made = Round(count, **options)
            for store in made.stores:
                held.callback(store.shutdown)
            return made

        yield make


def test_each_node_has_a_proxy_in_front_of_the_one_store_and_another_one_in_each_round(rounds: Any) -> None:
    job = rounds(2)
    seen = set()
    for _ in range(2):
        near = job.open()
        root = {"RDZV_ROOT_ADDR": HERE, "RDZV_ROOT_PORT": str(job.root.port)}
        assert [each.environment for each in job.stores] == [root, root]
        seen |= {job.root.port, *(each.port for each in near)}
        first, second = (each.agents for each in job.stores)
        assert not second.check(["from"])
        first.set("from", "rank")
        assert second.get("from") == b"rank"
        assert job.at_root() == ["node 0", "node 1"]
        assert not any(each.is_cut_off() or each.is_parent for each in job.stores)
    assert len(seen) == 6
    job.stores[0].close(job.number)
    assert {job.lost.get(timeout=PATIENCE_S)[0] for _ in range(2)} == {0, 1}
    with pytest.raises(StoreLost):
        second.get("from")


@pytest.mark.parametrize(
    ("options", "proxy", "told"),
    [
        ({"answered_writes": True}, True, {"RDZV_STORE_ANSWERED", "RDZV_STORE_PORT"}),
        ({"worker_transport": "unix"}, True, {"RDZV_STORE_SOCKET", "RDZV_STORE_PORT"}),
        ({"worker_transport": "direct"}, False, set()),
        ({"store": "parallel"}, False, set()),
    ],
    ids=["answered", "unix", "direct", "other"],
)
def test_what_workers_are_told_of_their_store(rounds: Any, options: Any, proxy: bool, told: set[str]) -> None:
    """Direct workers, and those of other stores, need no proxy."""
    job = rounds(1, **options)
    root = set() if "store" in options else {"RDZV_ROOT_ADDR", "RDZV_ROOT_PORT"}
    sockets = []
    for _ in range(2):
        (near,) = job.open()
        environment = job.stores[0].environment
        assert environment.keys() == told | root
        assert environment.get("RDZV_STORE_PORT", str(near.port)) == str(near.port)
        assert (near == job.root) is not proxy
        sockets.append(environment.get("RDZV_STORE_SOCKET"))
    assert sockets == [None, None] or sockets[0] != sockets[1]


def test_second_tier_connects_to_the_first_by_rank_and_is_lost_with_its_parent(rounds: Any) -> None:
    job = rounds(5, fanout=2)
    job.open()
    assert job.at_root() == ["node 0", "node 1"]
    assert [each.is_parent for each in job.stores] == [True, True, False, False, False]
    for rank, store in enumerate(job.stores):
        store.agents.set(f"of {rank}", "it")
    for rank in range(5):
        assert job.stores[3].agents.get(f"of {rank}") == b"it"
    job.stores[1].leave()
    assert job.lost.get(timeout=PATIENCE_S)[0] == 3
    assert job.stores[3].is_cut_off()
    assert not any(job.stores[rank].is_cut_off() for rank in (0, 2, 4))


def test_a_store_that_takes_no_proxies_ends_the_wait_for_it(rounds: Any) -> None:
    """It is reached, and is no native store; that is tried again for as long as a lost node may take to be known."""
    job = rounds(1, store="torch")
    place = job.begin()[0]
    (late,) = rounds(1, reach_timeout=0.1, ttl=0.5).stores
    eventually(lambda: late.reach(place) == "")
    with pytest.raises(EndpointUnreachable, match="torch"):
        late.open(place, None)


@pytest.mark.parametrize(
    "port",
    [pytest.param(free_port(), id="the same port again"), pytest.param(0, id="any", marks=pytest.mark.thorough)],
)
def test_late_node_does_not_take_the_store_of_the_next_round_for_its_own(rounds: Any, port: int) -> None:
    """It was stopped between reaching the store of its round and connecting its proxy."""
    job = rounds(2, worker_ports=PortRange(port, port), reach_timeout=2.0, ttl=0.5)
    late = job.stores[1]
    _, one = job.begin()
    job.stores = job.stores[:1]
    job.begin()
    with pytest.raises(EndpointUnreachable, match="is that of round 2, not of round 1" if port else None):
        late.open(one, None)
    two = Assignment(2, 1, 2, master_addr=HERE, master_port=job.root.port)
    eventually(lambda: late.reach(two) == "")
    late.open(two, None)


@pytest.mark.parametrize("done", ["leaving", "finished_round", "finishing", "ended"])
def test_a_round_of_which_somebody_is_done_needs_no_store(done: str) -> None:
    """Who is done may have served it."""
    me, finishing = SimpleNamespace(leaving="", finished_round=0), SimpleNamespace(round=0)
    view = SimpleNamespace(finishing=finishing, ended=None)
    store: Any = SimpleNamespace(is_cut_off=lambda: True)
    node: Any = (
        None,
        ElasticOptions(),
        view,
        SimpleNamespace(me=me),
        SimpleNamespace(number=1),
        store,
        None,
        print,
        SYSTEM,
    )
    lost = FailureDetector(NodeContext(*node))
    assert lost.is_cut_off
    if done == "finishing":
        finishing.round = 1
    else:
        setattr(
            view if done == "ended" else me, done, {"leaving": "done", "finished_round": 1, "ended": "failed"}[done]
        )
    assert not lost.is_cut_off
