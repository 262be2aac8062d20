"""How a worker failed, as data, for callers that launch from Python. It can be read like torch's ``ProcessFailure``."""

from __future__ import annotations

import json
import logging
import os
import signal
import time
import traceback
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from msgspec import Struct

from rdzv_plugins.interfaces import Failure

logger = logging.getLogger(__name__)


# The files in which workers record their exceptions: torch's ``record`` writes them, schedulers read the first one.
#
# A program that uses ``record`` does so in the worker; this module reads the files, and writes one for a scheduler,
# without torch.

_MOST_BYTES = 16 << 20
"""A worker may write there whatever it likes: beyond this, nothing is read."""


class ErrorRecord(Struct, frozen=True):
    """What a worker has recorded."""

    message: str
    """The kind of the exception, and its text."""
    callstack: str
    """Its traceback, of several lines; empty if there is none."""
    timestamp: float
    """When it was recorded, in seconds of this machine's clock; torch writes whole seconds."""


def read_error_file(path: str) -> ErrorRecord | None:
    """What is recorded in the file; None if nothing is, or nothing readable."""
    data = _load(path) or {}
    message = data.get("message")
    if isinstance(message, str):
        return ErrorRecord(message, "", _seconds(data.get("timestamp")))
    if not isinstance(message, dict):
        return None
    info = message.get("extraInfo")
    info = info if isinstance(info, dict) else {}
    return ErrorRecord(
        str(message.get("message", "")), str(info.get("py_callstack", "")), _seconds(info.get("timestamp"))
    )


def hand_to_scheduler(path: str, exit_code: int, target: str) -> None:
    """Copy the error file of the worker that failed first to where a scheduler wants it: the agent's own error file.

    The exit code, which the worker could not know, is put in. That it cannot be written is logged: the job's outcome
    does not depend on it.
    """
    data = _load(path) if target else None
    if data is not None:
        message = data.get("message")
        if exit_code and isinstance(message, dict):
            message["errorCode"] = exit_code
        _write(target, data)


def record_own_error(error: BaseException, target: str) -> None:
    """Write the agent's exception to ``target``, in torch's form. That it cannot be written is logged."""
    if target:
        stack = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        info = {"py_callstack": stack, "timestamp": str(int(time.time()))}
        _write(target, {"message": {"message": f"{type(error).__name__}: {error}", "extraInfo": info}})


def _load(path: str) -> dict[str, Any] | None:
    if not os.path.isfile(path):  # excludes pipes, which would keep us waiting
        return None
    try:
        with open(path, "rb") as file:
            data = json.loads(file.read(_MOST_BYTES))
    except (OSError, ValueError, RecursionError) as error:
        logger.warning("cannot read the error file %s of a worker: %s", path, error)
        return None
    return data if isinstance(data, dict) else None


def _seconds(value: object) -> float:
    try:
        return float(str(value))
    except ValueError:
        return 0.0


def _write(target: str, data: Mapping[str, Any]) -> None:
    """Write in place: the file may be mounted by itself, as Kubernetes does, and then cannot be replaced."""
    try:
        if os.path.isfile(target) and os.path.getsize(target):
            logger.warning("overwriting the existing error file %s", target)
        with open(target, "w") as file:
            json.dump(data, file)
    except OSError as error:
        logger.warning("cannot write the error file %s: %s", target, error.strerror or error)


# The last thing on the screen after a failure: who failed first, how, and the last lines that it wrote.

_HINTS: dict[int, str] = {
    signal.SIGKILL: "Often the kernel's out-of-memory killer: see dmesg, or the memory limit of the job.",
    signal.SIGSEGV: "A crash in native code: PYTHONFAULTHANDLER=1 shows the line of Python that led to it.",
    signal.SIGBUS: "Often a full /dev/shm: give the container more shared memory.",
}


def describe_exit(exit_code: int) -> str:
    """How a process ended: ``exit code 3`` or ``signal 9 (SIGKILL)``."""
    if exit_code >= 0:
        return f"exit code {exit_code}"
    return f"signal {-exit_code} ({_signal_name(exit_code) or 'unknown'})"


def _signal_name(exit_code: int) -> str:
    """The signal that this exit code stands for; empty for none, or one without a name."""
    try:
        return signal.Signals(-exit_code).name
    except ValueError:
        return ""


def describe(failure: Failure) -> str:
    """One line: rank, node, and how it ended, or where it is in a job that hangs."""
    how = failure.hang or f"ended with {describe_exit(failure.exit_code)}"
    if failure.global_rank < 0:  # what its workers do is not known
        return f"node {failure.node_rank} on {failure.host} (agent's pid {failure.pid}) {how}"
    return (
        f"rank {failure.global_rank} (node {failure.node_rank} on {failure.host}, local rank {failure.local_rank}, "
        f"pid {failure.pid}) {how}"
    )


def failure_summary(
    first: Failure, here: Sequence[Failure], *, node_rank: int, restarts: str, log_dir: str = "", why: str = ""
) -> str:
    """The whole text. ``here`` are the failures of this node's workers.

    ``why``: why the job has ended although restarts were left; empty if none were left.
    """
    lines = ["the job failed.", f"  first failure: {describe(first)}"]
    if first.hang:
        lines = ["the job failed: it hung.", f"  odd one out: {describe(first)}"]
    if why:
        lines.insert(1, f"  {why}")
    if hint := first.cause or _HINTS.get(-first.exit_code):
        lines.append(f"  {hint}")
    if first.stderr:
        lines.append("  last lines of its stderr:")
        lines += [f"  | {line}" for line in first.stderr]
    elif not first.hang:
        lines.append("  its stderr is not known.")
    others = sorted((each.global_rank, each.exit_code) for each in here if each.global_rank != first.global_rank)
    if others:
        ends = ", ".join(f"rank {rank}: {describe_exit(code)}" for rank, code in others)
        lines.append(f"  later failures on this node ({node_rank}): {ends}")
    lines.append(f"  {restarts}")
    if log_dir:
        lines.append(f"  logs: {log_dir}")
    return "\n".join(lines)


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
        return _signal_name(self.exitcode) or NOT_AVAILABLE

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
