"""The process of a launch from Python: as its caller sees it, and what it does; and what the two tell each other.

It is an agent like that of ``rdzv-run``, which answers with a file.
"""

from __future__ import annotations

import gc
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from multiprocessing import spawn
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field
from msgspec.structs import replace

from rdzv_launcher.console import drain_stderr, open_standard_streams, setup_logging
from rdzv_launcher.python_api.results import write_whole
from rdzv_launcher.run.importing import importing_torch
from rdzv_launcher.run.options import RunOptions
from rdzv_launcher.run.supervisor.messages import Inherited
from rdzv_launcher.run.supervisor.worker_process import let_go_of_handlers
from rdzv_launcher.run.workers.environment import ERROR_FILE
from rdzv_launcher.run.workers.failures import WorkerFailure, describe, worker_failure
from rdzv_launcher.run.workers.spec import Kind, Program
from rdzv_plugins.errors import LimitTooLow, RdzvError, debug_wanted
from rdzv_plugins.system import prctl
from rdzv_plugins.system.processes import ended_by

if TYPE_CHECKING:
    from rdzv_launcher.run.launch import LaunchResult
    from rdzv_launcher.run.preparation import Preparation

_AGAIN_S = 0.02
_GRACE_S = 10.0
"""How much longer than its workers the process of a launch may take to end."""
_BOOT = (
    "import sys; file = sys.argv[1]; sys.path[:] = sys.argv[2:]; "
    "from rdzv_launcher.python_api.agent import main; main(file)"
)
"""The program of an agent that is not forked. Its arguments: the file of the order, and ``sys.path``."""

Function = Callable[[int], int]
"""What a forked worker runs: it is given its local rank, and returns its exit code."""


class Order(Struct, frozen=True):
    """What the process of one launch is told: the function, its arguments and its settings."""

    options: RunOptions
    """As from a command line."""
    directory: str
    """The directory for the answer, and for everything that belongs to the call."""
    caller: int
    """The caller's pid: the launch ends with it."""
    descriptors: tuple[int, ...] = ()
    """The descriptors that the workers need."""
    command: tuple[str, ...] = ()
    """The command of workers whose function is spawned; otherwise empty."""
    forkserver: tuple[str, ...] = ()
    """The modules that are imported before such workers are forked; empty: they are not forked."""
    prefix_template: str = ""
    logs_specs: bytes = b""
    """A third-party object that decides on the log files, pickled."""
    path: tuple[str, ...] = ()
    """``sys.path`` of the caller, where its plug-ins are found."""

    @property
    def answer(self) -> str:
        """The file of the ``Answer``."""
        return f"{self.directory}/answer"


class LaunchAnswer(Struct, frozen=True):
    """How a launch ended, as its caller is told."""

    pids: Mapping[int, int] = field(default_factory=dict)
    """The pids of the workers that have succeeded, by global rank."""
    failures: Mapping[int, WorkerFailure] = field(default_factory=dict)
    """The failures by global rank, in the order in which the workers ended."""
    first: int | None = None
    """The rank of the first failure."""
    first_here: bool = False
    """Whether the first failure is on this node."""
    text: str = ""
    """The first failure in a sentence."""
    error: RdzvError | None = None
    """What ended the launch, if it was not a worker."""
    signal: int = 0
    """The signal that stopped it; 0: none."""
    notices: tuple[int, ...] = ()
    """The signals that were a notice, and so did not stop it."""


class LaunchedAgent:
    """One such process, a child of this one, in a session of its own: a terminal's signals reach only the caller."""

    def __init__(self, order: Order, function: Function | None = None) -> None:
        """Start it: as a fork of this process if there is a ``function``, otherwise as a fresh interpreter.

        Raises ``LimitTooLow`` if no process can be created.
        """
        self._order = order
        self._status: int | None = None
        try:
            self.pid = _fork(order, function) if function is not None else _start(order)
        except BlockingIOError as error:
            raise LimitTooLow(
                f"the process of the launch could not be started: {error.strerror}",
                remedy="Allow more processes (ulimit -u, pids of the container), or free memory.",
            ) from error

    def wait(self) -> None:
        """Wait until it has ended. Signals are handled meanwhile."""
        while self._status is None:
            try:
                _, self._status = os.waitpid(self.pid, 0)
            except ChildProcessError:  # somebody in this process waits for every child, or ignores SIGCHLD
                while os.path.exists(f"/proc/{self.pid}"):
                    time.sleep(_AGAIN_S)
                self._status = 0

    def end(self, patience: float) -> None:
        """End it and its workers, if it has not ended. They may take ``patience`` seconds; then they are killed."""
        for number, seconds in ((signal.SIGTERM, patience + _GRACE_S), (signal.SIGKILL, _GRACE_S)):
            deadline = time.monotonic() + seconds
            if self._lives():
                os.kill(self.pid, number)
            while self._lives() and time.monotonic() < deadline:
                time.sleep(_AGAIN_S)

    def answer(self) -> LaunchAnswer | None:
        """Its answer; None if it ended without one."""
        try:
            with open(self._order.answer, "rb") as file:
                found: LaunchAnswer = pickle.load(file)
        except FileNotFoundError:
            return None
        return found

    @property
    def how_it_ended(self) -> str:
        """How the process of a launch ended, in words."""
        return ended_by(os.waitstatus_to_exitcode(self._status or 0))

    def _lives(self) -> bool:
        if self._status is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:
                return os.path.exists(f"/proc/{self.pid}")
            self._status = status if pid else None
        return self._status is None


def interpreter() -> list[str]:
    """The command of an interpreter with the flags of this one."""
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    return [os.fsdecode(spawn.get_executable()), *flags]


def _start(order: Order) -> int:
    file = f"{order.directory}/order"
    with open(file, "xb") as stream:
        pickle.dump(order, stream)
    process = subprocess.Popen(
        [*interpreter(), "-c", _BOOT, file, *order.path],
        pass_fds=order.descriptors,
        start_new_session=True,
    )
    process.returncode = 0  # it is waited for here, and not by subprocess
    return process.pid


def _fork(order: Order, function: Function) -> int:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()  # otherwise it would be written twice
    # no handler of the caller's runs in the other process
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        pid = os.fork()
        if pid == 0:
            try:
                _forked(order, function)
            finally:
                os._exit(1)
        return pid
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def main(file: str) -> None:
    """The entry point of an agent that was started as a program."""
    with open(file, "rb") as stream:
        order: Order = pickle.load(stream)
    _be_agent(order, None)


def _forked(order: Order, function: Function) -> None:
    """In a process that the caller has just forked: let go of what belongs to the caller, and never return.

    ``function`` is run in each worker, which is a fork of this process's supervisor.
    """
    gc.freeze()  # what belongs to the caller is not this process's to clean up
    let_go_of_handlers()
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.setsid()
    streams = sys.stdin, sys.stdout, sys.stderr
    sys.stdin, sys.stdout, sys.stderr = sys.__stdin__, sys.__stdout__, sys.__stderr__

    def run(local_rank: int) -> int:
        sys.stdin, sys.stdout, sys.stderr = streams
        return function(local_rank)

    _be_agent(replace(order, descriptors=_open_descriptors()), run)


def _be_agent(order: Order, function: Function | None) -> None:
    """Run the agent. Does not return: this process ends without running exit handlers that others have registered."""
    code = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # otherwise ends of children could not be waited for
        if prctl.die_with_parent(order.caller):
            _answer(order, function)
            code = 0
    finally:
        drain_stderr()
        os._exit(code)


def _answer(order: Order, function: Function | None) -> None:
    open_standard_streams()
    setup_logging("elastic_launch", verbose=debug_wanted(), quiet=True)
    os.environ.pop(ERROR_FILE, None)  # it is the caller's, who writes to it if decorated with torch's record
    notices: tuple[int, ...] = ()
    try:
        from rdzv_launcher.run.launch import launch

        start, logs_specs = _prepare(order, function)
        notices = tuple(map(int, start.notice.signals))
        inherited = Inherited(order.descriptors, function)
        answer = LaunchAnswer() if start.request.idle else _told(launch(start, inherited, logs_specs))
    except Exception as error:
        answer = LaunchAnswer(error=_sendable(error))
    write_whole(order.answer, replace(answer, notices=notices))


def _prepare(order: Order, function: Function | None) -> tuple[Preparation, Any]:
    """The launch, with what the caller has said in other ways than by flags; and the caller's ``LogsSpecs``, if any."""
    from rdzv_launcher.run.preparation import Preparation

    with importing_torch():
        logs_specs = pickle.loads(order.logs_specs) if order.logs_specs else None
        start = Preparation(order.options).take_all_steps()
    if start.request.idle:
        return start, logs_specs
    spec = replace(start.spec, prefix_template=order.prefix_template)
    if order.command:
        spec = replace(spec, program=Program(Kind.COMMAND, order.command[0], order.command[1:]))
    if order.forkserver:
        spec = replace(spec, preload=tuple(dict.fromkeys((*order.forkserver, *spec.preload))))
    if function is not None:
        spec = replace(spec, preload=())
    start.spec = spec
    return start, logs_specs


def _told(ending: LaunchResult) -> LaunchAnswer:
    """The end of the launch as an answer."""
    first, end = ending.first, ending.end
    if first is not None:
        failures: dict[int, WorkerFailure] = {each.global_rank: each for each in ending.failures}
        here = first.global_rank in failures
        if not here:
            failures = {first.global_rank: worker_failure(first, time.time()), **failures}
        return LaunchAnswer(failures=failures, first=first.global_rank, first_here=here, text=describe(first))
    if end.error is not None:
        return LaunchAnswer(error=_sendable(end.error))
    if end.signal is not None:
        return LaunchAnswer(signal=int(end.signal))
    if ending.group is None:
        return LaunchAnswer()
    pids = ending.group.pids
    return LaunchAnswer(pids={each.global_rank: pids[each.local_rank] for each in ending.group.workers})


def _sendable(error: Exception) -> RdzvError:
    """The error, or one of ours that says the same if the error cannot be restored from a pickle."""
    if isinstance(error, RdzvError):
        try:
            if type(pickle.loads(pickle.dumps(error))) is type(error):
                return error
        except Exception:
            pass
        return RdzvError(str(error), remedy=error.remedy)
    return RdzvError(f"internal error of the launch: {type(error).__name__}: {error}", remedy="Please report it.")


def _open_descriptors() -> tuple[int, ...]:
    found = []
    for name in os.listdir("/proc/self/fd"):
        fd = int(name)
        try:
            os.fstat(fd)
        except OSError:  # the descriptor of the list itself
            continue
        if fd > 2:
            found.append(fd)
    return tuple(found)
