"""Every error a user can meet, in one tree.

A class carries its exit code and, where one exists, its remedy. A message says what happened, to which node, endpoint
or plug-in; the remedy says what to do next. Exit codes of our own errors follow sysexits.h (64 and up), so that they
are not mistaken for a training script's own 1, 2 or 3; only a wrong command line exits with 2, as argparse does. The
class also says what a scheduler should do about its code, the same for all classes with that code.

A plug-in raises them where the contract says so; any other exception that leaves a plug-in is reported as a fault of
the plug-in.
"""

# docs/reference/errors.md shows the docstrings below

from __future__ import annotations

import os
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from typing import Literal, TypeAlias

    from rdzv_plugins.interfaces import Failure

    Advice: TypeAlias = Literal["requeue", "do not requeue", "look"]
    """What a scheduler is to do about an exit code."""


class RdzvError(Exception):
    """Base of all errors raised on purpose.

    ``str(error)`` is the message, one line; ``error.remedy`` is the next step, or an empty string; the process ends
    with ``error.exit_code`` if nobody handles it. Exit code 70 also stands for an unexpected exception of any other
    class: an internal error.
    """

    exit_code: int = 70  # EX_SOFTWARE: a class below should say better
    """What the process ends with when nobody handles it."""
    scheduler: ClassVar[Advice] = "look"
    """What a scheduler should do about this exit code: restart the job, not restart it, or let a person look first."""
    remedy_text: ClassVar[str] = ""
    """The ``remedy`` of those that are raised without one."""

    def __init__(self, message: str, *, remedy: str = "") -> None:
        super().__init__(message)
        self.remedy = remedy or self.remedy_text
        """The next step, a sentence; empty if there is none."""


class UsageError(RdzvError):
    """The command line, a PET_* variable or --rdzv-conf asks for something impossible.

    Nothing has been started. A backend raises it from ``validate`` for a malformed endpoint, or for options that
    contradict each other.
    """

    exit_code = 2
    scheduler: ClassVar[Advice] = "do not requeue"


class OptionError(UsageError):
    """A --rdzv-conf key is unknown, has the wrong type or is out of range.

    Raised before the backend is created, according to its options dataclass. The message names the key and the backend,
    the remedy says what is accepted.
    """


class RunIdMissing(UsageError):
    """Other jobs may meet at the same place, and this one has no name there: it was started without --rdzv-id.

    With the default run id, ``none``, two jobs would take each other's nodes for their own. Raised before anything is
    written, for a backend whose nodes meet at a service, and at an ``rdzv serve``.
    """


class UnknownBackend(UsageError):
    """No installed plug-in provides the requested backend.

    The remedy lists the existing names. Also raised for a backend that is switched off.
    """


class PluginError(RdzvError):
    """A plug-in could not be used, or raised an error in a hook.

    The message names the plug-in, its distribution and the hook.
    """

    exit_code = 69  # EX_UNAVAILABLE
    scheduler: ClassVar[Advice] = "do not requeue"


class BrokenPlugin(PluginError):
    """The plug-in behind the selected backend failed to load, or broke the contract.

    For example, its ``create`` raised an exception that is not one of these classes, or returned something that is not
    a backend. With ``--rdzv-strict``, raised for any installed plug-in that is broken.
    """


class NameConflict(PluginError):
    """Two installed plug-ins claim the selected backend name.

    Neither wins. A name that nobody selects may be claimed twice.
    """


class MissingDependency(PluginError):
    """The selected backend is installed, but something that it imports is not.

    The remedy is the command that installs it: ``Backend.install``, or what the distribution's extras say.
    """


class NotProvided(PluginError):
    """The name belongs to a backend that is known but not provided: ``etcd-v2``.

    The remedy names the one to use instead.
    """


class LimitTooLow(RdzvError):
    """The system allows this process less than the launch needs: open files, room on a disk, a call that it refuses.

    Nothing has been started; with a full disk, at least no worker of the round that was about to begin.
    """

    exit_code = 71  # EX_OSERR


class WorkersStuck(RdzvError):
    """A worker of this node does not end, not even by SIGKILL, or was in uninterruptible sleep (state D) for too long.

    As a rule the kernel holds it, and what it was using: a device, a network card, a file system. The node ends, and no
    worker is started on it again; the other nodes may go on without it.
    """

    exit_code = 71  # EX_OSERR


class WorkerNotStarted(RdzvError):
    """The system could not start a worker: its program does not exist, or no further process is allowed.

    The message names the worker by its local rank, the program or file, and what the system said. No worker of the
    round runs on this node.
    """

    exit_code = 71


class SupervisorLost(RdzvError):
    """The supervisor of this node's workers has ended, or does not answer: the workers are ended with it.

    Somebody killed it, or memory was short.
    """

    exit_code = 71
    remedy_text = "If nobody has killed it, look for the out-of-memory killer: dmesg, or the events of the container."


class CrashLoop(RdzvError):
    """The workers fail again and again at the same place, and restarting them does not help: the job has ended.

    Three rounds in a row had the same first failure over all nodes, by its exception and last frame, and no progress in
    between, though restarts were left. ``--rdzv-conf crash_loop`` says which failures count; all nodes end with this
    code. If the restarts are used up, the job ends with the worker's own code instead.
    """

    exit_code = 82
    scheduler: ClassVar[Advice] = "do not requeue"
    remedy_text = (
        "Look at the traceback, and at what has changed since it last worked. --rdzv-conf crash_loop=off goes on until "
        "the restarts are used up, as torchrun does."
    )


class JobHung(RdzvError):
    """No worker of the job has made progress for ``--hang-timeout``, and no restart is left: the job has ended.

    The summary names the worker that differs from the others, and where it stands; all stacks are in the log directory
    of each node.
    """

    exit_code = 80
    remedy_text = "Look at the stacks in the log directory: first at that worker, then at what the others wait for."


class JoinVetoed(RdzvError):
    """A plug-in's ``rdzv_before_join`` hook refused to let this node join (a failed health check).

    Raised by plug-ins only.
    """

    exit_code = 77  # EX_NOPERM


class StoreError(RdzvError):
    """A store of a round's agents, or the agents' control store, did not do what was requested.

    If torch calls, it is torch's ``DistStoreError``, and the first class below it is ``DistNetworkError``.
    """

    exit_code = 68  # EX_NOHOST
    scheduler: ClassVar[Advice] = "requeue"


class StoreLost(StoreError):
    """The connection to the store is broken for good; the message names the store and says why.

    Usually the agent that served it has ended.
    """


class StoreTimeout(StoreError):
    """A key did not appear in a store in time; the message names key and store."""

    exit_code = 75  # EX_TEMPFAIL


class RendezvousFailed(RdzvError):
    """Nodes could not agree on a round, or lost each other.

    If torch's agent calls, as with plain torchrun, this and its subclasses are also torch's corresponding errors:
    ``RendezvousTimeoutError``, ``RendezvousConnectionError``, ``RendezvousClosedError`` or ``RendezvousStateError``.
    """

    exit_code = 76  # EX_PROTOCOL


class RendezvousTimeout(RendezvousFailed):
    """The round did not complete in time; the message names who is missing.

    The time is an option of the backend: ``timeout`` or ``join_timeout``.
    """

    exit_code = 75  # EX_TEMPFAIL
    scheduler: ClassVar[Advice] = "requeue"


class EndpointUnreachable(RendezvousFailed):
    """The endpoint did not resolve, refused, did not answer, or is not what was expected.

    Each case has its own message, which names the endpoint. A coordination backend raises it from ``open_session`` when
    its ``timeout`` is over, but not earlier: a service may be about to start.
    """

    exit_code = 68  # EX_NOHOST
    scheduler: ClassVar[Advice] = "requeue"


class AccessRefused(EndpointUnreachable):
    """The service answers, but not to this user: wrong or missing password, or no permission.

    Asking again would not help, so it is raised at once. The message holds no password.
    """

    exit_code = 77  # EX_NOPERM
    scheduler: ClassVar[Advice] = "look"


class EndpointLost(EndpointUnreachable):
    """The endpoint was reached and then went away.

    The node or the service that served it has ended, or the network between has failed.
    """


class NodeLost(RendezvousFailed):
    """A node of the round was lost, and no restart is left.

    The message names it, and says how that is known. Workers of the other nodes fail with their peers there; that is
    not the cause, and such a worker's error did not end the job.
    """

    exit_code = 68
    scheduler: ClassVar[Advice] = "requeue"


class ConnectionLost(EndpointLost):
    """A session with the coordination service has ended: its connection broke, or it was silent for too long.

    Raised by every call of an ended session, and passed to ``on_lost``. ``silent`` is True in the second case: the node
    then tries to open another for one second, instead of the time to live. Users do not see it: they see how that
    ended.
    """

    silent = False
    silent_since: float | None = None
    """When the service was heard last, by ``rdzv_plugins.clock.now``, if it has been silent since then.

    An outage is counted from then on. None: it was heard until the end, or this process may be what stood still.
    """


class Compacted(RendezvousFailed):
    """A watch asked for changes that the coordination service has forgotten: list the keys again.

    Raised by ``Session.watch``; the elastic rendezvous handles it.
    """


class AddressInUse(RendezvousFailed):
    """The address that this node should serve is taken.

    The message names the process that has it, if that can be known.
    """

    exit_code = 68
    scheduler: ClassVar[Advice] = "requeue"


class RunIdMismatch(RendezvousFailed):
    """The endpoint belongs to another run.

    Both run ids are in the message. Choose another port, or give all nodes of one job the same ``--rdzv-id``.
    """


class SettingsDiffer(RendezvousFailed):
    """This node was started with other settings than the rest of the job.

    The message gives each setting on both sides, and names the other node. Only this node ends.
    """

    exit_code = 78  # EX_CONFIG
    scheduler: ClassVar[Advice] = "do not requeue"

    def __init__(self, message: str, *, remedy: str = "", for_others: str = "") -> None:
        super().__init__(message, remedy=remedy)
        self.for_others = for_others or message
        """The message as the other nodes show it, where ``this node`` is another."""


class PreflightFailed(RendezvousFailed):
    """``--preflight`` found that a node is broken, and the job cannot do without it.

    The message names the nodes and says what is wrong with them. A job that has nodes to spare leaves such a node out.
    """

    exit_code = 83
    remedy_text = (
        "Repair or replace what is named; or give the job a node to spare: --nnodes=MIN:MAX with more nodes than MIN."
    )


class RendezvousClosed(RendezvousFailed):
    """The job has ended on another node.

    The message says how. If a worker failed, it is the subclass ``PeerFailed``.
    """


class PeerFailed(RendezvousClosed):
    """The job has failed on another node.

    ``failure`` is the worker that failed first on any node: its rank, its node, its last lines on stderr. ``why`` says
    why the job was ended although restarts were left; empty if none were left.

    Exit code:
        The failed worker's.
    """

    def __init__(self, message: str, failure: Failure, *, why: str = "", exit_code: int = 0) -> None:
        """``exit_code`` is the code of the node that ended the job, if it was not the worker's."""
        super().__init__(message)
        self.failure, self.why = failure, why
        self.exit_code = exit_code or failure.process_exit_code or 1  # whatever was written: it has not succeeded


class Preempted(RendezvousClosed):
    """A node had to go; its scheduler had announced it, and the workers were told in time: start the job again.

    The node itself ends with it (``--preempt-grace``), and so do the other nodes if they cannot go on: fewer than the
    minimum of ``--nnodes`` are left, or the node served the endpoint.
    """

    exit_code = 81
    scheduler: ClassVar[Advice] = "requeue"
    remedy_text = "Start it again: it goes on from the checkpoint that its workers have saved, if they have."


class NotNeeded(RendezvousClosed):
    """This node came when its job was about to end: it has never run its script.

    Not for a spare that waited while the job ran and leaves when it is done: that one ends with 0, and says so.
    """

    exit_code = 66  # EX_NOINPUT
    scheduler: ClassVar[Advice] = "do not requeue"


class SpareReleased(NotNeeded):
    """A spare's job is done: nothing is left to do for it, and nothing went wrong.

    Raised by ``next_rendezvous``. ``rdzv-run`` then ends successfully, as does torch's agent, which gets a
    ``RendezvousGracefulExitError``.

    Exit code:
        0, of ``rdzv-run``.
    """


def debug_wanted() -> bool:
    """True when RDZV_DEBUG asks for the tracebacks of errors."""
    return os.environ.get("RDZV_DEBUG", "") not in ("", "0")


def is_signal(error: BaseException) -> bool:
    """True for torch's ``SignalException``, which is an ``Exception`` but not an error. Recognised by its attribute.

    A plug-in that catches ``Exception`` has to let it pass. Raises nothing.
    """
    return hasattr(error, "sigval")
