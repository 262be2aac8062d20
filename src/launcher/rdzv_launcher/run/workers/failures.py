"""How a worker failed, as data, for callers that launch from Python. It can be read like torch's ``ProcessFailure``."""

from __future__ import annotations

import signal
from datetime import datetime
from typing import Any

from msgspec import Struct

from rdzv_launcher.run.workers.error_files import ErrorRecord, read_error_file
from rdzv_plugins.interfaces import Failure

NOT_AVAILABLE = "<N/A>"
"""What torch uses in place of a name that is not known."""


class WorkerFailure(Struct, frozen=True):
    """One worker that has failed. Usable from any thread."""

    local_rank: int
    global_rank: int
    host: str
    pid: int
    exitcode: int
    """The worker's exit code; negative for a signal, as in ``subprocess``."""
    timestamp: float
    """When it failed, in seconds of its machine's clock: as it recorded, or otherwise when its end became known."""
    error_file: str = NOT_AVAILABLE
    """Where it recorded its exception; ``<N/A>`` if it did not, or on another node."""
    record: ErrorRecord | None = None
    """What it recorded."""
    stderr: tuple[str, ...] = ()
    """The last lines of its standard error, if nothing was recorded and they are known."""

    def signal_name(self) -> str:
        """The signal, such as ``SIGKILL``; ``<N/A>`` if it ended by itself, or for a signal without a name."""
        try:
            return signal.Signals(-self.exitcode).name if self.exitcode < 0 else NOT_AVAILABLE
        except ValueError:
            return NOT_AVAILABLE

    @property
    def summary(self) -> str:
        """One line: what it recorded, or the signal that ended it; empty if nothing is known."""
        if self.record is not None and self.record.message:
            return self.record.message
        if self.exitcode < 0:
            return f"Signal {-self.exitcode} ({self.signal_name()}) received by PID {self.pid}"
        return ""

    @property
    def traceback(self) -> str:
        """The traceback of its exception, or the last lines of its standard error; empty if nothing is known."""
        return self.record.callstack if self.record is not None else "\n".join(self.stderr)

    @property
    def message(self) -> str | dict[str, Any]:
        """The message as torch has it: for an exception, what its error file says; otherwise ``summary``."""
        if self.record is None or not self.record.callstack:
            return self.summary
        info = {"py_callstack": self.record.callstack, "timestamp": str(int(self.record.timestamp))}
        return {"message": self.record.message, "extraInfo": info}

    @property
    def error_file_data(self) -> dict[str, Any]:
        """The message of the failure in the form that torch's ``ProcessFailure`` has."""
        return {"message": self.message}

    def timestamp_isoformat(self) -> str:
        """The time of the failure in torch's form, such as ``2026-01-31_12:00:00``."""
        return datetime.fromtimestamp(int(self.timestamp)).isoformat(sep="_")

    @property
    def process_exit_code(self) -> int:
        """The exit code for a process that ends because of it: 128+n for signal n, and never 0."""
        return (128 - self.exitcode if self.exitcode < 0 else self.exitcode) or 1


def worker_failure(failure: Failure, ended: float, error_file: str = "") -> WorkerFailure:
    """A failure with what the worker recorded in ``error_file``. ``ended`` is used if it recorded nothing."""
    record = read_error_file(error_file) if error_file else None
    return WorkerFailure(
        local_rank=failure.local_rank,
        global_rank=failure.global_rank,
        host=failure.host,
        pid=failure.pid,
        exitcode=failure.exit_code,
        timestamp=ended if record is None else record.timestamp,
        error_file=NOT_AVAILABLE if record is None else error_file,
        record=record,
        stderr=failure.stderr,
    )
