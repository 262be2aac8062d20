"""The keys of a run, and their values as JSON. Everything that the nodes of a job tell each other is here.

::

    job                 settings of the first node; the others compare theirs
    all/leader          ephemeral: the node that decides now
    members/<node_id>   ephemeral: what a node says of itself (Member); written by that node alone
    node/<node_id>      what the leader tells that node: its place in a round (Assignment)
    all/round           the newest round that was declared, and what became of it (Round)
    all/progress        who is there and who is missing, for people
    all/probe           asks every node of a round for a sign of life (Probe)
    all/finishing       a node of a round was done and has left (Finishing)
    all/end             how the job ended (Outcome)
    failure/<round>     the first failure of a round, over all nodes

Every node watches ``all/`` and its own ``node/`` key, the leader ``members/``. Each value carries the
number of its round, so that a late one changes nothing. JSON, never pickle: who can write to the service
must not be able to run code on the nodes.
"""

from __future__ import annotations

import functools
import json
import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

JOB = "job"
LEADER = "all/leader"
MEMBERS = "members/"
NODES = "node/"
ALL = "all/"
ROUND = "all/round"
PROGRESS = "all/progress"
PROBE = "all/probe"
FINISHING = "all/finishing"
END = "all/end"
FAILURES = "failure/"

PROTOCOL = 1
"""Of these keys. Nodes of different protocols refuse each other."""

T = TypeVar("T")


@dataclass(frozen=True)
class Member:
    """What a node says of itself."""

    node_id: str
    """Unique to one agent process."""
    host: str
    machine: str
    """The same for all agents of one machine, and for no two machines."""
    pid: int
    address: str
    """Where this node was seen to come from: peers that took the same way can dial it."""
    public: str
    """The address of the interface with the default route: where ``address`` is loopback, and peers are elsewhere."""
    nproc: int
    dialled: str = ""
    """The address at which it has reached the endpoint."""
    node_rank: int | None = None
    """Given by the user."""
    serves: bool = False
    """It serves the endpoint."""
    after: int = 0
    """It waits for a round with a higher number."""
    reason: str = ""
    """Why it has left round ``after`` behind, or why it leaves the job."""
    store: tuple[int, str, int] | None = None
    """(round, address, port) of the workers' store that it serves."""
    reached: int = 0
    """The round whose workers' store it has dialled."""
    unreachable: str = ""
    """Why it could not dial the workers' store of round ``reached``."""
    cut_off: int = 0
    """The round whose workers' store its workers cannot reach any longer."""
    done: int = 0
    """The round in which its workers have succeeded."""
    probe: int = 0
    """It asks for this probe: one of its workers has failed, and it wants to know whether a node was lost."""
    alive: int = 0
    """The newest probe that it has answered."""
    leaving: Literal["", "done", "failed", "lost"] = ""

    @property
    def name(self) -> str:
        """For messages."""
        return _name(self.host, self.node_rank, self.pid)


@dataclass(frozen=True)
class Assignment:
    """What the leader tells one node. ``rank`` and ``world`` count nodes."""

    round: int
    rank: int = -1
    world: int = 0
    node_id: str = ""
    host: str = ""
    machine: str = ""
    pid: int = 0
    address: str = ""
    nproc: int = 0
    node_rank: int | None = None
    master_addr: str = ""
    """Of the workers' store. Empty: this node has rank 0, and is asked to serve it first."""
    master_port: int = 0
    publish: str = ""
    """The address to publish for the store, where others cannot dial the node's own (it is loopback)."""
    refused: str = ""
    """Not empty: the node cannot take part, and why."""

    @property
    def name(self) -> str:
        """For messages."""
        return _name(self.host, self.node_rank, self.pid)


@dataclass(frozen=True)
class Round:
    """``complete``: its nodes work; ``over``: they stop their workers and join again; ``failed``: the job ends."""

    number: int = 0
    state: Literal["none", "complete", "over", "failed"] = "none"
    world: int = 0
    reason: str = ""
    cause: Literal["", "lost", "asked", "came"] = ""
    """Why it is over: a member was lost, a member asked for it, or a node has come."""


@dataclass(frozen=True)
class Finishing:
    """A node of ``round`` was done and has left: the others are about to be."""

    round: int = 0
    by: str = ""


@dataclass(frozen=True)
class Probe:
    """``number`` counts up; ``answered`` once every node of ``round`` has shown a sign of life."""

    number: int = 0
    round: int = 0
    answered: bool = False


def _name(host: str, node_rank: int | None, pid: int) -> str:
    rank = f"node rank {node_rank}, " if node_rank is not None else ""
    return f"{host} ({rank}pid {pid})"


def encode(value: Any) -> bytes:
    """A dataclass as compact JSON; fields that have their default are left out."""
    data = {name: each for name, each in vars(value).items() if each != getattr(type(value), name, _NO_DEFAULT)}
    return json.dumps(data, separators=(",", ":")).encode()


def decode(cls: type[T], text: bytes) -> T:
    """The dataclass from its JSON. Raises ``ValueError`` for anything else."""
    try:
        data = json.loads(text)
        if data.get("store"):
            data["store"] = tuple(data["store"])
        types_ = _types(typing.cast("Any", cls))
        wrong = [name for name, value in data.items() if type(value) not in types_.get(name, ())]
        if wrong:
            raise TypeError(f"its {', '.join(map(repr, wrong))} cannot be read")
        return cls(**data)
    except (TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"not a {cls.__name__}: {error}") from None


@functools.cache
def _types(cls: type) -> dict[str, tuple[type, ...]]:
    """The types that each field may have: what another version or a stranger wrote is not to fail later."""
    return {name: tuple(_plain(hint)) for name, hint in typing.get_type_hints(cls).items()}


def _plain(hint: Any) -> Iterator[type]:
    origin = typing.get_origin(hint)
    if origin is Literal:
        yield from {type(choice) for choice in typing.get_args(hint)}
    elif origin in (typing.Union, types.UnionType):
        for each in typing.get_args(hint):
            yield from _plain(each)
    else:
        yield origin or hint


_NO_DEFAULT = object()
