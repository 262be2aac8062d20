"""The keys of a run, and their values as JSON. Everything that the nodes of a job tell each other is here.

::

    job                 settings of the first node; the others compare theirs
    all/leader          ephemeral: the node that decides now (Leading)
    members/<node_id>   ephemeral: what a node says of itself (Member); written by that node alone
    node/<node_id>      what the leader tells that node: its place in a round (Assignment)
    all/round           the newest round that was declared, and what became of it (Round)
    all/progress        who is there and who is missing, for people
    all/probe           asks every node of a round for a sign of life (Probe)
    all/finishing       a node of a round was done and has left (Finishing)
    all/notice          a node was left out or refused, for people (Notice)
    all/end             how the job ended (Outcome)
    failure/<round>     the first failure of a round, over all nodes
    restart/<round>     the round failed, and its nodes' workers are restarted: a note of why
    all/asked/<id>      ephemeral, of whoever asks: a question to all nodes (``question_wire``)
    answer/<id>/<node_id>/<part>    ephemeral: a node's answer, until the question has gone
    place/born          several endpoints: the one where the first round is begun (``places.outlook``)
    place/begun         several endpoints: there was a round

Every node watches ``all/`` and its own ``node/`` key, the leader ``members/``. Each value carries the
number of its round, so that a late one changes nothing. JSON, never pickle: who can write to the service
must not be able to run code on the nodes.
"""

from __future__ import annotations

import functools
import json
import logging
import types
import typing
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields
from typing import Any, Literal, TypeVar

from rdzv_plugins.coordination import KeyValue
from rdzv_plugins.plain_text import printable

JOB = "job"
LEADER = "all/leader"
MEMBERS = "members/"
NODES = "node/"
ALL = "all/"
ROUND = "all/round"
PROGRESS = "all/progress"
PROBE = "all/probe"
FINISHING = "all/finishing"
NOTICE = "all/notice"
END = "all/end"
FAILURES = "failure/"
RESTARTS = "restart/"
ASKED = "all/asked/"
ANSWERS = "answer/"

PROTOCOL = 4
"""The version of these keys. Nodes of different versions refuse each other."""

MOST_SEATS = 16
"""A node that has reached so many rounds without hearing of one that was complete reaches no more."""

T = TypeVar("T")

logger = logging.getLogger(__name__)

_NO_DEFAULT = object()


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
    """The address of the workers' store. Empty: this node has rank 0, and is asked to serve it first."""
    master_port: int = 0
    publish: str = ""
    """The address to publish for the store, where others cannot dial the node's own (it is loopback)."""
    refused: str = ""
    """Why the node cannot take part; empty if it can."""
    left_out: str = ""
    """Why the others go on without the node for now, while it goes on waiting; empty if they do not."""
    late_for: int = 0
    """The round that the node has not left behind, for which it is left out."""
    begun: str = ""
    """Several endpoints: by whom the round was begun; with its number no other's (the store's port may come again)."""

    @property
    def is_place(self) -> bool:
        """Whether it is a place in its round, and not a word about having none."""
        return not self.refused and not self.left_out

    @property
    def name(self) -> str:
        """What messages call the node."""
        return _name(self.host, self.node_rank, self.pid)


@dataclass(frozen=True)
class Leading:
    """The node that leads, and where others see whether its process lives: as in its ``Member``."""

    node_id: str
    machine: str = ""
    address: str = ""
    public: str = ""
    listens: int = 0
    moves: int = 0


@dataclass(frozen=True)
class Seat:
    """A place in a round, as its node carries it from one place where nodes meet to another (``quorum``)."""

    round: int
    rank: int
    world: int
    where: str = ""
    """The store of the round, and by whom it was begun: two that were begun with one number differ by it."""
    complete: bool = False
    """Whether the node has heard that the round was complete. If not, it may have been: the node has reached it."""


@dataclass(frozen=True)
class Member:
    """What a node says of itself."""

    node_id: str
    """Unique to one agent process."""
    host: str
    machine: str
    """An id shared by all agents of one machine, and by no others."""
    pid: int
    address: str
    """The address from which this node was seen to come: peers that took the same way can dial it."""
    public: str
    """The address of the interface with the default route: where ``address`` is loopback, and peers are elsewhere."""
    nproc: int
    listens: int = 0
    """The port of its own at which others see whether its process lives (``liveness``); 0 if it has none."""
    moves: int = 0
    """Several endpoints: how often it has gone from one to another. At its own port it is another one each time."""
    dialled: str = ""
    """The address at which it has reached the endpoint."""
    node_rank: int | None = None
    """The node rank that the user has given, if any."""
    serves: bool = False
    """Whether it serves the endpoint."""
    after: int = 0
    """The node waits for a round with a higher number than this."""
    reason: str = ""
    """Why it has left round ``after`` behind, or why it leaves the job."""
    store: tuple[int, str, int] | None = None
    """(round, address, port) of the workers' store that it serves."""
    reached: int = 0
    """The round whose workers' store it has dialled."""
    outside: bool = False
    """Round ``reached`` works without this node, which wants to come in."""
    unreachable: str = ""
    """Why it could not dial the workers' store of round ``reached``."""
    cut_off: int = 0
    """The round whose workers' store its workers cannot reach any longer."""
    done: int = 0
    """The round in which its workers have succeeded."""
    probe: int = 0
    """The probe that it asks for: a worker has failed, and it wants to know whether a node was lost."""
    alive: int = 0
    """The newest probe that it has answered."""
    leaving: Literal["", "done", "failed", "lost"] = ""
    known: int = 0
    """The newest round of which it had heard when its session began: the service may know less."""
    keeps: Assignment | None = None
    """Its place in a round in which its workers still work, but which the service has forgotten."""
    seats: tuple[Seat, ...] = ()
    """Several endpoints: its place in its last complete round, and in all that it has reached since."""
    gone: int = -1
    """Several endpoints: the rank of the node of that round which served the last one, and whose process is gone."""

    @property
    def kept(self) -> Assignment | None:
        """The place that it keeps, until it has left that round."""
        return self.keeps if self.keeps is not None and self.after < self.keeps.round else None

    @property
    def name(self) -> str:
        """What messages call the node."""
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
    master_addr: str = ""
    """The address of the workers' store: a node that wants to come in dials it first."""
    master_port: int = 0
    begun: str = ""
    """Several endpoints: as in its places (``Assignment``)."""
    server: int = -1
    """Several endpoints: the rank of the node that serves the one at which this round was declared, if it has one."""


@dataclass(frozen=True)
class Finishing:
    """A node of ``round`` was done and has left: the others are about to be."""

    round: int = 0
    by: str = ""


@dataclass(frozen=True)
class Notice:
    """Something about another node that people should know."""

    text: str = ""


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
    return _ENCODER.encode(_told(value)).encode()


def decode(cls: type[T], text: bytes) -> T:
    """The dataclass from its JSON, with its texts fit to be shown.

    Raises ``ValueError`` for anything else: what another version or a stranger wrote is not to fail later.
    """
    data: Any = None
    try:
        data = json.loads(text.decode())
        if data.get("store"):
            data["store"] = tuple(data["store"])
        if data.get("keeps"):
            data["keeps"] = decode(Assignment, json.dumps(data["keeps"]).encode())
        if "seats" in data:
            data["seats"] = tuple(decode(Seat, json.dumps(each).encode()) for each in data["seats"][:MOST_SEATS])
        accepted = _accepted(typing.cast("Any", cls))
        for name, value in data.items():
            if not accepted[name](value):
                raise ValueError(f"its {name} is {printable(repr(value), _SHOWN)}")
            if type(value) is str and not value.isprintable():
                data[name] = printable(value)
        if not _required(typing.cast("Any", cls)) <= data.keys():
            return cls(**data)  # which raises, with their names
        # a frozen dataclass sets field by field, which takes longer than all of this; who leads reads thousands
        made = object.__new__(cls)
        vars(made).update(_defaults(typing.cast("Any", cls)) | data)
        return made
    except (KeyError, TypeError, AttributeError, RecursionError, ValueError) as error:
        why = f"nothing is known of {error}" if isinstance(error, KeyError) else error
        raise ValueError(f"not a {cls.__name__}{_whose(data)}: {why}") from None


def readable(cls: type[T], held: Iterable[KeyValue]) -> Iterator[T]:
    """Those of the values that can be read; a line in the log for each of the others."""
    for kv in held:
        try:
            yield decode(cls, kv.value)
        except ValueError as error:
            logger.warning("cannot read key %r of the rendezvous: %s", kv.key, error)


def restarts_of(held: Iterable[KeyValue]) -> dict[int, str]:
    """The notes below ``RESTARTS``, by round. Keys of another form are left out."""
    rounds = ((kv.key.removeprefix(RESTARTS), kv.value) for kv in held)
    return {int(number): value.decode(errors="replace") for number, value in rounds if number.isdecimal()}


def _told(value: Any) -> dict[str, Any]:
    defaults = _defaults(typing.cast("Any", type(value)))
    return {name: each for name, each in vars(value).items() if each != defaults[name]}


_ENCODER = json.JSONEncoder(separators=(",", ":"), default=_told)


@functools.cache
def _defaults(cls: Any) -> dict[str, Any]:
    """Of each field; one without has an object that equals nothing."""
    return {field.name: getattr(cls, field.name, _NO_DEFAULT) for field in fields(cls)}


@functools.cache
def _required(cls: Any) -> frozenset[str]:
    """The fields without a default."""
    return frozenset(name for name, default in _defaults(cls).items() if default is _NO_DEFAULT)


def _whose(data: Any) -> str:
    """The node that it is about, as far as it says so."""
    known = [
        printable(f"{name} {data[name]}", _SHOWN) for name in ("host", "pid") if isinstance(data, dict) and name in data
    ]
    return f" ({', '.join(known)})" if known else ""


@functools.cache
def _accepted(cls: type) -> dict[str, Callable[[Any], bool]]:
    """For each field of ``cls``, a check whether a value is acceptable."""
    return {name: _check(name, hint) for name, hint in typing.get_type_hints(cls).items()}


def _check(name: str, hint: Any) -> Callable[[Any], bool]:
    if typing.get_origin(hint) is Literal:
        choices = typing.get_args(hint)
        return lambda value: type(value) is str and value in choices
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        checks = [_check(name, each) for each in typing.get_args(hint) if each is not types.NoneType]
        return lambda value: value is None or any(check(value) for check in checks)
    if typing.get_origin(hint) is tuple and typing.get_args(hint)[-1] is Ellipsis:
        each_is = typing.get_args(hint)[0]
        return lambda value: type(value) is tuple and all(type(each) is each_is for each in value)
    if typing.get_origin(hint) is tuple:
        parts = [_check(part, each) for part, each in zip(_OF_STORE, typing.get_args(hint), strict=True)]
        return lambda value: (
            type(value) is tuple
            and len(value) == len(parts)
            and all(check(each) for check, each in zip(parts, value, strict=True))
        )
    if hint is int:
        least, most = _RANGES.get(name, _COUNT)
        return lambda value: type(value) is int and least <= value <= most
    if hint is str:
        longest = _TEXT if name in _SENTENCES else _NAME
        return lambda value: type(value) is str and len(value) <= longest
    return lambda value: type(value) is hint


_COUNT = (0, 2**53)
_RANGES = {
    "node_rank": (0, 2**31 - 1),
    "rank": (-1, 2**31 - 1),
    "gone": (-1, 2**31 - 1),
    "server": (-1, 2**31 - 1),
    "world": (0, 2**31 - 1),
    "nproc": (0, 2**20),
    "pid": (0, 2**31 - 1),
    "port": (1, 65535),
    "master_port": (0, 65535),
    "listens": (0, 65535),
}
_OF_STORE = ("round", "address", "port")
_SENTENCES = ("reason", "unreachable", "refused", "left_out", "text")
_NAME, _TEXT, _SHOWN = 512, 16384, 80
"""The most characters of a name, and of a sentence, which may quote an error; and what is quoted here."""
