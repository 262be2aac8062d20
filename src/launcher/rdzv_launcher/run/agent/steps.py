"""What an agent does: the steps that ``Decisions`` asks for. Values without behaviour.

Of several steps at once, only the last may be one that is answered: ``Join``, ``Start``, ``AskPeers``,
``CountRestart``, ``FindCause``, ``WaitAtBarrier``, ``Stay``. The answer may also be ``Failed``, or missing if a signal
came in between.
"""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

from rdzv_plugins.interfaces import Failure, Outcome
from rdzv_plugins.runtime import Signals


class Join(Struct, frozen=True):
    """Join a round and exchange ranks. Answered by ``Joined``, ``RoundOver`` or ``DoneWithout``."""


class Start(Struct, frozen=True):
    """Start all workers of this node. Answered only if that is not possible, by ``StartFailed``."""

    generation: int
    """Counts the starts on this node, from 1."""
    restarts_used: int
    """How many of --max-restarts are used; a start after a change of membership uses none."""


class Report(Struct, frozen=True):
    """Tell the others, without waiting, that this worker has failed, the first one of its generation here."""

    local_rank: int
    exit_code: int


class ReportHang(Struct, frozen=True):
    """Tell the others, without waiting, that the job hangs: it counts as the first failure of the round."""

    failure: Failure
    """The worker that is different, on whichever node."""


class Stop(Struct, frozen=True):
    """Send a signal to the workers, and to what is left in their sessions. ``GroupEnded`` reports their end."""

    number: Signals
    seconds: float
    """Workers that have not ended after this time are killed."""
    background: bool = False
    """Also to what they have started in sessions of its own: nothing is started here any more."""


class Kill(Struct, frozen=True):
    """Send SIGKILL to everything that this agent has started, at once."""


class AskPeers(Struct, frozen=True):
    """The workers have failed: was a node lost? Answered by ``PeersAnswered``."""


class CountRestart(Struct, frozen=True):
    """The workers have failed by themselves, and this node has a restart left: does the job have one, too?

    Answered by ``RestartAllowed`` or ``RestartRefused``. The fields are those of ``FindCause``.
    """

    local_rank: int
    exit_code: int


class FindCause(Struct, frozen=True):
    """The job fails here: because of which worker? Answered by ``CauseFound``, or ``Failed`` if a node was lost.

    ``local_rank`` and ``exit_code`` belong to the first failure on this node.
    """

    local_rank: int
    exit_code: int


class WaitAtBarrier(Struct, frozen=True):
    """The workers here have succeeded: wait for those of others. Answered by ``BarrierOver`` or ``MustRunAgain``."""


class Stay(Struct, frozen=True):
    """Wait while others need what this node serves. Answered by ``Stayed``."""


class GiveNotice(Struct, frozen=True):
    """Tell the workers of all nodes that this one is about to leave. Waits for nobody.

    ``NoticeAnswered`` reports what comes of it; ``GraceOver`` follows after ``seconds``, whatever the agent does then.
    """

    reason: str
    seconds: float


class NoteLeaving(Struct, frozen=True):
    """Tell the others, before the workers are stopped, that this node leaves: their workers will fail, too."""

    reason: str


class Say(Struct, frozen=True):
    """Print a line for people."""

    text: str
    warning: bool = False


class Leave(Struct, frozen=True):
    """Tell the others how this node ends, and let go of the rendezvous."""

    outcome: Outcome


class End(Struct, frozen=True):
    """The last step: the process ends with ``exit_code``."""

    exit_code: int
    outcome: Outcome
    error: Exception | None = None
    """The error that ended this node, if there was one: it says more than the outcome."""
    signal: Signals | None = None


Step: TypeAlias = (
    Join
    | Start
    | Report
    | ReportHang
    | Stop
    | Kill
    | AskPeers
    | CountRestart
    | FindCause
    | WaitAtBarrier
    | Stay
    | GiveNotice
    | NoteLeaving
    | Say
    | Leave
    | End
)
