"""A node's part in the rendezvous under full control: the handler, what its rounds result in, and how they end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, runtime_checkable

from msgspec import Struct

if TYPE_CHECKING:
    from rdzv_plugins.questions import NodeRpc


class StoreAddress(Protocol):
    """Where the workers of a round find their store (torch: ``RendezvousStoreInfo``)."""

    @property
    def master_addr(self) -> str:
        """Host name or address, as the workers get it in MASTER_ADDR."""

    @property
    def master_port(self) -> int:
        """TCP port, as the workers get it in MASTER_PORT."""


class RendezvousInfo(Protocol):
    """The result of one round (torch: ``RendezvousInfo``).

    ``store`` is private to the round and to the agents; ``rank`` and ``world_size`` count nodes, not workers.
    ``RoundInfo`` is one that needs no torch.
    """

    @property
    def store(self) -> Any:
        """A ``store.Store``, or a ``torch.distributed.Store``, which is converted. As thread-safe as torch's own."""

    @property
    def rank(self) -> int:
        """The rank of this node, from 0."""

    @property
    def world_size(self) -> int:
        """The number of nodes of the round."""

    @property
    def bootstrap_store_info(self) -> StoreAddress | None:
        """Where the workers' store is; None leaves it to the first worker to serve one."""


@dataclass(frozen=True)
class StoreInfo:
    """Where the workers of a round find their store (torch: ``RendezvousStoreInfo``)."""

    master_addr: str
    """Host name or address, as the workers get it in MASTER_ADDR."""
    master_port: int
    """TCP port, as the workers get it in MASTER_PORT."""


@dataclass(frozen=True)
class RoundInfo:
    """One round as a node sees it (torch: ``RendezvousInfo``). Nodes are counted, not workers."""

    store: Any
    """The agents' store of the round: a ``Store``, or one of torch's."""
    rank: int
    """The rank of this node, from 0."""
    world_size: int
    """The number of nodes of the round."""
    bootstrap_store_info: StoreInfo | None = None
    """Where the workers' store is; None leaves it to the first worker to serve one."""


class RoundEvent(Struct, frozen=True):
    """Something that happened to a round, as this node sees it; reported at the moment when it happens.

    ``placed``: this node has been told its rank. ``served``: it serves the workers' store; reported before the others
    are told about the store. ``reached``: it can dial that store; reported before the others are told. ``complete``:
    every node of the round has joined and reached the store. ``over``: the round does not go on.
    """

    kind: Literal["placed", "served", "reached", "complete", "over"]
    round: int
    """The round's number, from 1; the same on all nodes."""
    rank: int | None = None
    """This node's rank in the round, if it is known."""
    world: int | None = None
    """The number of the round's nodes, if it is known."""
    reason: str = ""
    """Why the round is over, as a sentence; empty for other kinds."""
    cause: Literal["", "lost", "asked", "came"] = ""
    """Why the round is over: ``lost``, ``asked`` or ``came``; empty for other kinds.

    A node was lost, asked for a new round, or has come.
    """


TellEvent: TypeAlias = Callable[[RoundEvent], None]
"""Gets each event. Returns at once and raises nothing; any thread may call it."""


@dataclass(frozen=True)
class Failure:
    """The end of a failed worker. ``exit_code`` is negative for a signal, as in ``subprocess``. Immutable."""

    node_rank: int
    """The rank, in the round that failed, of the node on which the worker ran; ``host`` is that node's name."""
    host: str
    global_rank: int
    local_rank: int
    pid: int
    exit_code: int
    stderr: tuple[str, ...] = ()
    """The last lines of its standard error, at most a few kilobytes."""
    cause: str = ""
    """Anything else that is known about its end, as a sentence, for example an out-of-memory kill. May be empty."""

    hang: str = ""
    """Where the worker stood, starting with a verb, if it differed from the others in a job that hung. Then it had not
    ended, and ``exit_code`` is that of ``JobHung``. Empty: it ended by itself.
    """

    @property
    def process_exit_code(self) -> int:
        """The exit code that a shell would report: the code itself, or 128+n for signal n."""
        return 128 - self.exit_code if self.exit_code < 0 else self.exit_code


@dataclass(frozen=True)
class Outcome:
    """How this node's part in the job ended. Immutable.

    ``done``: its workers succeeded. ``failed``: restarts are used up, the job is over for everybody. ``lost``: the node
    leaves (a signal, an error of its own), and the others may go on without it.
    """

    end: Literal["done", "failed", "lost"]
    reason: str = ""
    """A sentence, for the others and for the log."""
    failure: Failure | None = None
    """The worker that failed first on any node, if one did."""
    why: str = ""
    """Why the job failed although restarts were left, as a sentence; empty if none were left."""
    exit_code: int = 0
    """The exit code of every node of the job; 0: that of ``failure``."""


@dataclass(frozen=True)
class NodeCheck:
    """The condition of one part of a node, as its preflight found it. Immutable."""

    name: str
    """What was checked, in a word or two; unique on its node, and the same on all nodes."""
    verdict: Literal["ok", "warning", "broken"] = "ok"
    """``broken``: a job should not use this node. ``warning``: it may, but the finding is reported."""
    text: str = ""
    """The finding, as a sentence that does not repeat the name."""
    value: float | None = None
    """A figure to compare with the other nodes', where more is better; None if there is none.

    Among at least three nodes, one is slow if its value is less than the median divided by ``preflight_factor``.
    """
    unit: str = ""
    """The unit of ``value``, for example ``GB/s``."""


class Holding(Protocol):
    """How long a node's round is sure to hold: an optional attribute of a handler, named ``holding``.

    Reading it sends nothing. Thread-safe.
    """

    @property
    def ttl(self) -> float:
        """Seconds without a sign of life after which the service counts a node as lost."""

    def until(self) -> float:
        """The time until which the round is sure to hold, as ``rdzv_plugins.clock.now`` counts; 0 when it is over.

        Infinite for a session that cannot say.
        """

    def ended(self) -> bool:
        """True once the session with which this node joined its round is known to have ended."""

    def sure(self) -> bool:
        """True if the session with which this node joined is known to live now, so nobody else acts in its place."""

    def confirm(self, timeout: float) -> bool:
        """Ask the service, for at most ``timeout`` seconds; True if its answer shows that the session lives."""

    def wait_for_news(self, timeout: float) -> None:
        """Return when something may have changed, or after ``timeout`` seconds."""

    def on_news(self, call: Callable[[], None] | None) -> None:
        """Register a function that gets all news of a round before anybody else does. It returns at once."""


@runtime_checkable
class TorchHandler(Protocol):
    """What a handler of torch has, or an object like one: ``create`` may return it as it is.

    Of such a handler nothing is known but its rounds; a ``RendezvousHandler`` has the same methods, and more.
    """

    def get_backend(self) -> str: ...

    @property
    def use_agent_store(self) -> bool: ...

    def next_rendezvous(self) -> RendezvousInfo: ...

    def is_closed(self) -> bool: ...

    def set_closed(self) -> None: ...

    def num_nodes_waiting(self) -> int: ...

    def get_run_id(self) -> str: ...

    def shutdown(self) -> bool: ...


class RendezvousHandler(ABC):
    """Full control over a node's part in the rendezvous; one instance per agent. The base class of every handler.

    What is abstract is what torch asks of a handler. Everything else is optional, and does nothing here: a handler
    overrides what it has more to say about.

    The agent calls it from its main thread only, except ``note_failure`` and ``waits_for``. Only these may wait for
    others: ``next_rendezvous``, ``peer_lost``, ``working_peers``, ``lost_peers``, ``stay``, ``leave``. It raises
    ``RendezvousFailed`` or a subclass, which torch's agent sees as the corresponding error of torch; or torch's errors
    themselves.
    """

    @abstractmethod
    def get_backend(self) -> str:
        """The name of the backend."""

    @property
    @abstractmethod
    def use_agent_store(self) -> bool:
        """True when the workers are clients of a store that an agent hosts (the usual way)."""

    @abstractmethod
    def next_rendezvous(self) -> RendezvousInfo:
        """Block until this node is part of a complete round.

        Each call gives the workers a store without any key of an earlier round. Raises ``RendezvousClosed``,
        ``EndpointUnreachable``, ``RendezvousTimeout`` or another ``RendezvousFailed`` (or torch's corresponding error),
        which says who is missing.
        """

    @abstractmethod
    def is_closed(self) -> bool:
        """True once the job has ended for everybody."""

    @abstractmethod
    def set_closed(self) -> None:
        """End the job for everybody."""

    @abstractmethod
    def num_nodes_waiting(self) -> int:
        """More than 0 when the agent should restart its workers and join a new round.

        Called every ``monitor_interval`` (0.1 s). May raise when the job has failed elsewhere.
        """

    @abstractmethod
    def get_run_id(self) -> str:
        """The id that all nodes of the job share."""

    @abstractmethod
    def shutdown(self) -> bool:
        """Release all resources. True on success."""

    # How workers and nodes end: who tells the other nodes, and is told by them

    def note_failure(self, failure: Failure) -> None:
        """Record a worker's failure. The first one of a round, over all nodes, is kept. Any thread may call it."""

    def first_failure(self) -> Failure | None:
        """The first failure of the current round, from whichever node; None if there is none, or nobody knows."""
        return None

    def count_restart(self, note: str) -> Sequence[str]:
        """Count a restart, with a note about it: the workers of the current round have failed and will be restarted.

        Each round counts once, with the first note that arrives. Returns the notes of all rounds that count, in order,
        the current one's last; nothing if restarts are not counted over all nodes: then this node counts its own.
        Raises ``ConnectionLost``, ``StoreError`` or ``TimeoutError`` if nobody can be asked.
        """
        return ()

    def must_rejoin(self) -> bool:
        """True when a node of this round restarts its workers and needs all others to do so too."""
        return False

    def raise_if_ended(self) -> None:
        """Raise the reason if the job has failed elsewhere or the rendezvous is lost. Sends nothing."""

    def note_done(self) -> None:
        """Note that this node's workers have all succeeded; it waits for those of the others."""

    def note_leaving(self, reason: str) -> None:
        """Note that this node is about to stop its workers and leave: peers that fail are not at fault."""

    def leave(self, outcome: Outcome) -> None:
        """Tell the others how this node ends. Called once, before ``shutdown``."""

    # The other nodes

    def peer_lost(self) -> bool:
        """Say whether a worker's failure here is due to a change among the round's nodes. May wait."""
        return False

    def lost_peers(self) -> Sequence[str]:
        """The round's other nodes that are gone, each with what is known about its end. Called after a worker failed.

        May take some seconds. Losses that ``peer_lost`` has reported need not be repeated.
        """
        return ()

    def working_peers(self) -> Sequence[str]:
        """The names of the round's other nodes that are known to be alive and not done. May take some seconds."""
        return ()

    def stay(self) -> None:
        """Wait, however long, while others that need what this node serves are working: it is done and about to leave.

        Called once, before ``leave``. A signal ends the wait. Raises the reason if the job fails elsewhere meanwhile.
        """

    questions: NodeRpc | None = None
    """What carries questions between the job's nodes (``rdzv_plugins.questions``); None if nothing does."""

    # The round

    holding: Holding | None = None
    """How long this node's round is sure to hold, for the fence around its workers; None if nobody can tell."""

    def check_by(self, checks: Callable[[], Sequence[NodeCheck]]) -> bool:
        """Note how this node tests itself: True if the handler's nodes decide together who is fit to take part.

        Then ``next_rendezvous`` calls ``checks`` before each round for which it waits. They take a second or two and
        raise as the hook ``rdzv_preflight``. Called before each ``next_rendezvous`` if the request asks for any checks.
        False: they are made once before it, and a node that is broken ends.
        """
        return False

    def waits_for(self) -> str:
        """Say who is there and who is missing while ``next_rendezvous`` waits, in a sentence; empty while unknown.

        Any thread may call it; it sends nothing.
        """
        return ""

    def tell_events(self, tell: TellEvent) -> None:
        """From now on tell each ``RoundEvent`` at once, in order, each once. Called before the first round.

        Without this, a timeline has the rounds as the agent sees them: numbered from 1 on each node separately, and
        complete when ``next_rendezvous`` returns.
        """

    def worker_env(self) -> Mapping[str, str]:
        """Variables for each worker of the current round, more than torch's agent tells it.

        Called before the workers are started.
        """
        return {}


def must_join_again(handler: RendezvousHandler) -> bool:
    """Something of the round has failed here: True if this node has to join another round. May wait for the answer.

    While it is determined whether a node was lost, another may ask for a new round: that is no loss, but the round is
    over.
    """
    return handler.must_rejoin() or handler.peer_lost() or handler.must_rejoin()
