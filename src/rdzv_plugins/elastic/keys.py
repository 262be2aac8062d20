"""The keys of a run, and their values as JSON. Everything that the nodes of a job tell each other is here.

::

    job                 settings of the first node; the others compare theirs
    all/leader          ephemeral: the node that decides now (LeaderInfo)
    members/<node_id>   ephemeral: what a node says about itself (Member); written by that node alone
    node/<node_id>      what the leader tells that node: its place in a round (Assignment)
    all/round           the newest round that was declared, and what became of it (Round)
    all/progress        who is there and who is missing, for people
    all/probe           asks every node of a round for a sign of life (Heartbeat)
    all/finishing       a node of a round was done and has left (Finishing)
    all/notice          a node was left out or refused, for people (NodeNotice)
    all/end             how the job ended (Outcome)
    failure/<round>     the first failure of a round, over all nodes
    restart/<round>     the round failed, and its nodes' workers are restarted: a note of why
    all/asked/<id>      ephemeral, written by the asker: a question to all nodes (``rpc``)
    answer/<id>/<node_id>/<part>    ephemeral: a node's answer, kept until the question has gone
    place/born          several endpoints: the one where the first round is begun (``endpoint_monitor``)
    place/id            several endpoints: what rounds that were begun here are marked with
    place/begun         several endpoints: there was a complete round

Every node watches ``all/`` and its own ``node/`` key; the leader watches ``members/``. Each value carries the number of
its round, so that a late one changes nothing. Values are JSON, never pickle: being able to write to the service must
not mean being able to run code on the nodes.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

from rdzv_plugins.coordination import KeyValue, OnEvents, Session, Watch
from rdzv_plugins.errors import Compacted
from rdzv_plugins.plain_text import printable

logger = logging.getLogger(__name__)

Count = Annotated[int, Meta(ge=0, le=2**53)]
Rank = Annotated[int, Meta(ge=-1, le=2**31 - 1)]  # -1 for none
Number = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Port = Annotated[int, Meta(ge=0, le=65535)]
Workers = Annotated[int, Meta(ge=0, le=2**20)]
Name = Annotated[str, Meta(max_length=512)]
LONGEST = 16384
Sentence = Annotated[str, Meta(max_length=LONGEST)]  # text that may quote an error


class Record(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A value that nodes send each other. Immutable; equal to another of the same kind with the same fields."""


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
INIT_CLAIM = "place/born"
PLACE_ID = "place/id"
INITIALIZED = "place/begun"

PROTOCOL = 8  # the version of these keys. Nodes of different versions refuse each other
MOST_CHECKS = 64  # with --preflight: how many of its own checks a node reports
MOST_VOTES = 16  # a node that has reached this many rounds without hearing that one was complete reaches no more
_SHOWN = 80  # the most characters of a name that an error quotes
_MOST_LISTS = 20  # a service that has always forgotten what came after the list that it has just given is broken
_MOST_DIGITS = 18

R = TypeVar("R", bound=Record)

Which = tuple[int, int, str]
"""A round, identified by its number, its size and its store."""


class Assignment(Record, frozen=True):
    """What the leader tells one node. ``rank`` and ``world`` count nodes."""

    round: Count
    rank: Rank = -1
    world: Number = 0
    node_id: Name = ""
    host: Name = ""
    machine: Name = ""
    pid: Number = 0
    address: Name = ""
    nproc: Workers = 0
    node_rank: Number | None = None
    master_addr: Name = ""  # of the workers' store. If empty, this node has rank 0 and is asked to serve it first
    master_port: Port = 0
    publish: Name = ""  # the address to publish for the store if others cannot dial the node's own (a loopback address)
    refused: Sentence = ""  # why the node cannot take part; empty if it can
    left_out: Sentence = ""  # why the others go on without the node for now while it waits; empty if they do not
    late_for: Count = 0  # the round that the node has failed to leave behind, for which it is left out
    epoch: Name = ""  # several endpoints: who began the round. With its number it identifies it (ports are used again)
    spare: Sentence = ""  # why the round works without the node if lack of room is not the only reason: it is a spare
    domain: Name = ""  # the node's domain, as in its ``Member``

    @property
    def is_place(self) -> bool:
        """Whether this is a place in its round, rather than a message to a node that has none."""
        return not self.refused and not self.left_out and not self.spare

    @property
    def which(self) -> Which:
        """The round that it is a place in."""
        return self.round, self.world, _where(self)

    @property
    def name(self) -> str:
        """The name used for the node in messages."""
        return _name(self.host, self.node_rank, self.pid)


class LeaderInfo(Record, frozen=True):
    """The leading node, and where others see whether its process lives, as in its ``Member``."""

    node_id: Name
    machine: Name = ""
    address: Name = ""
    public: Name = ""
    listens: Port = 0
    incarnation: Count = 0


class EpochVote(Record, frozen=True):
    """A place in a round, which its node carries to a service that does not know that round.

    Such a service is another of several endpoints (``quorum``), or one that has lost its memory (``round_recovery``).
    """

    round: Count
    rank: Rank
    world: Number
    where: Name = ""  # the round's store and who began the round: tells two rounds begun with the same number apart
    complete: bool = False  # whether it has heard that the round was. If not, it may have been: it has reached it

    @property
    def which(self) -> Which:
        """The round that it is a place in."""
        return self.round, self.world, self.where

    @property
    def mark(self) -> str:
        """Who began that round (``Assignment.epoch``)."""
        return self.where.rpartition(" ")[2]


class CheckReport(Record, frozen=True):
    """What a node's own ``NodeCheck`` has found."""

    name: Name
    verdict: Literal["ok", "warning", "broken"] = "ok"
    text: Sentence = ""
    value: Annotated[float, Meta(ge=0)] | None = None
    unit: Name = ""


class Member(Record, frozen=True):
    """What a node says about itself."""

    node_id: Name  # unique to one agent process
    host: Name
    machine: Name  # an id shared by all agents of one machine, and by no others
    pid: Number
    address: Name  # the address that this node was seen to come from: peers that took the same route can dial it
    public: Name  # of the interface with the default route, for when ``address`` is loopback and peers are elsewhere
    nproc: Workers
    listens: Port = 0  # its own port, where others see whether its process lives (``liveness_probe``); 0 if it has none
    incarnation: Count = 0  # several endpoints: how often it has moved. Its own port has a new identity after each move
    dialled: Name = ""  # the address at which it has reached the endpoint
    node_rank: Number | None = None  # the node rank given by the user, if any
    rank_moves: bool = False  # ``node_rank`` is only a scheduler's, and the node has a domain, which takes precedence
    domain: Name = ""  # what the node shares with nodes near it, such as a switch or a rack; empty if unknown
    serves: bool = False  # whether it serves the endpoint
    last_round: Count = 0  # the node waits for a round with a higher number than this
    reason: Sentence = ""  # why it has left ``last_round`` behind, or why it is leaving the job
    store: tuple[Count, Name, Annotated[int, Meta(ge=1, le=65535)]] | None = None
    """(round, address, port) of the workers' store that it serves."""
    store_ready_round: Count = 0  # the round whose workers' store it has dialled
    candidate: bool = False  # ``store_ready_round`` is at work without this node, which wants to get in
    unreachable: Sentence = ""  # why it could not dial the workers' store of ``store_ready_round``
    cut_off_round: Count = 0  # the round to leave: its workers can no longer reach their store, or its session was lost
    finished_round: Count = 0  # the round in which its workers have succeeded
    heartbeat_wanted: Count = (
        0  # the probe that it requests: a worker has failed, and it wants to know whether a node was lost
    )
    heartbeat_answered: Count = 0  # the newest probe that it has answered
    leaving: Literal["", "done", "failed", "lost"] = ""
    known_round: Count = 0  # the newest round that it had heard of when its session began: the service may know less
    keeps: Assignment | None = None  # its place in a round that the service has forgotten, where its workers still run
    votes: Annotated[tuple[EpochVote, ...], Meta(max_length=MOST_VOTES)] = ()
    """One endpoint: its place in the newest round that it was in, which a service without memory does not know.

    Several endpoints: its place in its last complete round, and in all rounds that it has reached since.
    """
    server_rank: Rank = (
        -1
    )  # of the node of that round that served the endpoint (of several: the one left since); -1 if none
    last_led: tuple[Name, Count] | None = None
    """Several endpoints: the mark of the rounds that it began when it led last, in an earlier session.

    With it the newest of them that it may have declared complete. None that is newer ever was, or will be.
    """
    gone_server_rank: Rank = -1  # several endpoints: the same rank, if that node's process is gone
    checks: Annotated[tuple[CheckReport, ...], Meta(max_length=MOST_CHECKS)] = ()  # with --preflight: what it has found
    checked: Count = 0  # with --preflight: the newest round that was over when it did

    @property
    def firm_rank(self) -> int | None:
        """The node rank that it gets whatever else is known; None if it was given none."""
        return None if self.rank_moves else self.node_rank

    @property
    def newest(self) -> int:
        """The newest round in which it has done anything, or of which it has heard."""
        numbers = [vote.round for vote in self.votes]
        numbers += [self.store[0]] if self.store else []
        numbers += [self.keeps.round] if self.keeps else []
        return max(self.last_round, self.store_ready_round, self.known_round, *numbers)

    @property
    def is_broken(self) -> bool:
        """With --preflight: whether it says so itself."""
        return any(check.verdict == "broken" for check in self.checks)

    @property
    def kept(self) -> Assignment | None:
        """The place that it keeps until it has left that round."""
        return self.keeps if self.keeps is not None and self.last_round < self.keeps.round else None

    @property
    def name(self) -> str:
        """The name used for the node in messages."""
        return _name(self.host, self.node_rank, self.pid)

    def place_in(self, round_: int, rank: int, world: int) -> Assignment:
        """The node's place in a round of ``world`` nodes; nothing is known of the workers' store yet."""
        return Assignment(
            round=round_,
            rank=rank,
            world=world,
            node_id=self.node_id,
            host=self.host,
            machine=self.machine,
            pid=self.pid,
            address=self.address,
            nproc=self.nproc,
            node_rank=self.node_rank,
            domain=self.domain,
        )


class Round(Record, frozen=True):
    """A declared round. ``complete``: its nodes work; ``over``: they stop and join again; ``failed``: the job ends."""

    number: Count = 0
    state: Literal["none", "complete", "over", "failed"] = "none"
    world: Number = 0
    reason: Sentence = ""
    cause: Literal["", "lost", "asked", "came"] = ""  # why it is over: a member was lost, asked for it, or has come
    master_addr: Name = ""  # the address of the workers' store, which a node that wants to get in dials first
    master_port: Port = 0
    epoch: Name = ""  # several endpoints: who began the round, as in its places (``Assignment``)
    server_rank: Rank = -1  # the rank of the node that serves the endpoint where this was declared; -1 if none does
    unfit: bool = False  # whether the round failed because its nodes have not passed their preflight

    @property
    def vote(self) -> EpochVote:
        """Nobody's: that the round was declared binds those who did so, whoever else carries a vote in it."""
        return EpochVote(self.number, -1, self.world, _where(self), True)

    def is_of(self, place: Assignment) -> bool:
        """Whether ``place``, in a round of that number, is in this one: another may have been given its number."""
        whose = place.master_addr, place.master_port, place.epoch
        return whose == (self.master_addr, self.master_port, self.epoch)


class Finishing(Record, frozen=True):
    """A node of ``round`` was done and has left: the others are about to be done, too."""

    round: Count = 0
    by: Name = ""


class OperatorMessage(Record, frozen=True):
    """Something about another node that people should know."""

    text: Sentence = ""


class Heartbeat(Record, frozen=True):
    """A request for a sign of life. ``number`` counts up; ``answered``: every node of ``round`` has given one."""

    number: Count = 0
    round: Count = 0
    answered: bool = False


def vote_of(place: Assignment, *, complete: bool) -> EpochVote:
    """What a node carries as its place in a round."""
    return EpochVote(place.round, place.rank, place.world, _where(place), complete)


def votes_reached(votes: tuple[EpochVote, ...], place: Assignment) -> tuple[EpochVote, ...]:
    """What a node carries once it is about to say that it has reached the store of ``place``."""
    reached = any(each.which == place.which for each in votes)
    return votes if reached else (*votes, vote_of(place, complete=False))


def votes_complete(votes: tuple[EpochVote, ...], place: Assignment) -> tuple[EpochVote, ...]:
    """What a node carries once it has heard that the round of ``place``, which it has reached, was complete.

    Nothing before it binds. What the node has reached since does: then it has to go on from there, not in this round.
    """
    at = next((at for at, each in enumerate(votes) if each.which == place.which), -1)
    return (vote_of(place, complete=True), *votes[at + 1 :])


def _where(round_: Assignment | Round) -> str:
    return f"{round_.master_addr} {round_.master_port} {round_.epoch}"


def _name(host: str, node_rank: int | None, pid: int) -> str:
    rank = f"node rank {node_rank}, " if node_rank is not None else ""
    return f"{host} ({rank}pid {pid})"


def encode(value: Record) -> bytes:
    """Encode the value as compact JSON; fields with their default value are left out.

    It can always be decoded: what UTF-8 cannot represent is escaped, and what is too long for a sentence is cut.
    """
    try:
        text = _ENCODER.encode(value)
    except UnicodeEncodeError:  # a reason may quote a path or an argument that is not valid text
        return encode(_with_texts(value, _shown))
    # the leader's reason may be a node's, already of the maximum length, plus that node's name
    return text if len(text) <= LONGEST else _ENCODER.encode(_with_texts(value, _cut))


def decode(cls: type[R], text: bytes) -> R:
    """Decode a value of that kind from its JSON, with its texts made safe to display.

    Raises ``ValueError`` for anything else, so that a value from another version or a stranger does not fail later.
    """
    try:
        value: R = _DECODERS[cls].decode(text)
        shown = text.decode()
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        raise ValueError(f"not a {cls.__name__}{_whose(text)}: {printable(str(error), 2 * _SHOWN)}") from None
    if "\\" in shown or not shown.isprintable():
        value = _with_texts(value, _shown)
    return value


def readable(cls: type[R], held: Iterable[KeyValue]) -> Iterator[R]:
    """Yield the values that can be read; logs a line for each of the others."""
    for kv in held:
        try:
            yield decode(cls, kv.value)
        except ValueError as error:
            logger.warning("cannot read key '%s' of the rendezvous: %s", printable(kv.key, _SHOWN), error)


def restarts_of(held: Iterable[KeyValue]) -> dict[int, str]:
    """The notes below ``RESTARTS``, by round. Keys of any other form are left out."""
    rounds = ((kv.key.removeprefix(RESTARTS), kv.value) for kv in held)
    return {int(number): value.decode(errors="replace") for number, value in rounds if is_round(number)}


def is_round(text: str) -> bool:
    """Whether ``text`` is the number of a round: ``int`` raises for thousands of digits, which a stranger may write."""
    return text.isdecimal() and len(text) <= _MOST_DIGITS


_ENCODER = msgspec.json.Encoder()

_DECODERS: dict[type[Record], msgspec.json.Decoder[Any]] = {
    cls: msgspec.json.Decoder(cls)
    for cls in (Assignment, LeaderInfo, Member, Round, Finishing, OperatorMessage, Heartbeat)
}
"""Made while this is imported: msgspec 0.22 crashes when two threads make the first of a class at the same time."""


def _with_texts(value: Any, change: Callable[[str], str]) -> Any:
    """Return the value with ``change`` applied to each of its texts."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, tuple):
        return tuple(_with_texts(each, change) for each in value)
    if isinstance(value, Record):
        return type(value)(*(_with_texts(getattr(value, name), change) for name in value.__struct_fields__))
    return value


def _shown(text: str) -> str:
    """Return the text without anything that would control a terminal."""
    return text if text.isprintable() else printable(text)


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."


def _whose(text: bytes) -> str:
    """The node that the text is about, as far as it says."""
    data: Any = None
    with contextlib.suppress(msgspec.MsgspecError, RecursionError, ValueError):
        data = msgspec.json.decode(text)
    known = [
        printable(f"{name} {data[name]}", _SHOWN) for name in ("host", "pid") if isinstance(data, dict) and name in data
    ]
    return f" ({', '.join(known)})" if known else ""


def list_and_watch(
    session: Session,
    prefix: str,
    begin: Callable[[Sequence[KeyValue]], object],
    on_events: OnEvents,
    ask: Callable[[Callable[[float], Any]], Any],
    *,
    watched: str = "",
) -> Watch:
    """Tell ``begin`` which keys there are, and then ``on_events`` all that happens to them; returns the watch.

    ``ask`` makes a request, which it gives its time-out. ``watched`` is a longer prefix, if not all of it is watched.
    The service may have forgotten already what came after the list: then it is made again, and ``begin`` is told anew.
    """
    for left in reversed(range(_MOST_LISTS)):
        held, revision = ask(lambda timeout: session.list(prefix, timeout=timeout))
        begin(held)
        try:
            watch: Watch = ask(
                lambda timeout, after=revision: session.watch(  # type: ignore[misc]
                    watched or prefix, on_events, after=after, timeout=timeout
                )
            )
            return watch
        except Compacted:
            if not left:  # it always says so
                raise
    raise AssertionError
