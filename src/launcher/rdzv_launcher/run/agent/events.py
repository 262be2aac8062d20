"""What an agent hears: the events passed to ``Decisions``. Values without behaviour, for any thread."""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

from rdzv_launcher.run.keeper.messages import (
    WorkerEnded as WorkerEnded,  # what the keeper says of it is what the agent hears
)
from rdzv_plugins.interfaces import Failure
from rdzv_plugins.runtime import Signals


class Joined(Struct, frozen=True):
    """``Join`` is done: this node has its place in a complete round, and its workers have their ranks."""

    node_rank: int


class RoundOver(Struct, frozen=True):
    """``Join`` failed: the round was over before the ranks were known."""


class DoneWithout(Struct, frozen=True):
    """``Join`` failed: the job is done without this node, which was a spare, or was left out in the end."""


class StartFailed(Struct, frozen=True):
    """``Start`` failed: none of the workers runs, and neither does anything that they started."""

    error: Exception


class GroupEnded(Struct, frozen=True):
    """All of a generation have ended, after ``WorkerEnded`` of each, and all that was left in their sessions."""

    generation: int
    background: bool = False
    """And what was left in sessions of its own, because ``Stop`` has asked for that, too."""


class Fenced(Struct, frozen=True):
    """This node's session has ended, and its workers were killed because of that: their ends are not failures."""


class Stuck(Struct, frozen=True):
    """A worker has been in uninterruptible sleep (state D) for too long."""

    local_rank: int
    pid: int
    seconds: float


class Hung(Struct, frozen=True):
    """No worker of the job has made progress for as long as the user allows."""

    generation: int
    """The generation of the ``Start`` of this node's workers."""
    failure: Failure
    """The worker that is different, on whichever node."""


class NodesWait(Struct, frozen=True):
    """While the workers run: the nodes of the round change, or another node restarts its workers."""


class PeersAnswered(Struct, frozen=True):
    """The answer to ``AskPeers``."""

    lost: bool
    """The workers failed because a node was lost."""


class RestartAllowed(Struct, frozen=True):
    """An answer to ``CountRestart``: the workers may be restarted."""

    delay: float = 0.0
    """Seconds to wait before the restart."""


class RestartRefused(Struct, frozen=True):
    """An answer to ``CountRestart``: the job ends here, although this node has restarts left."""

    failure: Failure
    """The worker that failed first over all nodes."""
    reason: str
    """The failure in a sentence."""
    why: str
    """Why the worker is not restarted, in a sentence."""
    exit_code: int = 0
    """The exit code of all nodes; 0: the code of the failure."""


class CauseFound(Struct, frozen=True):
    """The answer to ``FindCause``: the worker that failed first over all nodes."""

    failure: Failure
    reason: str
    """The failure in a sentence."""


class BarrierOver(Struct, frozen=True):
    """``WaitAtBarrier`` is over: all are done, or those who are not are no longer waited for."""


class MustRunAgain(Struct, frozen=True):
    """In the exit barrier: another node restarts its workers, so those of this node have to run again, too."""


class Stayed(Struct, frozen=True):
    """``Stay`` is over: nobody needs this node any more."""


class Failed(Struct, frozen=True):
    """Whatever was asked of the rendezvous has raised: it has failed, was closed, or the job has ended elsewhere."""

    error: Exception


class SignalArrived(Struct, frozen=True):
    """This process got a signal that it handles."""

    number: Signals


class NoticeAnswered(Struct, frozen=True):
    """What has come of ``GiveNotice`` so far; may come several times."""

    go_on: bool
    """The other nodes are enough to go on without this one, and without those that leave with it."""
    saved: bool
    """The workers of all nodes have saved what they wanted to."""


class GraceOver(Struct, frozen=True):
    """The time that ``GiveNotice`` gave the workers is over."""


class TimePassed(Struct, frozen=True):
    """The time given by ``Decisions.wake_at`` has come."""


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
