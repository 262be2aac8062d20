"""How the agents of a round give their workers ranks through the round's store, exactly as torch's agents do.

Each node says its role and how many workers it has; node 0 reads that from all nodes and says where each node's ranks
begin. Keys and values are those of torch's agent (agent/server/api.py, ``_assign_worker_ranks``), so nodes of plain
torchrun may be in the same round, even as node 0.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import asdict

from rdzv_launcher.run.agent.round_store import appear
from rdzv_launcher.run.workers.worker_group import Worker
from rdzv_plugins.errors import RendezvousFailed
from rdzv_plugins.plain_text import printable, some
from rdzv_plugins.runtime import Runtime
from rdzv_plugins.store import Store

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
    """The node's rank."""
    local_world_size: int
    """How many workers the node has."""


class Base(Struct, frozen=True):
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
    return Base(first, world, first, world).workers(me.local_world_size)


def assign(infos: Sequence[RoleInfo]) -> list[Base]:
    """Node 0's part: assign ranks in the order of the nodes, over all workers and for each role."""
    sizes: Counter[str] = Counter()
    for info in infos:
        sizes[info.role] += info.local_world_size
    bases, taken = [], Counter[str]()
    for info in infos:
        bases.append(Base(taken.total(), sizes.total(), taken[info.role], sizes[info.role]))
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
        who, whose = f"node rank {ranks[0]} of the round has not started its workers", "that node: it"
        if len(ranks) > 1:
            who, whose = f"node ranks {some(ranks, _NAMED)} have not started their workers", "those nodes: they"
        raise RendezvousFailed(
            f"{who}: {limit:g} s were not enough for {what}",
            remedy=f"Look at the output of {whose} may hang in a plug-in's hook or a file system.",
        )


def _role_info(value: bytes, rank: int) -> RoleInfo:
    """What node ``rank`` says about itself. Raises ``RendezvousFailed``."""
    try:
        data = json.loads(value)
        role, said, workers = data["role"], data["rank"], data["local_world_size"]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise _nonsense(rank, f"{ROLE_INFO}{rank}", value) from None
    if not isinstance(role, str) or not _is_number(said, rank, rank) or not _is_number(workers, 1, _MOST):
        raise _nonsense(rank, f"{ROLE_INFO}{rank}", value)
    return RoleInfo(role, rank, workers)


def _base(value: bytes, me: RoleInfo) -> Base:
    """The ranks that node 0 has given this node. Raises ``RendezvousFailed``."""
    try:
        base = Base(*json.loads(value))
    except (ValueError, TypeError, RecursionError):
        raise _nonsense(0, f"{ASSIGNED_RANKS}{me.rank}", value) from None
    for first, size in ((base.global_rank, base.world_size), (base.role_rank, base.role_world_size)):
        if not _is_number(size, me.local_world_size, _MOST) or not _is_number(first, 0, size - me.local_world_size):
            raise _nonsense(0, f"{ASSIGNED_RANKS}{me.rank}", value)
    if base.role_world_size > base.world_size:
        raise _nonsense(0, f"{ASSIGNED_RANKS}{me.rank}", value)
    return base


def _is_number(value: object, least: int, most: int) -> bool:
    return type(value) is int and least <= value <= most


def _nonsense(rank: int, key: str, value: bytes) -> RendezvousFailed:
    text = printable(value.decode(errors="replace"), _SHOWN)
    return RendezvousFailed(
        f"node rank {rank} has written under {key!r} what no agent writes: {text!r}",
        remedy="Is every node an agent of rdzv-run or torchrun? Who else can write into the agents' store?",
    )
