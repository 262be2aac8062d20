"""What an agent does: the steps that ``AgentStateMachine`` asks for. Values without behaviour.

Of several steps at once, only the last may be one that is answered: ``Join``, ``Start``, ``AskPeers``,
``CountRestart``, ``FindCause``, ``WaitAtBarrier``, ``Stay``. The answer may also be ``Failed``, or missing if a signal
came in between.
"""

from __future__ import annotations

from msgspec import Struct

from rdzv_plugins.errors import PeerFailed, Preempted, RdzvError, WorkersStuck
from rdzv_plugins.interfaces import Failure, Outcome
from rdzv_plugins.runtime import Signals


class Step(Struct, frozen=True):
    """What an agent does next."""


class Join(Step, frozen=True):
    """Join a round and exchange ranks. Answered by ``Joined``, ``RoundOver`` or ``DoneWithout``."""


class StartWorkers(Step, frozen=True):
    """Start all workers of this node. Answered only if that is not possible, by ``StartFailed``."""

    generation: int
    """Counts the starts on this node, from 1."""
    restarts_used: int
    """How many of --max-restarts are used; a start after a change of membership uses none."""


class ReportFailure(Step, frozen=True):
    """Tell the others, without waiting, that this worker has failed, the first one of its generation here."""

    local_rank: int
    exit_code: int


class ReportHang(Step, frozen=True):
    """Tell the others, without waiting, that the job hangs: it counts as the first failure of the round."""

    failure: Failure
    """The worker that is different, on whichever node."""


class Stop(Step, frozen=True):
    """Send a signal to the workers, and to what is left in their sessions. ``GroupEnded`` reports their end."""

    number: Signals
    seconds: float
    """Workers that have not ended after this time are killed."""
    background: bool = False
    """Also to what they have started in sessions of its own: nothing is started here any more."""


class Kill(Step, frozen=True):
    """Send SIGKILL to everything that this agent has started, at once."""


class AskPeers(Step, frozen=True):
    """The workers have failed: was a node lost? Answered by ``PeersAnswered``."""


class CountRestart(Step, frozen=True):
    """The workers have failed by themselves, and this node has a restart left: does the job have one, too?

    Answered by ``RestartAllowed`` or ``RestartRefused``. The fields are those of ``FindCause``.
    """

    local_rank: int
    exit_code: int


class FindCause(Step, frozen=True):
    """The job fails here: because of which worker? Answered by ``CauseFound``, or ``Failed`` if a node was lost.

    ``local_rank`` and ``exit_code`` belong to the first failure on this node.
    """

    local_rank: int
    exit_code: int


class WaitAtBarrier(Step, frozen=True):
    """The workers here have succeeded: wait for those of others. Answered by ``BarrierOver`` or ``MustRunAgain``."""


class Stay(Step, frozen=True):
    """Wait while others need what this node serves. Answered by ``Stayed``."""


class GiveNotice(Step, frozen=True):
    """Tell the workers of all nodes that this one is about to leave. Waits for nobody.

    ``NoticeAnswered`` reports what comes of it; ``GraceOver`` follows after ``seconds``, whatever the agent does then.
    """

    reason: str
    seconds: float


class NoteLeaving(Step, frozen=True):
    """Tell the others, before the workers are stopped, that this node leaves: their workers will fail, too."""

    reason: str


class Say(Step, frozen=True):
    """Print a line for people."""

    text: str
    warning: bool = False


class Leave(Step, frozen=True):
    """Tell the others how this node ends, and let go of the rendezvous."""

    outcome: Outcome


class End(Step, frozen=True):
    """The last step: the process ends with ``exit_code``."""

    exit_code: int
    outcome: Outcome
    error: Exception | None = None
    """The error that ended this node, if there was one: it says more than the outcome."""
    signal: Signals | None = None


LEFT = "processes started by the workers of this node do not end, not even after SIGKILL"


class ExitOutcomes:
    """The ways in which one agent ends. Not thread-safe."""

    def __init__(self, host: str, pid: int) -> None:
        self._host, self._pid = host, pid

    def who(self, node_rank: int | None) -> str:
        """This agent, as the others know it; None: it has not had a place yet."""
        rank = "" if node_rank is None else f", node {node_rank}"
        return f"the agent on {self._host} (pid {self._pid}{rank})"

    def by_error(self, error: Exception, node_rank: int | None) -> End:
        """The end by an error; the error's exit code becomes the agent's if it is one of ours."""
        code = error.exit_code if isinstance(error, RdzvError) else RdzvError.exit_code
        reason = str(error) if isinstance(error, PeerFailed) else f"{self.who(node_rank)} ended: {error}"
        return End(code, Outcome("lost", reason), error)

    def preempted(self, others_go_on: bool | None, node_rank: int | None, number: Signals | None = None) -> End:
        """The end because the machine is taken away. ``others_go_on``: enough nodes are left; None: nobody has said.

        ``number`` is the last signal that said so; None: there was none, its grace is over or was not needed.
        """
        reason = f"{self.who(node_rank)} was preempted"
        outcome = Outcome("failed" if others_go_on is False else "lost", reason, exit_code=Preempted.exit_code)
        others = {None: "", True: ": enough nodes are left to continue", False: ": too few nodes are left to continue"}
        error = Preempted(f"{reason}{others[others_go_on]}")
        return End(Preempted.exit_code, outcome, error, signal=number or Signals.SIGTERM)

    def stuck(self, reason: str, node_rank: int | None) -> End:
        """The end because the kernel does not release something that a worker started."""
        error = WorkersStuck(
            f"{reason}: the workers are not restarted on this node",
            remedy="Check its state with ps. In state D it is blocked in the kernel, often on a device, a network card "
            "or a file system: check dmesg; the machine may have to be restarted. A process of another user has to be "
            "ended by that user.",
        )
        return self.by_error(error, node_rank)
