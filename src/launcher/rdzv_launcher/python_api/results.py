"""What a launch from Python raises, and what workers return or raise, as files.

If torch's elastic part is imported, the errors are also torch's own: ``except ChildFailedError`` still works, and torch
is not needed otherwise, as code that says so has imported torch. The files may have any size, and nobody waits for
their reader. A worker's are named after its pid, so that those of an earlier round belong to nobody.
"""

from __future__ import annotations

import functools
import os
import pickle
import signal
import sys
from collections.abc import Mapping
from typing import Any

from rdzv_launcher.run.workers.failures import WorkerFailure
from rdzv_plugins.errors import RdzvError

_RAISED = ".raised"
_CHILD_FAILED = ("torch.distributed.elastic.multiprocessing.errors", "ChildFailedError")
_SIGNALLED = ("torch.distributed.elastic.multiprocessing.api", "SignalException")


class WorkersFailed(RdzvError):
    """The job has failed. ``__cause__`` is the exception of the worker that failed first, if it is known.

    ``failures`` has the failures by global rank: those of this node, and the first one of the job, on whichever node.
    """

    def __init__(self, message: str, name: str, failures: Mapping[int, WorkerFailure], first: int) -> None:
        Exception.__init__(self, message)  # and not torch's, which would create a text of its own
        self.remedy = ""
        self.name = name
        self.failures = dict(failures)
        self.exit_code = failures[first].process_exit_code
        self._message, self._first = message, first

    def get_first_failure(self) -> tuple[int, WorkerFailure]:
        """Return the global rank and the failure of the worker that failed first on any node."""
        return self._first, self.failures[self._first]

    def __str__(self) -> str:
        return self._message

    def __reduce__(self) -> Any:
        return workers_failed, (self._message, self.name, self.failures, self._first)


class LaunchStopped(RdzvError):
    """The signal ``sigval`` has stopped the launch and its workers. SIGINT raises ``KeyboardInterrupt`` instead."""

    def __init__(self, number: int) -> None:
        self.sigval = signal.Signals(number)
        Exception.__init__(self, f"got {self.sigval.name}: the workers were stopped")
        self.remedy = ""
        self.exit_code = 128 + self.sigval

    def __reduce__(self) -> Any:
        return launch_stopped, (int(self.sigval),)


class AgentLost(RdzvError):
    """The process in which the launch ran has ended without an answer, and its workers with it.

    Somebody killed it, or memory was short.
    """

    exit_code = 71  # EX_OSERR
    remedy_text = "If nobody killed it, look for the out-of-memory killer: dmesg, or the events of the container."


class ResultLost(RdzvError):
    """A worker's result cannot be read here, for example because its class cannot be imported."""

    exit_code = 65  # EX_DATAERR
    remedy_text = "Return what can be unpickled in the caller: numbers, strings, lists, arrays, tensors."


class WorkerTraceback(Exception):
    """The traceback of a worker, as the cause of its exception here."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f"\n{self.text.rstrip()}"


def workers_failed(message: str, name: str, failures: Mapping[int, WorkerFailure], first: int) -> WorkersFailed:
    """A ``WorkersFailed`` that is also torch's ``ChildFailedError``, if that is imported."""
    error: WorkersFailed = _also(WorkersFailed, _CHILD_FAILED)(message, name, failures, first)
    return error


def launch_stopped(number: int) -> LaunchStopped:
    """A ``LaunchStopped`` that is also torch's ``SignalException``, if that is imported."""
    error: LaunchStopped = _also(LaunchStopped, _SIGNALLED)(number)
    return error


def _also(cls: Any, torchs: tuple[str, str]) -> Any:
    module, name = torchs
    theirs = getattr(sys.modules.get(module), name, None)
    return cls if theirs is None else _both(cls, theirs)


@functools.cache
def _both(cls: type, theirs: type) -> type:
    return type(cls.__name__, (cls, theirs), {"__module__": cls.__module__, "__doc__": cls.__doc__})


class Results:
    """The files of one call in ``directory``, which exists. For workers and for the caller."""

    def __init__(self, directory: str) -> None:
        self.directory = directory

    def keep(self, value: Any) -> None:
        """Keep what this process returns. Raises ``TypeError`` if it cannot be pickled, ``OSError`` without room."""
        try:
            write_whole(self._path(os.getpid(), ""), value)
        except OSError:
            raise
        except Exception as error:
            raise TypeError(
                f"the function returned a {type(value).__qualname__}, which cannot be pickled for the caller: "
                f"{error}. Return what can be pickled, or nothing and write it to a file"
            ) from error

    def keep_raised(self, error: BaseException, text: str) -> None:
        """Keep the exception that ends this process, and its traceback as text; if need be, without the exception."""
        try:
            data = pickle.dumps(error)
        except Exception:  # the reader notices that
            data = b""
        try:
            write_whole(self._path(os.getpid(), _RAISED), (data, text))
        except OSError:  # there are still the error file and the worker's standard error
            pass

    def has(self, pid: int) -> bool:
        """True if the worker's function has returned."""
        return os.path.exists(self._path(pid, ""))

    def returned(self, pid: int) -> Any:
        """What the worker's function returned. Raises whatever pickle raises."""
        with open(self._path(pid, ""), "rb") as file:
            return pickle.load(file)

    def raised(self, pid: int) -> BaseException | None:
        """The worker's exception, caused by its traceback; only the latter if the exception cannot be restored here."""
        try:
            with open(self._path(pid, _RAISED), "rb") as file:
                data, text = pickle.load(file)
        except OSError:
            return None
        traceback = WorkerTraceback(text)
        try:
            error = pickle.loads(data)
        except Exception:  # its class may not exist here, or takes other arguments than it keeps
            return traceback
        if not isinstance(error, Exception):
            return traceback
        error.__cause__ = traceback
        return error

    def _path(self, pid: int, kind: str) -> str:
        return os.path.join(self.directory, f"{pid}{kind}")


def write_whole(path: str, value: Any) -> None:
    """Pickle ``value`` into a file that exists completely or not at all. Raises what pickle raises, and ``OSError``."""
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)  # a cleaner of temporary files may have removed it
    with open(f"{path}.new", "wb") as file:
        pickle.dump(value, file, pickle.HIGHEST_PROTOCOL)
    os.rename(f"{path}.new", path)
