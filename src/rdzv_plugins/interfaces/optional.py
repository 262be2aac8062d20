"""What a handler may offer beyond ``RendezvousHandler``: each a protocol of its own, found by its methods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

from rdzv_plugins.interfaces.node_check import NodeCheck
from rdzv_plugins.interfaces.outcome import Failure, Outcome
from rdzv_plugins.interfaces.round_event import TellEvent


@runtime_checkable
class JobAware(Protocol):
    """Optional methods of a handler: telling the other nodes why, and hearing it from them.

    ``note_failure`` may be called from any thread; the rest from the agent's main thread.
    """

    def note_failure(self, failure: Failure) -> None:
        """Record a worker's failure. The first one of a round, over all nodes, is kept."""
        ...

    def first_failure(self) -> Failure | None:
        """The first failure of the current round, from whichever node."""
        ...

    def must_rejoin(self) -> bool:
        """True when a node of this round restarts its workers and needs all others to do so too."""
        ...

    def raise_if_ended(self) -> None:
        """Raise the reason if the job has failed elsewhere or the rendezvous is lost. Sends nothing."""
        ...

    def leave(self, outcome: Outcome) -> None:
        """Tell the others how this node ends. Called once, before ``shutdown``."""
        ...


@runtime_checkable
class RestartAware(Protocol):
    """Optional method of a handler that counts restarts over all nodes. For the agent's main thread."""

    def count_restart(self, note: str) -> Sequence[str]:
        """The workers of the current round have failed, and are to be restarted: count that, with a note of it.

        Each round counts once, with the note that comes first. Returns the notes of all rounds that count, in their
        order; that of the current one is the last. Raises ``ConnectionLost``, ``StoreError`` or ``TimeoutError`` if
        nobody can be asked.
        """
        ...


@runtime_checkable
class PreflightAware(Protocol):
    """Optional method of a handler whose nodes decide together who is fit to take part. For the agent's main thread."""

    def note_checks(self, checks: Sequence[NodeCheck]) -> None:
        """What this node has found of itself; ``next_rendezvous`` follows, and measures what the request asks for.

        Called before each of them, if it asks for anything.
        """
        ...


@runtime_checkable
class WaitAware(Protocol):
    """Optional method of a handler that knows what it waits for. Any thread; it sends nothing."""

    def waits_for(self) -> str:
        """While ``next_rendezvous`` waits: who is there and who is missing, a sentence. Empty while nobody knows."""
        ...


@runtime_checkable
class EventAware(Protocol):
    """Optional method of a handler that knows when what has happened to its rounds."""

    def tell_events(self, tell: TellEvent) -> None:
        """From now on tell each ``RoundEvent`` at once, in order, each once. Called before the first round.

        Without this a timeline has the rounds as the agent sees them: numbered from 1 on each node by itself, and
        complete when ``next_rendezvous`` returns.
        """
        ...


@runtime_checkable
class MembershipAware(Protocol):
    """Optional methods of a handler that knows which nodes live. For the agent's main thread."""

    def note_done(self) -> None:
        """This node's workers have all succeeded; it waits for those of the others."""
        ...

    def note_leaving(self, reason: str) -> None:
        """This node is about to stop its workers and leave: their peers will fail, and not by themselves."""
        ...

    def peer_lost(self) -> bool:
        """A worker has failed here: True if that is because the nodes of the round have changed. May wait."""
        ...


@runtime_checkable
class PeerAware(Protocol):
    """Optional methods of a handler that knows which nodes still work. For the agent's main thread."""

    def working_peers(self) -> Sequence[str]:
        """The other nodes of the round that are known to live, and not to be done, by name. May take some seconds."""
        ...

    def lost_peers(self) -> Sequence[str]:
        """The other nodes of the round that are gone, each with what is known of its end. Called after a worker failed.

        May take some seconds. What a handler has told by ``peer_lost`` it need not tell again.
        """
        ...

    def stay(self) -> None:
        """This node is done and about to leave: wait while others work that need what it serves, however long.

        Called once, before ``leave``. A signal ends it. Raises the reason if the job fails elsewhere meanwhile.
        """
        ...


@runtime_checkable
class EnvironmentAware(Protocol):
    """Optional method of a handler whose workers need to know more than torch's agent tells them."""

    def worker_env(self) -> Mapping[str, str]:
        """Variables for each worker of the current round. Called before the workers are started."""
        ...
