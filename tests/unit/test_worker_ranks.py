"""The exchange of ranks: the same numbers as torch's agents get, with torch's own code as the other nodes."""

from __future__ import annotations

import inspect
import json
import random
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch.distributed as dist
from torch.distributed.elastic.agent.server.api import SimpleElasticAgent, WorkerSpec

from rdzv_launcher.run.agent.round_store import ASSIGNED_RANKS, ROLE_INFO, RoleInfo, assign, exchange, identical
from rdzv_launcher.run.workers.worker_group import Worker
from rdzv_plugins.errors import RendezvousFailed
from rdzv_plugins.kvstore.native.server import StoreServer
from rdzv_plugins.runtime import SYSTEM

Numbers = list[tuple[int, int, int, int, int]]


@pytest.fixture(params=["torch", "native"])
def port(request: pytest.FixtureRequest) -> Iterator[int]:
    """Of a real store's server."""
    if request.param == "native":
        with StoreServer("127.0.0.1") as server:
            yield server.port
    else:
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        yield store.port


def client(port: int, timeout: float = 120) -> dist.Store:
    store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=timeout))
    return dist.PrefixStore("round", store)


def numbers(workers: Iterable[Worker]) -> Numbers:
    return [(w.local_rank, w.global_rank, w.role_rank, w.world_size, w.role_world_size) for w in workers]


@pytest.mark.parametrize("torchs", [[0], [1, 2]], ids=["torch assigns", "we assign"])
def test_nodes_of_torchrun_take_part(port: int, torchs: list[int]) -> None:
    nodes = [RoleInfo("trainer", 0, 2), RoleInfo("reader", 1, 3), RoleInfo("trainer", 2, 1)]

    def run(me: RoleInfo) -> Numbers:
        if me.rank not in torchs:
            return numbers(exchange(client(port), me, len(nodes), SYSTEM))
        spec = WorkerSpec(me.role, me.local_world_size, rdzv_handler=None, entrypoint="none")
        assigned = inspect.unwrap(SimpleElasticAgent._assign_worker_ranks)
        return numbers(assigned(None, client(port), me.rank, len(nodes), spec))

    with ThreadPoolExecutor(len(nodes)) as threads:
        found = list(threads.map(run, nodes))
    assert found == [
        [(0, 0, 0, 6, 3), (1, 1, 1, 6, 3)],
        [(0, 2, 0, 6, 3), (1, 3, 1, 6, 3), (2, 4, 2, 6, 3)],
        [(0, 5, 2, 6, 3)],
    ]
    keys = [f"{prefix}{rank}" for prefix in (ROLE_INFO, ASSIGNED_RANKS) for rank in range(3)]
    assert client(port).check(keys)


def test_ranks_of_all_nodes_are_a_partition_for_each_role() -> None:
    choose = random.Random(17)
    for _ in range(200):
        infos = [RoleInfo(choose.choice("abc"), n, choose.randint(1, 5)) for n in range(choose.randint(1, 8))]
        all_of_them = [
            (i.role, w) for i, b in zip(infos, assign(infos), strict=True) for w in b.workers(i.local_world_size)
        ]
        assert [w.global_rank for _, w in all_of_them] == list(range(len(all_of_them)))
        assert {w.world_size for _, w in all_of_them} == {len(all_of_them)}
        for role in {info.role for info in infos}:
            mine = [w for of, w in all_of_them if of == role]
            assert [w.role_rank for w in mine] == list(range(len(mine)))
            assert {w.role_world_size for w in mine} == {len(mine)}


def test_nodes_that_are_known_to_be_alike_need_no_store() -> None:
    assert numbers(identical(RoleInfo("default", 2, 2), 4)) == [(0, 4, 4, 8, 8), (1, 5, 5, 8, 8)]


NONSENSE = ["", "[]", "{}", "null", "[" * 100000]


INFO = {"role": "a", "rank": 1, "local_world_size": 1}
SIZES = [{"local_world_size": each} for each in (0, 1e3, 99999999999)]
WRONG = [json.dumps(INFO | each) for each in ({"role": 1}, {"rank": 2}, {"rank": True}, *SIZES)]


@pytest.mark.parametrize("written", [*NONSENSE, *WRONG], ids=lambda text: text[:60])
def test_a_node_that_says_nonsense_of_itself_is_named(written: str) -> None:
    store = dist.HashStore()
    store.set(f"{ROLE_INFO}1", written)
    with pytest.raises(RendezvousFailed, match=r"node rank 1 has written under 'torchelastic/role_info/1'") as raised:
        exchange(store, RoleInfo("a", 0, 1), 2, SYSTEM)
    assert len(str(raised.value)) < 400
    assert not store.check([f"{ASSIGNED_RANKS}0"]), "nobody is given ranks then"


CANNOT_BE = ["[0, 4, 0]", "[0, 4, 0, 4, 0]", "[-1, 4, 0, 4]", "[3, 4, 0, 4]", "[0, 4, 3, 4]", "[0, 1, 0, 1]"]
CANNOT_BE += ["[0, 4, 0, 5]", "[0.0, 4, 0, 4]", '{"a": 0, "b": 4, "c": 0, "d": 4}']


@pytest.mark.parametrize("written", [*NONSENSE, *CANNOT_BE], ids=lambda text: text[:60])
def test_ranks_that_cannot_be_are_refused(written: str) -> None:
    store = dist.HashStore()
    store.set(f"{ASSIGNED_RANKS}1", written)
    with pytest.raises(RendezvousFailed, match=r"node rank 0 has written under 'torchelastic/assigned_ranks/1'"):
        exchange(store, RoleInfo("a", 1, 2), 2, SYSTEM)


def test_who_does_not_come_is_named(port: int) -> None:
    store = client(port)
    store.set_timeout(timedelta(seconds=0.1))  # only now: connecting may take its time
    for me, missing in ((1, r"^node rank 0 "), (0, r"^node ranks 2, 3 ")):
        with pytest.raises(RendezvousFailed, match=missing):
            exchange(store, RoleInfo("a", me, 1), 4, SYSTEM)
