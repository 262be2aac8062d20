"""What the errors of a round's store mean to its agents.

torch's errors are recognised by their class names, because importing them would import torch.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import timedelta

import msgspec
from msgspec import Struct
from msgspec.structs import asdict

from rdzv_launcher.run.agent.events import BarrierOver, MustRunAgain
from rdzv_launcher.run.workers.worker_group import Worker
from rdzv_plugins.errors import EndpointLost, RendezvousFailed, SpareReleased, StoreLost, StoreTimeout
from rdzv_plugins.handler import must_join_again
from rdzv_plugins.interfaces import RendezvousHandler
from rdzv_plugins.plain_text import printable, some
from rdzv_plugins.rounds import ends as keys
from rdzv_plugins.runtime import Runtime
from rdzv_plugins.store import Store
from rdzv_plugins.timing import EVERY_S, Reporting

logger = logging.getLogger(__name__)


def is_lost(error: Exception) -> bool:
    """Whether the store, or the connection to it, is lost."""
    return isinstance(error, (ConnectionError, EndpointLost, StoreLost)) or _is_a(error, "DistNetworkError")


def is_timeout(error: Exception, *, over: bool = False) -> bool:
    """Whether a wait timed out: the error's class says so, as TCPStore's ``DistStoreError`` does.

    FileStore raises a mere ``RuntimeError``, as a server that objects may: that is one if the wait's limit is ``over``.
    """
    if is_lost(error):
        return False
    said = isinstance(error, (StoreTimeout, TimeoutError)) or _is_a(error, "DistStoreError")
    return said or (over and type(error) is RuntimeError)


def appear(store: Store, keys: list[str], seconds: float, runtime: Runtime) -> bool:
    """Wait for all of the keys; False if they are not there after ``seconds``, and never earlier: no loop can spin.

    Raises every error that is not a time-out.
    """
    deadline = runtime.monotonic() + seconds
    try:
        store.wait(keys, timedelta(seconds=seconds))
        return True
    except Exception as error:
        left = deadline - runtime.monotonic()
        if not is_timeout(error, over=left <= seconds / 10):
            raise
    runtime.sleep(max(0.0, left))
    return False


def is_graceful_exit(error: Exception) -> bool:
    """Whether the job is done without this node, which has not taken part: torch's ``RendezvousGracefulExitError``."""
    return isinstance(error, SpareReleased) or _is_a(error, "RendezvousGracefulExitError")


def _is_a(error: Exception, name: str) -> bool:
    return any(cls.__name__ == name for cls in type(error).__mro__)


# How the agents of a round give their workers ranks through the round's store, exactly as torch's agents do.
#
# Each node says its role and how many workers it has; node 0 reads that from all nodes and says where each node's ranks
# begin. Keys and values are those of torch's agent (agent/server/api.py, ``_assign_worker_ranks``), so nodes of plain
# torchrun may be in the same round, even as node 0.

ROLE_INFO = "torchelastic/role_info/"
ASSIGNED_RANKS = "torchelastic/assigned_ranks/"

_SLICE_S = 1.0
"""torch's client cannot be interrupted by a signal while it waits, so it waits in slices this long."""
_MOST = 2**31 - 1
_SHOWN = 100
_NAMED = 16


class RoleInfo(Struct, frozen=True):
    """What a node says about itself."""

    role: str
    rank: int
    local_world_size: int


class RankOffsets(Struct, frozen=True):
    """Where a node's ranks begin, and how many workers there are in all."""

    global_rank: int
    world_size: int
    role_rank: int
    role_world_size: int

    def workers(self, number: int) -> tuple[Worker, ...]:
        """The node's workers, in the order of their local ranks."""
        return tuple(
            Worker(each, self.global_rank + each, self.role_rank + each, self.world_size, self.role_world_size)
            for each in range(number)
        )


def exchange(store: Store, me: RoleInfo, nodes: int, runtime: Runtime) -> tuple[Worker, ...]:
    """Return this node's workers. Waits until the others have described themselves, at most for its time-out.

    Raises ``RendezvousFailed``, naming the node that has said nothing, or nonsense; and the store's own error if the
    store is lost.
    """
    store.set(f"{ROLE_INFO}{me.rank}", json.dumps(asdict(me)))
    if me.rank == 0:
        keys = [f"{ROLE_INFO}{rank}" for rank in range(nodes)]
        _wait(store, keys, "its role and the number of its workers", runtime)
        infos = [_role_info(value, rank) for rank, value in enumerate(store.multi_get(keys))]
        bases = assign(infos)
        values = [json.dumps([*asdict(base).values()]) for base in bases]
        store.multi_set([f"{ASSIGNED_RANKS}{rank}" for rank in range(nodes)], values)
        return bases[0].workers(me.local_world_size)
    key = f"{ASSIGNED_RANKS}{me.rank}"
    _wait(store, [key], "the ranks of the workers", runtime, teller=0)
    return _base(store.get(key), me).workers(me.local_world_size)


def identical(me: RoleInfo, nodes: int) -> tuple[Worker, ...]:
    """This node's workers if all nodes are known to have as many, of one role: TORCH_ELASTIC_WORKER_IDENTICAL=1."""
    first, world = me.rank * me.local_world_size, nodes * me.local_world_size
    return RankOffsets(first, world, first, world).workers(me.local_world_size)


def assign(infos: Sequence[RoleInfo]) -> list[RankOffsets]:
    """Node 0's part: assign ranks in the order of the nodes, over all workers and for each role."""
    sizes: Counter[str] = Counter()
    for info in infos:
        sizes[info.role] += info.local_world_size
    bases, taken = [], Counter[str]()
    for info in infos:
        bases.append(RankOffsets(taken.total(), sizes.total(), taken[info.role], sizes[info.role]))
        taken[info.role] += info.local_world_size
    return bases


def _wait(store: Store, keys: list[str], what: str, runtime: Runtime, teller: int | None = None) -> None:
    """Wait for what node ``teller`` says, or, if that is None, for what each node says under the key of its rank."""
    limit = store.timeout.total_seconds()
    deadline = runtime.monotonic() + limit
    while True:
        left = deadline - runtime.monotonic()
        if appear(store, keys, min(_SLICE_S, max(left, 0.001)), runtime):
            return
        if left > _SLICE_S:
            continue
        ranks = [teller] if teller is not None else [r for r, key in enumerate(keys) if not store.check([key])]
        if not ranks:  # the last one has come just now
            return
        who, whose = f"node rank {ranks[0]} of the round has not started its workers", "that node: it"
        if len(ranks) > 1:
            who, whose = f"node ranks {some(ranks, _NAMED)} have not started their workers", "those nodes: they"
        raise RendezvousFailed(
            f"{who}: waited {limit:g} s for {what}",
            remedy=f"Check the output of {whose} may hang in a plug-in's hook or on a file system.",
        )


def _role_info(value: bytes, rank: int) -> RoleInfo:
    """What node ``rank`` says about itself. Raises ``RendezvousFailed``."""
    try:
        info = msgspec.json.decode(value, type=RoleInfo)
        if info.rank == rank and 1 <= info.local_world_size <= _MOST:
            return info
    except (msgspec.MsgspecError, ValueError, RecursionError):
        pass
    raise _nonsense(rank, f"{ROLE_INFO}{rank}", value)


def _base(value: bytes, me: RoleInfo) -> RankOffsets:
    """The ranks that node 0 has given this node. Raises ``RendezvousFailed``."""
    try:
        base = RankOffsets(*msgspec.json.decode(value, type=tuple[int, int, int, int]))
        sizes = ((base.global_rank, base.world_size), (base.role_rank, base.role_world_size))
        fits = all(0 <= first <= size - me.local_world_size and size <= _MOST for first, size in sizes)
        if fits and base.role_world_size <= base.world_size:
            return base
    except (msgspec.MsgspecError, ValueError, RecursionError):
        pass
    raise _nonsense(0, f"{ASSIGNED_RANKS}{me.rank}", value)


def _nonsense(rank: int, key: str, value: bytes) -> RendezvousFailed:
    text = printable(value.decode(errors="replace"), _SHOWN)
    return RendezvousFailed(
        f"unexpected value from node rank {rank} under {key!r}: {text!r}",
        remedy="Make sure that only agents of rdzv-run or torchrun can reach the agents' store.",
    )


# The wait for the workers of all nodes, once those of this node have succeeded.
#
# The keys are those of torch's agent (``rounds/ends``), so nodes of plain torchrun may wait there, too. Unlike
# torch's, this barrier names the nodes it waits for, ends on a failure elsewhere, keeps waiting past its time-out for
# nodes that are known to live, and hears when another node has to run again.


def wait_at_exit_barrier(
    store: Store,
    handler: RendezvousHandler,
    *,
    rank: int,
    nodes: int,
    timeout: float,
    runtime: Runtime,
    on_late: Callable[[str], None] = lambda why: None,
) -> BarrierOver | MustRunAgain:
    """Arrive, and wait for the others. Raises the error that ended the job elsewhere; a signal ends the wait.

    Losing the store ends the wait, too: this node's part is done, unless the round is over for all. ``rank`` of this
    node among ``nodes``; ``timeout`` (seconds) applies to nodes that are not known to live. ``on_late`` is called once,
    when the timeout is over and others are known to be working; it must return at once.
    """
    try:
        handler.note_done()
        store.set(keys.node_key(rank), "")
        if store.add(keys.ARRIVALS, 1) == nodes:
            store.set(keys.LAST, "")
        start, limit = runtime.monotonic(), timeout
        reporting = Reporting(grows=True, runtime=runtime)
        while not appear(store, [keys.LAST], _SLICE_S, runtime):
            handler.raise_if_ended()
            if handler.must_rejoin():
                logger.info("another node is restarting its workers: restarting those of this node, too")
                return MustRunAgain()
            waited = runtime.monotonic() - start
            if not reporting.is_due() and waited < limit:
                continue
            names = some(keys.missing(store, nodes), _NAMED) or "unknown (plain torchrun nodes do not say)"
            if waited >= limit:
                if not handler.working_peers():  # none is known to live
                    late = "workers of node rank %s have not finished %g s after this node's; leaving without them"
                    logger.warning(late, names, limit)
                    break
                if limit == timeout:
                    on_late(f"workers of node rank {names} have not finished {limit:g} s after this node's")
                limit = waited + EVERY_S
            logger.info("this node is done; waiting for node rank %s (%.0f s)", names, waited)
        # a node may have ended the job after it had arrived, or while it was asked for
        with contextlib.suppress(EndpointLost):  # who is done needs no rendezvous any more
            handler.raise_if_ended()
        return BarrierOver()
    except Exception as error:
        if not is_lost(error):
            raise
        if must_join_again(handler):  # the one whose agent serves the store
            logger.info("the round ended in the exit barrier (%s): restarting this node's workers", error)
            return MustRunAgain()
        handler.raise_if_ended()
        logger.warning("this node is done, but could not wait for the others: %s", error)
        return BarrierOver()
