"""The process of a launch as its caller sees it: started, waited for, and ended if the caller cannot wait."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time
from multiprocessing import spawn

from rdzv_launcher.call import agent_process
from rdzv_launcher.call.agent_process import Function
from rdzv_launcher.call.order import Answer, Order
from rdzv_plugins.errors import LimitTooLow

_AGAIN_S = 0.02
_GRACE_S = 10.0
"""How much longer than its workers the process of a launch may take to end."""


class Agent:
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
                self._wait_for_anothers()

    def end(self, patience: float) -> None:
        """End it and its workers. They may take ``patience`` seconds; then they are killed."""
        for number, seconds in ((signal.SIGTERM, patience + _GRACE_S), (signal.SIGKILL, _GRACE_S)):
            deadline = time.monotonic() + seconds
            if self._status is None and self._lives():
                os.kill(self.pid, number)
            while self._lives() and time.monotonic() < deadline:
                time.sleep(_AGAIN_S)

    def answer(self) -> Answer | None:
        """Its answer; None if it ended without one."""
        try:
            with open(self._order.answer, "rb") as file:
                found: Answer = pickle.load(file)
        except FileNotFoundError:
            return None
        return found

    @property
    def how_it_ended(self) -> str:
        """How the process of a launch ended, in words."""
        code = os.waitstatus_to_exitcode(self._status or 0)
        return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"

    def _lives(self) -> bool:
        if self._status is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:
                return os.path.exists(f"/proc/{self.pid}")
            self._status = status if pid else None
        return self._status is None

    def _wait_for_anothers(self) -> None:
        while os.path.exists(f"/proc/{self.pid}"):
            time.sleep(_AGAIN_S)
        self._status = 0


def interpreter() -> list[str]:
    """The command of an interpreter with the flags of this one."""
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    return [os.fsdecode(spawn.get_executable()), *flags]


def _start(order: Order) -> int:
    file = f"{order.directory}/order"
    with open(file, "xb") as stream:
        pickle.dump(order, stream)
    process = subprocess.Popen(
        [*interpreter(), "-c", agent_process.BOOT, file, *order.path],
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
                agent_process.forked(order, function)
            finally:
                os._exit(1)
        return pid
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
