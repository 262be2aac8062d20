"""A node's part in the rendezvous under full control, and the result of a round."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from rdzv_plugins.interfaces.holding import Holding
from rdzv_plugins.interfaces.node_check import NodeCheck
from rdzv_plugins.interfaces.outcome import Failure, Outcome
from rdzv_plugins.interfaces.round_event import TellEvent

if TYPE_CHECKING:
    from rdzv_plugins.questions import Questions


class StoreAddress(Protocol):
    """Where the workers of a round find their store (torch: ``RendezvousStoreInfo``)."""

    @property
    def master_addr(self) -> str:
        """Host name or address, as the workers get it in MASTER_ADDR."""
        ...

    @property
    def master_port(self) -> int:
        """TCP port, as the workers get it in MASTER_PORT."""
        ...


class RendezvousInfo(Protocol):
    """The result of one round (torch: ``RendezvousInfo``).

    ``store`` is private to the round and to the agents; ``rank`` and ``world_size`` count nodes, not workers.
    ``round_info.RoundInfo`` is one that needs no torch.
    """

    @property
    def store(self) -> Any:
        """A ``store.Store``, or a ``torch.distributed.Store``, which is converted. As thread-safe as torch's own."""
        ...

    @property
    def rank(self) -> int:
        """The rank of this node, from 0."""
        ...

    @property
    def world_size(self) -> int:
        """The number of nodes of the round."""
        ...

    @property
    def bootstrap_store_info(self) -> StoreAddress | None:
        """Where the workers' store is; None leaves it to the first worker to serve one."""
        ...


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

    questions: Questions | None = None
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
