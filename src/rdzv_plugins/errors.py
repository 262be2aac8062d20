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
    """The command line, a PET_* variable or --rdzv-conf is wrong.

    Nothing was started. A backend raises it from ``validate`` for a malformed endpoint, or for options that
    contradict each other.
    """

    exit_code = 2
    scheduler: ClassVar[Advice] = "do not requeue"


class OptionError(UsageError):
    """A --rdzv-conf key is unknown, has the wrong type or is out of range.

    Raised before the backend is created, based on its options dataclass. The message names the key and the backend, the
    remedy says what is accepted.
    """


class RunIdMissing(UsageError):
    """Several jobs may share the endpoint, and this one was started without --rdzv-id.

    With the default run id, ``none``, two jobs would mix up their nodes. Raised before anything is written, for a
    backend whose nodes meet at a service, and at an ``rdzv serve``.
    """


class UnknownBackend(UsageError):
    """No installed plug-in provides the requested backend.

    The remedy lists the available names. Also raised for a disabled backend.
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
    """The selected backend is installed, but a module that it imports is not.

    The remedy is the command that installs it: from ``Backend.install``, or from the distribution's extras.
    """


class NotProvided(PluginError):
    """The backend is known but not provided: ``etcd-v2``.

    The remedy names the one to use instead.
    """


class LimitTooLow(RdzvError):
    """A system limit is too low for the launch: open files, disk space, or a system call that is not allowed.

    Nothing was started; with a full disk, at least no worker of the round that was about to begin.
    """

    exit_code = 71  # EX_OSERR


class WorkersStuck(RdzvError):
    """A worker of this node did not end on SIGKILL, or was in uninterruptible sleep (state D) for too long.

    Usually the kernel waits for a device, a network card or a file system that the worker was using. The node ends and
    starts no more workers; the other nodes may continue without it.
    """

    exit_code = 71  # EX_OSERR


class WorkerNotStarted(RdzvError):
    """The system could not start a worker: its program does not exist, or the process limit is reached.

    The message has the worker's local rank, the program or file, and the system's error. No worker of the round runs on
    this node.
    """

    exit_code = 71


class SupervisorLost(RdzvError):
    """The supervisor of this node's workers ended or does not answer; the workers are stopped.

    It was killed, or the node ran out of memory.
    """

    exit_code = 71
    remedy_text = "Unless somebody killed it, check for the out-of-memory killer: dmesg, or the container's events."


class CrashLoop(RdzvError):
    """The workers keep failing at the same place, so the job ended although restarts were left.

    Three rounds in a row had the same first failure over all nodes (exception and last frame), without progress in
    between. ``--rdzv-conf crash_loop`` says which failures count; all nodes end with this code. If no restarts are
    left, the job ends with the worker's own code instead.
    """

    exit_code = 82
    scheduler: ClassVar[Advice] = "do not requeue"
    remedy_text = (
        "Check the traceback, and what changed since it last worked. To use up all restarts, as torchrun does: "
        "--rdzv-conf crash_loop=off."
    )


class JobHung(RdzvError):
    """No worker made progress for ``--hang-timeout`` and no restart was left, so the job ended.

    The summary names the worker that differs from the others and where it is; all stacks are in each node's log
    directory.
    """

    exit_code = 80
    remedy_text = "Read the stacks in the log directory: first that worker's, then what the others wait for."


class JoinVetoed(RdzvError):
    """A plug-in's ``rdzv_before_join`` hook kept this node out (a failed health check).

    Raised by plug-ins only.
    """

    exit_code = 77  # EX_NOPERM


class StoreError(RdzvError):
    """A request to the store of a round's agents, or to their control store, failed.

    For torch as the caller it is torch's ``DistStoreError``, and the first class below it is ``DistNetworkError``.
    """

    exit_code = 68  # EX_NOHOST
    scheduler: ClassVar[Advice] = "requeue"


class StoreLost(StoreError):
    """The connection to the store was lost for good; the message names the store and the cause.

    Usually the agent that served it ended.
    """


class StoreTimeout(StoreError):
    """A key did not appear in a store in time; the message names key and store."""

    exit_code = 75  # EX_TEMPFAIL


class RendezvousFailed(RdzvError):
    """The nodes could not agree on a round, or lost each other.

    With torch's agent, as in plain torchrun, this and its subclasses are also torch's corresponding errors:
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
    """The endpoint did not resolve, refused the connection, did not answer, or is not what was expected.

    Each case has its own message with the endpoint. A coordination backend raises it from ``open_session`` when its
    ``timeout`` is over, not earlier: a service may be about to start.
    """

    exit_code = 68  # EX_NOHOST
    scheduler: ClassVar[Advice] = "requeue"


class AccessRefused(EndpointUnreachable):
    """The service refused this user: wrong or missing password, or no permission.

    Retrying would not help, so it is raised at once. The message contains no password.
    """

    exit_code = 77  # EX_NOPERM
    scheduler: ClassVar[Advice] = "look"


class EndpointLost(EndpointUnreachable):
    """The endpoint was reached, then lost.

    The node or service behind it ended, or the network in between failed.
    """


class NodeLost(RendezvousFailed):
    """A node of the round was lost, and no restart is left.

    The message names it and how its loss was detected. Workers on other nodes fail as a consequence; their errors are
    not the cause.
    """

    exit_code = 68
    scheduler: ClassVar[Advice] = "requeue"


class ConnectionLost(EndpointLost):
    """A session with the coordination service ended: its connection broke, or the service was silent for too long.

    Raised by every call of an ended session, and passed to ``on_lost``. ``silent`` is True in the second case: the node
    then tries to open another for one second, instead of the time to live. Users see only how that ended.
    """

    silent = False
    silent_since: float | None = None
    """When the service was heard last, by ``rdzv_plugins.clock.now``, if it has been silent since then.

    An outage is counted from then on. None: it was heard until the end, or this process may be what stood still.
    """


class Compacted(RendezvousFailed):
    """A watch asked for changes that the coordination service no longer has: list the keys again.

    Raised by ``Session.watch``; the elastic rendezvous handles it.
    """


class AddressInUse(RendezvousFailed):
    """The address that this node should serve is in use.

    The message names the process that uses it, if known.
    """

    exit_code = 68
    scheduler: ClassVar[Advice] = "requeue"


class RunIdMismatch(RendezvousFailed):
    """The endpoint belongs to another run.

    The message has both run ids. Choose another port, or give all nodes of a job the same ``--rdzv-id``.
    """


class SettingsDiffer(RendezvousFailed):
    """This node's settings differ from those of the rest of the job.

    The message shows each setting on both sides, and names the other node. Only this node ends.
    """

    exit_code = 78  # EX_CONFIG
    scheduler: ClassVar[Advice] = "do not requeue"

    def __init__(self, message: str, *, remedy: str = "", for_others: str = "") -> None:
        super().__init__(message, remedy=remedy)
        self.for_others = for_others or message
        """The message as the other nodes show it, where ``this node`` is another."""


class PreflightFailed(RendezvousFailed):
    """A node failed its ``--preflight`` checks, and the job cannot run without it.

    The message names the nodes and what is wrong with them. A job with nodes to spare leaves such a node out.
    """

    exit_code = 83
    remedy_text = (
        "Repair or replace the named nodes, or give the job spare nodes: --nnodes=MIN:MAX with more nodes than MIN."
    )


class RendezvousClosed(RendezvousFailed):
    """The job ended on another node.

    The message says how. If a worker failed, it is the subclass ``PeerFailed``.
    """


class PeerFailed(RendezvousClosed):
    """The job failed on another node.

    ``failure`` is the worker that failed first on any node: its rank, its node, its last lines on stderr. ``why`` says
    why the job ended although restarts were left; empty if none were left.

    Exit code:
        The failed worker's.
    """

    def __init__(self, message: str, failure: Failure, *, why: str = "", exit_code: int = 0) -> None:
        """``exit_code`` is the code of the node that ended the job, if it was not the worker's."""
        super().__init__(message)
        self.failure, self.why = failure, why
        self.exit_code = exit_code or failure.process_exit_code or 1  # whatever was written: it has not succeeded


class Preempted(RendezvousClosed):
    """A node was preempted after a notice, and the workers were notified in time: start the job again.

    The preempted node ends with it (``--preempt-grace``), and so do the others if they cannot continue: fewer than the
    minimum of ``--nnodes`` are left, or the node served the endpoint.
    """

    exit_code = 81
    scheduler: ClassVar[Advice] = "requeue"
    remedy_text = "Start it again: it continues from the last checkpoint, if its workers saved one."


class NotNeeded(RendezvousClosed):
    """This node joined when its job was about to end, and never ran its script.

    Not for a spare that waited while the job ran: when the job is done, it ends with 0.
    """

    exit_code = 66  # EX_NOINPUT
    scheduler: ClassVar[Advice] = "do not requeue"


class SpareReleased(NotNeeded):
    """The job of this spare node is done, and nothing went wrong.

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
