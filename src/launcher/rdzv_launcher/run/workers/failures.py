"""How a worker failed: what it has recorded, what else is known of the cause, in words, and as data.

The data is for callers that launch from Python, and can be read like torch's ``ProcessFailure``.
"""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import time
import traceback
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from msgspec import Struct

from rdzv_plugins.interfaces import Failure
from rdzv_plugins.system.cgroups import directories_of

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


# Reads the end of a worker's stderr: which exception ended it, where, and whether that was while it imported.
#
# The text is the interpreter's, but a script may have changed or cut it: anything not in the interpreter's format
# counts as unknown.

_HEAD = "Traceback (most recent call last):"
_FRAME = r'^[\s|]*File "(?P<file>[^"]+)", line (?P<line>\d+)(?:, in (?P<function>.+))?$'
_EXCEPTION = r"^(?P<name>[A-Za-z_][\w.]*)(?:: .*)?$"
_IMPORT = r"^\s*(?:import|from)\s"
_NO_PROGRAM = r"^\S*python[\d.]*: (?:can't (?:open file|find '__main__')|No module named |Error while finding )"
_OF_IMPORTS = frozenset({"ImportError", "ModuleNotFoundError", "SyntaxError", "IndentationError", "TabError"})
_OF_THE_TEXT = _OF_IMPORTS | {"NameError"}
_MODULE = "<module>"


class LastTraceback(Struct, frozen=True):
    """The last traceback on a worker's stderr."""

    exception: str
    """The name of its class, as printed; empty if the interpreter has refused to begin."""
    place: str
    """Where it was raised, such as ``/job/train.py:3``; empty if the interpreter has refused to begin."""
    importing: bool
    """It was raised while the script imported its modules, or there was no script to run."""

    @property
    def is_of_the_text(self) -> bool:
        """Whether the program's text, or what is installed, is at fault: the same program raises it every time."""
        return self.exception in _OF_THE_TEXT


def read_traceback(lines: Sequence[str]) -> LastTraceback | None:
    """The last traceback among the last lines of a worker's stderr; None if there is none that can be read."""
    if lines and re.match(_NO_PROGRAM, lines[-1]):
        return LastTraceback("", "", importing=True)
    heads = [number for number, line in enumerate(lines) if line.strip(" |") == _HEAD]
    frames = [(number, found) for number, line in enumerate(lines) if (found := re.match(_FRAME, line))]
    if not frames:
        return None
    last, frame = frames[-1]
    name = next((found["name"] for line in lines[last + 1 :] if (found := re.match(_EXCEPTION, line))), "")
    if not name:
        return None
    whole = bool(heads) and heads[-1] < last
    own = [each for each in frames if not whole or each[0] > heads[-1]]
    own = [(number, found) for number, found in own if not _is_interpreters(found)] or own
    return LastTraceback(name, f"{frame['file']}:{frame['line']}", _is_of_imports(lines, own, name, whole))


def _is_interpreters(frame: re.Match[str]) -> bool:
    """Whether the frame is of the code that runs a script by ``-m``, which is frozen from Python 3.11 on."""
    return frame["file"].startswith("<frozen ") or (
        frame["file"].endswith("/runpy.py") and frame["function"] in ("_run_module_as_main", "_run_code")
    )


def _is_of_imports(lines: Sequence[str], frames: list[tuple[int, re.Match[str]]], name: str, whole: bool) -> bool:
    """``frames`` are the available frames of the traceback; ``whole``: it is complete, including its beginning."""
    number, first = frames[0]
    if whole and first["function"] == _MODULE and re.match(_IMPORT, "".join(lines[number + 1 : number + 2])):
        return True
    # either the script itself cannot be compiled, and there is no traceback; or its beginning is cut off
    return (
        not (whole and len(frames) > 1)
        and name in _OF_IMPORTS
        and all(found["function"] in (_MODULE, None) for _, found in frames)
    )


# Processes of this node that the kernel has killed because memory was short, according to its own counters.
#
# A worker's end by signal 9 does not say who sent the signal. The counter of the memory cgroup in which the workers run
# does: ``oom_kill`` in ``memory.events`` (cgroup v2) or ``memory.oom_control`` (v1) grows before the process gets the
# signal, and counts kills in that cgroup. Where neither exists, the counter of the machine is used (``/proc/vmstat``).
# Linux only.

_KILLS = "oom_kill"
_FILES = {2: ("memory.events", "memory.max"), 1: ("memory.oom_control", "memory.limit_in_bytes")}
"""By version of cgroups: the file with the counter, and the file with the limit."""
_NO_LIMIT = 1 << 60
"""cgroup v1 has no word for "no limit", but uses a number that no machine has."""


class _Counter(Struct, frozen=True):
    """Where the kernel counts, and what the count covers."""

    file: Path
    cgroup: str
    """The cgroup's name; empty for the whole machine."""
    limits: tuple[Path, ...] = ()
    """The files with its limit and those of the cgroups around it, innermost first."""


class OomKills:
    """Kills among one generation of workers after another. For one thread."""

    def __init__(self, root: Path = Path("/")) -> None:
        """``root`` is the directory with ``proc``, and with everything that it names."""
        self._counter = _find(root)
        self._before = self._count()

    def begin(self) -> None:
        """Workers are about to be started: what was killed before is not one of them."""
        self._before = self._count()

    def describe(self, exit_code: int) -> str:
        """What the counter says about a worker that ended with this code, as a sentence; empty if it says nothing."""
        counter, count, before = self._counter, self._count(), self._before
        if counter is None or count is None or before is None:
            return ""
        killed = exit_code == -signal.SIGKILL
        if count <= before:
            if not killed or not counter.cgroup:
                return ""
            return (
                "Not by the kernel's out-of-memory killer: its count for the workers' cgroup has not grown. A person "
                "or a program sent the signal."
            )
        where = f"cgroup {counter.cgroup}{_limit(counter)}" if counter.cgroup else "this machine"
        if killed and counter.cgroup and count - before == 1:
            return f"The kernel's out-of-memory killer killed it: {where} ran out of memory."
        killed_now = f"{count - before} process(es) of {where} since the start of the workers"
        return f"The kernel's out-of-memory killer killed {killed_now}."

    def _count(self) -> int | None:
        return None if self._counter is None else _read(self._counter.file)


def _read(file: Path) -> int | None:
    """The number of kills, from a file of lines with a name and a number; None if it is not there."""
    try:
        for line in file.read_text().splitlines():
            name, _, number = line.partition(" ")
            if name == _KILLS:
                return int(number)
    except (OSError, ValueError):
        pass
    return None


def _find(root: Path) -> _Counter | None:
    """The counter of the cgroup of this process, which the workers inherit; the machine's if there is none."""
    for version, directory, path in directories_of("memory", root):
        events, limit = _FILES[version]
        if _read(directory / events) is not None:
            above = [each for each in (directory, *directory.parents) if (each / limit).exists()]
            return _Counter(directory / events, path or "/", tuple(each / limit for each in above))
    machine = root / "proc/vmstat"
    return _Counter(machine, "") if _read(machine) is not None else None


def _limit(counter: _Counter) -> str:
    """The tightest of the limits, in words; empty if there is none."""
    limits = []
    for file in counter.limits:
        try:
            limits.append(int(file.read_text()))
        except (OSError, ValueError):  # "max"
            continue
    least = min(limits, default=_NO_LIMIT)
    return f", whose limit is {least / 2**20:.0f} MiB," if least < _NO_LIMIT else ""


def cause_of(exit_code: int, stderr: Sequence[str], kills: OomKills) -> str:
    """A sentence for people; empty if nothing more is known. ``stderr``: the last lines of the worker's stderr."""
    if killed := kills.describe(exit_code):
        return killed
    found = read_traceback(stderr) if exit_code > 0 else None
    if found is None or not found.importing:
        return ""
    what = f"{found.exception} at {found.place}" if found.place else "the interpreter found no program"
    return f"It failed while importing its modules: {what}."


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
