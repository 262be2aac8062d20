"""A round's store as an agent uses it: what its errors mean, the exit barrier, and the exchange of ranks."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch.distributed as dist
from torch.distributed.elastic.agent.server.api import _TERMINAL_STATE_SYNC_ID, SimpleElasticAgent, WorkerSpec
from torch.distributed.elastic.rendezvous import api
from torch.distributed.elastic.utils import store as store_util

from rdzv_launcher.run.agent.events import BarrierOver
from rdzv_launcher.run.agent.rank_exchange import (
    ASSIGNED_RANKS,
    ROLE_INFO,
    RoleInfo,
    appear,
    exchange,
    identical,
    is_graceful_exit,
    is_lost,
    is_timeout,
    wait_at_exit_barrier,
)
from rdzv_launcher.run.workers.worker_group import Worker
from rdzv_plugins import errors
from rdzv_plugins.errors import EndpointLost, Preempted, RendezvousFailed, StoreLost, StoreTimeout
from rdzv_plugins.handler import must_join_again
from rdzv_plugins.kvstore.native.server import StoreServer
from rdzv_plugins.rounds import ends as keys
from rdzv_plugins.runtime import SYSTEM, Runtime
from rdzv_plugins.torch_types import OfTorch, as_torch


def raised(wait: Callable[[], object]) -> Exception:
    try:
        wait()
    except Exception as error:  # which one it is, is the question
        return error
    raise AssertionError("it has not failed")


@pytest.mark.parametrize("kind", ["TCPStore", "FileStore", "HashStore"])
def test_what_has_not_come_is_a_time_out(kind: str, tmp_path: Path) -> None:
    with StoreServer("127.0.0.1") as server:
        store = {
            "TCPStore": lambda: dist.TCPStore("127.0.0.1", server.port, is_master=False),
            "FileStore": lambda: dist.FileStore(str(tmp_path / "store"), 1),
            "HashStore": dist.HashStore,
        }[kind]()
        error = raised(lambda: store.wait(["never"], timedelta(milliseconds=20)))
        assert is_timeout(error, over=True)
        assert is_timeout(error) == (kind != "FileStore"), "its error says nothing: the time has to"
        assert not is_lost(error)


def test_a_server_that_goes_is_a_loss() -> None:
    with StoreServer("127.0.0.1") as server:
        store = dist.TCPStore("127.0.0.1", server.port, is_master=False)
        store.set("a", "b")
    error = raised(lambda: store.get("a"))
    assert is_lost(error)
    assert not is_timeout(error)


@pytest.mark.parametrize(
    ("error", "lost"),
    [
        (as_torch(errors.EndpointLost("it went")), True),
        (ConnectionResetError(), True),
        *(
            (error, False)
            for error in (NotImplementedError("no"), RecursionError("deep"), ValueError("bad"), OSError("no"))
        ),
    ],
)
def test_what_is_no_time_out_however_long_it_took(error: Exception, lost: bool) -> None:
    assert is_lost(error) == lost
    assert not is_timeout(error, over=True)


class Failing:
    """A store whose waits fail at once."""

    def __init__(self, error: Exception) -> None:
        self.error, self.waits = error, 0

    def wait(self, keys: list[str], timeout: timedelta) -> None:
        self.waits += 1
        raise self.error


def test_a_wait_that_ends_early_takes_its_time_nevertheless() -> None:
    """A loop over it would spin."""
    slept: list[float] = []
    runtime = Runtime()
    runtime.monotonic = lambda: sum(slept)  # type: ignore[assignment, method-assign]
    runtime.sleep = slept.append  # type: ignore[assignment, method-assign]
    store = Failing(errors.StoreTimeout("it is over"))
    assert not appear(store, ["never"], 30.0, runtime)  # type: ignore[arg-type]
    assert (sum(slept), store.waits) == (30.0, 1)
    with pytest.raises(RuntimeError, match="the server objects"):  # an error is none
        appear(Failing(RuntimeError("the server objects")), ["never"], 30.0, runtime)  # type: ignore[arg-type]


def test_a_graceful_exit_is_known_by_its_name() -> None:
    assert is_graceful_exit(api.RendezvousGracefulExitError("done without"))
    assert not is_graceful_exit(api.RendezvousClosedError("closed"))


@pytest.fixture
def server() -> Iterator[StoreServer]:
    with StoreServer("127.0.0.1") as server:
        yield server


def torch_store(server: StoreServer) -> dist.Store:
    return dist.TCPStore("127.0.0.1", server.port, is_master=False, timeout=timedelta(seconds=120))


def store(server: StoreServer) -> OfTorch:
    """As an agent has it."""
    return OfTorch(torch_store(server))


def wait(server: StoreServer, rank: int, timeout: float = 120, note_done: Mock | None = None) -> object:
    """As one who knows nothing of the others."""
    others = Mock(must_rejoin=lambda: False, peer_lost=lambda: False, raise_if_ended=lambda: None, working_peers=list)
    others.note_done = note_done or others.note_done
    return wait_at_exit_barrier(store(server), others, rank=rank, nodes=3, timeout=timeout, runtime=SYSTEM)


def test_all_wait_for_the_last_and_a_node_of_torchrun_too(server: StoreServer) -> None:
    with ThreadPoolExecutor(3) as threads:
        ours = [threads.submit(wait, server, rank) for rank in (0, 1)]
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
    note_done = Mock()
    assert wait(server, 0, 0.0, note_done) == BarrierOver()
    note_done.assert_called_once_with()
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
    lost = Mock(wait=Mock(side_effect=error))
    if ended is None and isinstance(error, StoreLost):
        assert wait_at_exit_barrier(lost, others, rank=0, nodes=3, timeout=120, runtime=SYSTEM) == BarrierOver()
    else:
        with pytest.raises(type(ended or error)):
            wait_at_exit_barrier(lost, others, rank=0, nodes=3, timeout=120, runtime=SYSTEM)


@pytest.mark.parametrize(("ended", "is_over"), [(EndpointLost("it is gone"), True), (Preempted("too few"), False)])
def test_when_all_have_arrived_only_the_end_of_the_job_counts(ended: Exception, is_over: bool) -> None:
    others = Mock(raise_if_ended=Mock(side_effect=ended))
    arrived = Mock(add=lambda *_: 3)
    if is_over:
        assert wait_at_exit_barrier(arrived, others, rank=0, nodes=3, timeout=120, runtime=SYSTEM) == BarrierOver()
    else:
        with pytest.raises(Preempted):
            wait_at_exit_barrier(arrived, others, rank=0, nodes=3, timeout=120, runtime=SYSTEM)


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
    with pytest.raises(RendezvousFailed, match=r"from node rank 1 under 'torchelastic/role_info/1'") as raised:
        exchange(store, RoleInfo("a", 0, 1), 2, SYSTEM)
    assert len(str(raised.value)) < 400
    assert not store.check([f"{ASSIGNED_RANKS}0"]), "nobody is given ranks then"


CANNOT_BE = ["[0, 4, 0]", "[0, 4, 0, 4, 0]", "[-1, 4, 0, 4]", "[3, 4, 0, 4]", "[0, 4, 3, 4]", "[0, 1, 0, 1]"]
CANNOT_BE += ["[0, 4, 0, 5]", "[0.0, 4, 0, 4]", '{"a": 0, "b": 4, "c": 0, "d": 4}']


@pytest.mark.parametrize("written", [*NONSENSE, *CANNOT_BE], ids=lambda text: text[:60])
def test_ranks_that_cannot_be_are_refused(written: str) -> None:
    store = dist.HashStore()
    store.set(f"{ASSIGNED_RANKS}1", written)
    with pytest.raises(RendezvousFailed, match=r"from node rank 0 under 'torchelastic/assigned_ranks/1'"):
        exchange(store, RoleInfo("a", 1, 2), 2, SYSTEM)


def test_who_comes_when_the_time_is_just_over_has_come() -> None:
    info = json.dumps({"role": "default", "rank": 0, "local_world_size": 2}).encode()
    late = Mock(timeout=timedelta(0), wait=Mock(side_effect=StoreTimeout("not there")), check=lambda keys: True)
    late.multi_get = lambda keys: [info]
    assert len(exchange(late, RoleInfo("default", 0, 2), 1, SYSTEM)) == 2


def test_who_does_not_come_is_named(port: int) -> None:
    store = client(port)
    store.set_timeout(timedelta(seconds=0.1))  # only now: connecting may take its time
    for me, missing in ((1, r"^node rank 0 "), (0, r"^node ranks 2, 3 ")):
        with pytest.raises(RendezvousFailed, match=missing):
            exchange(store, RoleInfo("a", me, 1), 4, SYSTEM)


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
