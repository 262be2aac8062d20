"""The process in which a launch from Python runs: an agent like that of ``rdzv-run``, which answers with a file."""

from __future__ import annotations

import gc
import os
import pickle
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from rdzv_launcher import queued_stderr
from rdzv_launcher.call.order import Answer, Order
from rdzv_launcher.call.results import write_whole
from rdzv_launcher.console import open_standard_streams, setup_logging
from rdzv_launcher.run.caller import Caller, Ending
from rdzv_launcher.run.importing import importing_torch
from rdzv_launcher.run.keeper.messages import Inherited
from rdzv_launcher.run.keeper.worker_process import let_go_of_handlers
from rdzv_launcher.run.workers.environment import ERROR_FILE
from rdzv_launcher.run.workers.failures import WorkerFailure, worker_failure
from rdzv_launcher.run.workers.program import Kind, Program
from rdzv_plugins.errors import RdzvError, debug_wanted
from rdzv_plugins.linux import prctl

BOOT = (
    "import sys; file = sys.argv[1]; sys.path[:] = sys.argv[2:]; "
    "from rdzv_launcher.call.agent_process import main; main(file)"
)
"""The program of an agent that is not forked. Its arguments: the file of the order, and ``sys.path``."""

Function = Callable[[int], int]
"""What a forked worker runs: it is given its local rank, and returns its exit code."""


def main(file: str) -> None:
    """The entry point of an agent that was started as a program."""
    with open(file, "rb") as stream:
        order: Order = pickle.load(stream)
    _be_agent(order, None)


def forked(order: Order, function: Function) -> None:
    """In a process that the caller has just forked: let go of what belongs to the caller, and never return.

    ``function`` is run in each worker, which is a fork of this process's keeper.
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
        prctl.die_with_parent()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # otherwise ends of children could not be waited for
        if os.getppid() == order.caller:
            code = _answer(order, function)
    finally:
        queued_stderr.drain()
        os._exit(code)


def _answer(order: Order, function: Function | None) -> int:
    open_standard_streams()
    setup_logging("elastic_launch", verbose=debug_wanted(), quiet=True)
    os.environ.pop(ERROR_FILE, None)  # it is the caller's, who writes to it if decorated with torch's record
    called = _Called(order, function)
    try:
        _launch(order, called)
    except Exception as error:
        called.answer = Answer(error=_sendable(error))
    write_whole(order.answer, replace(called.answer, notices=called.notices))
    return 0


def _launch(order: Order, called: _Called) -> None:
    from rdzv_launcher.run.command_line.parser import build_parser
    from rdzv_launcher.run.launch import launch
    from rdzv_launcher.run.preparation import Preparation

    args = build_parser().parse(order.arguments)
    args.by_variable = frozenset()
    with importing_torch():
        called.load_logs()
        start = Preparation(args)
        start.take_all_steps()
    called.notices = tuple(map(int, start.notice.signals))
    if start.request.idle:
        return
    spec = replace(start.spec, prefix_template=order.prefix_template)
    if order.command:
        spec = replace(spec, program=Program(Kind.COMMAND, order.command[0], order.command[1:]))
    if order.forkserver:
        spec = replace(spec, preload=tuple(dict.fromkeys((*order.forkserver, *spec.preload))))
    if called.inherited.function is not None:
        spec = replace(spec, preload=())
    start.spec = spec
    launch(start, called)


class _Called(Caller):
    """Turns the end of a launch into an ``Answer``."""

    def __init__(self, order: Order, function: Function | None) -> None:
        self.inherited = Inherited(order.descriptors, function)
        self.logs_specs: Any = None
        self.answer = Answer()
        self.notices: tuple[int, ...] = ()
        self._logs = order.logs_specs

    def load_logs(self) -> None:
        """Bring back the caller's own object for log files."""
        if self._logs:
            self.logs_specs = pickle.loads(self._logs)

    def ended(self, ending: Ending) -> None:
        """Keep what the caller is told."""
        first = ending.first
        if first is not None:
            failures: dict[int, WorkerFailure] = {each.global_rank: each for each in ending.failures}
            here = first.global_rank in failures
            if not here:
                failures = {first.global_rank: worker_failure(first, time.time()), **failures}
            self.answer = Answer(failures=failures, first=first.global_rank, first_here=here, text=ending.text)
        elif ending.error is not None:
            self.answer = Answer(error=_sendable(ending.error))
        elif ending.signal is not None:
            self.answer = Answer(signal=int(ending.signal))
        elif ending.group is not None:
            pids = ending.group.pids
            self.answer = Answer(pids={each.global_rank: pids[each.local_rank] for each in ending.group.workers})


def _sendable(error: Exception) -> RdzvError:
    """The error, or one of ours that says the same if the error cannot be restored from a pickle."""
    if isinstance(error, RdzvError):
        try:
            if type(pickle.loads(pickle.dumps(error))) is type(error):
                return error
        except Exception:
            pass
        return RdzvError(str(error), remedy=error.remedy)
    return RdzvError(f"the launch met an internal error: {type(error).__name__}: {error}", remedy="Please report it.")


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
