"""What an agent hears: the events that ``Decisions`` is told. Values without behaviour, for any thread."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import TypeAlias

from rdzv_plugins.interfaces import Failure


@dataclass(frozen=True)
class Joined:
    """``Join`` is done: this node has its place in a complete round, and its workers have their ranks."""

    node_rank: int


@dataclass(frozen=True)
class RoundOver:
    """``Join`` came to nothing: the round was over before the ranks were known."""


@dataclass(frozen=True)
class DoneWithout:
    """``Join`` came to nothing: the job is done without this node, which was a spare, or was left out at last."""


@dataclass(frozen=True)
class StartFailed:
    """``Start`` came to nothing: none of the workers runs, and nothing that they have started."""

    error: Exception


@dataclass(frozen=True)
class WorkerEnded:
    """A worker has ended. Its end is told once, and before the ``GroupEnded`` of its generation."""

    generation: int
    """That of the ``Start`` it belongs to."""
    local_rank: int
    exit_code: int
    """Negative for a signal, as in ``subprocess``."""


@dataclass(frozen=True)
class GroupEnded:
    """All workers of a generation have ended, and with them all that was left in their sessions."""

    generation: int


@dataclass(frozen=True)
class Fenced:
    """This node's session has ended, and its workers were killed for that: their ends are no failures."""


@dataclass(frozen=True)
class Stuck:
    """A worker has been in uninterruptible sleep (state D) for too long."""

    local_rank: int
    pid: int
    seconds: float


@dataclass(frozen=True)
class Hung:
    """No worker of the job has made progress for as long as the user gives them."""

    generation: int
    """That of the ``Start`` of this node's workers."""
    failure: Failure
    """The worker that is different, of whatever node."""


@dataclass(frozen=True)
class NodesWait:
    """While the workers run: the nodes of the round change, or another node restarts its workers."""


@dataclass(frozen=True)
class PeersAnswered:
    """The answer to ``AskPeers``."""

    lost: bool
    """The workers have failed because a node was lost."""


@dataclass(frozen=True)
class RestartAllowed:
    """An answer to ``CountRestart``: the workers may be restarted."""

    delay: float = 0.0
    """So many seconds later."""


@dataclass(frozen=True)
class RestartRefused:
    """An answer to ``CountRestart``: the job ends here, although this node has restarts left."""

    failure: Failure
    """The worker that failed first over all nodes."""
    reason: str
    """The failure in a sentence."""
    why: str
    """Why it is not restarted, in a sentence."""
    exit_code: int = 0
    """What all nodes end with; 0: the code of the failure."""


@dataclass(frozen=True)
class CauseFound:
    """The answer to ``FindCause``: the worker that failed first over all nodes."""

    failure: Failure
    reason: str
    """The failure in a sentence."""


@dataclass(frozen=True)
class BarrierOver:
    """``WaitAtBarrier`` is over: all are done, or those who are not are no longer waited for."""


@dataclass(frozen=True)
class MustRunAgain:
    """In the exit barrier: another node restarts its workers, so those of this one have to run again, too."""


@dataclass(frozen=True)
class Stayed:
    """``Stay`` is over: nobody needs this node any more."""


@dataclass(frozen=True)
class Failed:
    """Whatever was asked of the rendezvous has raised: it has failed, was closed, or the job has ended elsewhere."""

    error: Exception


@dataclass(frozen=True)
class SignalArrived:
    """This process got a signal that it handles."""

    number: signal.Signals


@dataclass(frozen=True)
class NoticeAnswered:
    """What has come of ``GiveNotice``, so far; may come several times."""

    go_on: bool
    """The other nodes are enough to go on without this one, and those that leave with it."""
    saved: bool
    """The workers of all nodes have saved what they wanted to."""


@dataclass(frozen=True)
class GraceOver:
    """The time that ``GiveNotice`` gave the workers is over."""


@dataclass(frozen=True)
class TimePassed:
    """The time that ``Decisions.wake_at`` named has come."""


Event: TypeAlias = (
    Joined
    | RoundOver
    | DoneWithout
    | StartFailed
    | WorkerEnded
    | GroupEnded
    | Fenced
    | Stuck
    | Hung
    | NodesWait
    | PeersAnswered
    | RestartAllowed
    | RestartRefused
    | CauseFound
    | BarrierOver
    | MustRunAgain
    | Stayed
    | Failed
    | SignalArrived
    | NoticeAnswered
    | GraceOver
    | TimePassed
)
