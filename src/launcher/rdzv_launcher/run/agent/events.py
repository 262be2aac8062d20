"""What an agent hears: the events passed to ``AgentStateMachine``. Values without behaviour, for any thread."""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

# what the supervisor says of it is what the agent hears
from rdzv_launcher.run.supervisor.messages import WorkerEnded as WorkerEnded
from rdzv_plugins.interfaces import Failure
from rdzv_plugins.runtime import Signals


class AgentEvent(Struct, frozen=True):
    """Any event but ``WorkerEnded``."""


class Joined(AgentEvent, frozen=True):
    """``Join`` is done: this node has its place in a complete round, and its workers have their ranks."""

    node_rank: int


class RoundOver(AgentEvent, frozen=True):
    """``Join`` failed: the round was over before the ranks were known."""


class DoneWithout(AgentEvent, frozen=True):
    """``Join`` failed: the job is done without this node, which was a spare, or was left out in the end."""


class StartFailed(AgentEvent, frozen=True):
    """``Start`` failed: none of the workers runs, and neither does anything that they started."""

    error: Exception


class GroupEnded(AgentEvent, frozen=True):
    """All of a generation have ended, after ``WorkerEnded`` of each, and all that was left in their sessions."""

    generation: int
    background: bool = False
    """And what was left in sessions of its own, because ``Stop`` has asked for that, too."""


class Fenced(AgentEvent, frozen=True):
    """This node's session has ended, and its workers were killed because of that: their ends are not failures."""


class Stuck(AgentEvent, frozen=True):
    """A worker has been in uninterruptible sleep (state D) for too long."""

    local_rank: int
    pid: int
    seconds: float


class Hung(AgentEvent, frozen=True):
    """No worker of the job has made progress for as long as the user allows."""

    generation: int
    """The generation of the ``Start`` of this node's workers."""
    failure: Failure
    """The worker that is different, on whichever node."""


class NodesWait(AgentEvent, frozen=True):
    """While the workers run: the nodes of the round change, or another node restarts its workers."""


class PeersAnswered(AgentEvent, frozen=True):
    """The answer to ``AskPeers``."""

    lost: bool
    """The workers failed because a node was lost."""


class RestartAllowed(AgentEvent, frozen=True):
    """An answer to ``CountRestart``: the workers may be restarted."""

    delay: float = 0.0
    """Seconds to wait before the restart."""


class RestartRefused(AgentEvent, frozen=True):
    """An answer to ``CountRestart``: the job ends here, although this node has restarts left."""

    failure: Failure
    """The worker that failed first over all nodes."""
    reason: str
    """The failure in a sentence."""
    why: str
    """Why the worker is not restarted, in a sentence."""
    exit_code: int = 0
    """The exit code of all nodes; 0: the code of the failure."""


class CauseFound(AgentEvent, frozen=True):
    """The answer to ``FindCause``: the worker that failed first over all nodes."""

    failure: Failure
    reason: str
    """The failure in a sentence."""


class BarrierOver(AgentEvent, frozen=True):
    """``WaitAtBarrier`` is over: all are done, or those who are not are no longer waited for."""


class MustRunAgain(AgentEvent, frozen=True):
    """In the exit barrier: another node restarts its workers, so those of this node have to run again, too."""


class Stayed(AgentEvent, frozen=True):
    """``Stay`` is over: nobody needs this node any more."""


class Failed(AgentEvent, frozen=True):
    """Whatever was asked of the rendezvous has raised: it has failed, was closed, or the job has ended elsewhere."""

    error: Exception


class SignalArrived(AgentEvent, frozen=True):
    """This process got a signal that it handles."""

    number: Signals


class NoticeAnswered(AgentEvent, frozen=True):
    """What has come of ``GiveNotice`` so far; may come several times."""

    go_on: bool
    """The other nodes are enough to go on without this one, and without those that leave with it."""
    saved: bool
    """The workers of all nodes have saved what they wanted to."""


class GraceOver(AgentEvent, frozen=True):
    """The time that ``GiveNotice`` gave the workers is over."""


class TimePassed(AgentEvent, frozen=True):
    """The time given by ``AgentStateMachine.wake_at`` has come."""


Event: TypeAlias = AgentEvent | WorkerEnded
