"""How the workers of a round failed, as data: for the agent's report, for schedulers, for callers."""

from __future__ import annotations

import signal
from collections.abc import Iterable
from dataclasses import dataclass

from rdzv_launcher.run.stderr_pipes import last_lines
from rdzv_launcher.run.workers.error_files import ErrorRecord, read_error_file
from rdzv_plugins.interfaces import Failure


@dataclass(frozen=True)
class WorkerFailure:
    """One worker that ended with something else than 0. Any thread may have it."""

    local_rank: int
    global_rank: int
    host: str
    pid: int
    exit_code: int
    """Negative for a signal, as in ``subprocess``."""
    ended: float
    """When its end was seen, in seconds of this machine's clock."""
    error_file: str
    """Empty if it has recorded nothing."""
    record: ErrorRecord | None

    @property
    def signal_name(self) -> str:
        """``SIGKILL`` for example; empty if it ended by itself, or for a signal without a name."""
        try:
            return signal.Signals(-self.exit_code).name if self.exit_code < 0 else ""
        except ValueError:
            return ""

    @property
    def timestamp(self) -> float:
        """When it failed: what it has recorded, or its end."""
        return self.record.timestamp if self.record is not None else self.ended

    @property
    def message(self) -> str:
        """One line: what it has recorded, or the signal that ended it; empty if nothing is known."""
        if self.record is not None and self.record.message:
            return self.record.message
        if self.exit_code < 0:
            return f"Signal {-self.exit_code} ({self.signal_name or 'unknown'}) received by PID {self.pid}"
        return ""

    def described(self, node_rank: int, stderr: tuple[str, ...] = ()) -> Failure:
        """As it is told to the other nodes. Without ``stderr``, with the end of what was recorded."""
        recorded = self.record.callstack or self.record.message if self.record is not None else ""
        return Failure(
            node_rank=node_rank,
            host=self.host,
            global_rank=self.global_rank,
            local_rank=self.local_rank,
            pid=self.pid,
            exit_code=self.exit_code,
            stderr=stderr or last_lines(recorded.encode(errors="replace")),
        )


def worker_failure(
    *, local_rank: int, global_rank: int, host: str, pid: int, exit_code: int, ended: float, error_file: str
) -> WorkerFailure:
    """A failure with what the worker has recorded in ``error_file``."""
    record = read_error_file(error_file)
    kept = error_file if record is not None else ""
    return WorkerFailure(local_rank, global_rank, host, pid, exit_code, ended, kept, record)


def first_failure(failures: Iterable[WorkerFailure]) -> WorkerFailure:
    """The one that failed first by its time; of those within one second, the first of ``failures``.

    torch records whole seconds: give them in the order in which the workers ended. Raises ``ValueError`` for none.
    """
    return min(failures, key=lambda each: int(each.timestamp))
