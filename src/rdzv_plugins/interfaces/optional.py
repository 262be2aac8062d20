"""What a handler may offer beyond ``RendezvousHandler``: separate protocols, recognised by their methods."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, runtime_checkable

from rdzv_plugins.interfaces.node_check import NodeCheck
from rdzv_plugins.interfaces.outcome import Failure, Outcome
from rdzv_plugins.interfaces.round_event import TellEvent


@runtime_checkable
class JobAware(Protocol):
    """Optional methods of a handler that tells the other nodes why something ended, and is told by them.

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
        """Count a restart, with a note about it: the workers of the current round have failed and will be restarted.

        Each round counts once, with the first note that arrives. Returns the notes of all rounds that count, in order,
        the current one's last. Raises ``ConnectionLost``, ``StoreError`` or ``TimeoutError`` if nobody can be asked.
        """
        ...


@runtime_checkable
class PreflightAware(Protocol):
    """Optional method of a handler whose nodes decide together who is fit to take part. For the agent's main thread."""

    def check_by(self, checks: Callable[[], Sequence[NodeCheck]]) -> None:
        """Note how this node tests itself, which takes a second or two and raises as the hook ``rdzv_preflight``.

        Called before each ``next_rendezvous`` if the request asks for any checks. That calls ``checks`` before each
        round for which it waits.
        """
        ...


@runtime_checkable
class WaitAware(Protocol):
    """Optional method of a handler that knows what it is waiting for. Any thread may call it; it sends nothing."""

    def waits_for(self) -> str:
        """Say who is there and who is missing while ``next_rendezvous`` waits, in a sentence; empty while unknown."""
        ...


@runtime_checkable
class EventAware(Protocol):
    """Optional method of a handler that knows what happened to its rounds, and when."""

    def tell_events(self, tell: TellEvent) -> None:
        """From now on tell each ``RoundEvent`` at once, in order, each once. Called before the first round.

        Without this, a timeline has the rounds as the agent sees them: numbered from 1 on each node separately, and
        complete when ``next_rendezvous`` returns.
        """
        ...


@runtime_checkable
class MembershipAware(Protocol):
    """Optional methods of a handler that knows which nodes live. For the agent's main thread."""

    def note_done(self) -> None:
        """Note that this node's workers have all succeeded; it waits for those of the others."""
        ...

    def note_leaving(self, reason: str) -> None:
        """Note that this node is about to stop its workers and leave: peers that fail are not at fault."""
        ...

    def peer_lost(self) -> bool:
        """Say whether a worker's failure here is due to a change among the round's nodes. May wait."""
        ...


@runtime_checkable
class PeerAware(Protocol):
    """Optional methods of a handler that knows which nodes are still working. For the agent's main thread."""

    def working_peers(self) -> Sequence[str]:
        """The names of the round's other nodes that are known to be alive and not done. May take some seconds."""
        ...

    def lost_peers(self) -> Sequence[str]:
        """The round's other nodes that are gone, each with what is known about its end. Called after a worker failed.

        May take some seconds. Losses that ``peer_lost`` has reported need not be repeated.
        """
        ...

    def stay(self) -> None:
        """Wait, however long, while others that need what this node serves are working: it is done and about to leave.

        Called once, before ``leave``. A signal ends the wait. Raises the reason if the job fails elsewhere meanwhile.
        """
        ...


@runtime_checkable
class EnvironmentAware(Protocol):
    """Optional method of a handler whose workers need to know more than torch's agent tells them."""

    def worker_env(self) -> Mapping[str, str]:
        """Variables for each worker of the current round. Called before the workers are started."""
        ...
