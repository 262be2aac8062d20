"""Every error a user can meet, in one tree.

A class carries its exit code and, where one exists, its remedy. A message says what happened,
to which node, endpoint or plug-in; the remedy says what to do next. Exit codes of our own errors
follow sysexits.h (64 and up), so that they are not mistaken for a training script's own 1, 2 or 3;
only a wrong command line exits with 2, as argparse does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from rdzv_plugins.interfaces import Failure


class RdzvError(Exception):
    """Base of all errors raised on purpose.

    ``str(error)`` is the message; ``error.remedy`` is the next step, or an empty string;
    ``error.exit_code`` is what the process ends with when nobody handles it.
    """

    exit_code: int = 70  # EX_SOFTWARE: a class below should say better
    remedy_text: ClassVar[str] = ""

    def __init__(self, message: str, *, remedy: str = "") -> None:
        super().__init__(message)
        self.remedy = remedy or self.remedy_text


class UsageError(RdzvError):
    """The command line, a PET_* variable or --rdzv-conf asks for something impossible."""

    exit_code = 2


class OptionError(UsageError):
    """A --rdzv-conf key is unknown, has the wrong type or is out of range."""


class UnknownBackend(UsageError):
    """No installed plug-in provides the backend asked for."""


class PluginError(RdzvError):
    """A plug-in could not be used."""

    exit_code = 69  # EX_UNAVAILABLE


class BrokenPlugin(PluginError):
    """The plug-in behind the selected backend failed to load, or broke the contract."""


class NameConflict(PluginError):
    """Two installed plug-ins claim the selected backend name."""


class MissingDependency(PluginError):
    """The selected backend is installed, but something that it imports is not."""


class NotAvailableYet(PluginError):
    """The name belongs to a backend that is not to come."""


class JoinVetoed(RdzvError):
    """A plug-in's ``rdzv_before_join`` hook refused to let this node join (a failed health check)."""

    exit_code = 77  # EX_NOPERM


class RendezvousFailed(RdzvError):
    """Nodes could not agree on a round, or lost each other."""

    exit_code = 76  # EX_PROTOCOL


class RendezvousTimeout(RendezvousFailed):
    """The round did not complete in time; the message names who is missing."""

    exit_code = 75  # EX_TEMPFAIL


class EndpointUnreachable(RendezvousFailed):
    """The endpoint did not resolve, refused, did not answer, or is not what was expected."""

    exit_code = 68  # EX_NOHOST


class AccessRefused(EndpointUnreachable):
    """The service answers, but not to this user: wrong or missing password, or no permission."""

    exit_code = 77  # EX_NOPERM


class EndpointLost(EndpointUnreachable):
    """The endpoint was reached and then went away."""


class ConnectionLost(EndpointLost):
    """A session with the coordination service has ended: its connection broke, or it was silent for too long.

    ``silent`` tells the second from the first.
    """

    silent = False


class Compacted(RendezvousFailed):
    """A watch asked for changes that the coordination service has forgotten: list the keys again."""


class AddressInUse(RendezvousFailed):
    """The address that this node has to serve is taken."""

    exit_code = 68


class RunIdMismatch(RendezvousFailed):
    """The endpoint belongs to another run."""


class SettingsDiffer(RendezvousFailed):
    """This node was started with other settings than the rest of the job."""

    exit_code = 78  # EX_CONFIG


class RendezvousClosed(RendezvousFailed):
    """The job has ended on another node."""


class PeerFailed(RendezvousClosed):
    """The job has failed on another node; ends with that node's exit code. ``failure`` is what failed there."""

    def __init__(self, message: str, failure: Failure) -> None:
        super().__init__(message)
        self.failure = failure
        self.exit_code = failure.process_exit_code


def is_signal(error: BaseException) -> bool:
    """True for torch's ``SignalException``: an ``Exception``, but nobody's error. Told by its attribute."""
    return hasattr(error, "sigval")
