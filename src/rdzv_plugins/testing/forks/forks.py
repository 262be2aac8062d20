"""The program that forks, as the tests see it, and each process that it has forked."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from rdzv_plugins.testing.forks.signals import before_exec

START_S = 180.0
"""Seconds to wait for an answer of the program: more than importing torch takes on a busy machine."""


class Fork:
    """A forked process, used like a ``subprocess.Popen``. ``wait`` and ``poll`` may be called from any thread."""

    def __init__(self, pid: int, args: Sequence[str], program: Forks) -> None:
        self.pid, self.args, self._program = pid, list(args), program
        self._code: int | None = None
        self._ended = threading.Event()

    def end(self, code: int | None) -> None:
        """Note that it has ended; ``code`` is None if nobody knows how, as the program has ended."""
        self._code = code
        self._ended.set()

    def poll(self) -> int | None:
        """The exit code, negative for a signal, once it has ended. Raises ``RuntimeError`` if nobody can know it."""
        if self._ended.is_set() and self._code is None:
            raise self._program.lost()
        return self._code

    def wait(self, timeout: float | None = None) -> int:
        """Like ``poll``, once it has ended. Raises ``subprocess.TimeoutExpired`` after ``timeout`` seconds."""
        self._ended.wait(timeout)
        code = self.poll()
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return code


class Forks:
    """The program that forks. Thread-safe: one request at a time."""

    def __init__(
        self,
        module: str,
        argument: str,
        environment: Mapping[str, str],
        padding: int = 0,
        python: str = sys.executable,
    ) -> None:
        """``padding``: how many bytes to add to its command line, over which a fork may write its own."""
        self._module, self._owner = module, os.getpid()
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [python, "-m", "rdzv_plugins.testing.forks.program", str(theirs.fileno()), module, argument]
        with theirs:
            self._process = subprocess.Popen(
                [*command, "x" * padding],
                env={**environment},
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                preexec_fn=before_exec(),
                start_new_session=True,  # Ctrl-C is for the tests, which then end what they have started
            )
        self._lock = threading.Lock()
        self._said = threading.Condition()
        self._args: Sequence[str] = ()  # of the process that is asked for
        self._started: list[Fork] = []
        self._forks: dict[int, Fork] = {}
        self._over = False
        threading.Thread(target=self._read, name="forks", daemon=True).start()
        atexit.register(self.close)

    def start(self, request: Mapping[str, Any], args: Sequence[str], fds: Sequence[int] = ()) -> Fork:
        """A new process, once it has become what ``request`` asks for; ``args`` is the name that errors use for it.

        Raises ``RuntimeError`` if the program has ended, or has not answered for ``START_S``.
        """
        sys.audit("rdzv.forks.start", self._module)
        with self._lock, os.fdopen(os.memfd_create("request"), "wb+") as file:
            file.write(json.dumps(request).encode())
            file.flush()
            file.seek(0)
            self._args = args
            try:
                socket.send_fds(self._control, [b"x"], [file.fileno(), *fds])
            except OSError:
                raise self.lost() from None
            with self._said:
                self._said.wait_for(lambda: self._started or self._over, START_S)
                if not self._started:
                    error = self.lost()
                    self._process.kill()
                    raise error
                return self._started.pop()

    @property
    def alive(self) -> bool:
        """Whether it can still be asked for processes."""
        return self._process.poll() is None

    def lost(self) -> RuntimeError:
        """The error for a program that has ended."""
        how = "has ended, see its output above" if self._over else f"has not answered for {START_S:g} s"
        return RuntimeError(f"the process that forks for {self._module} (pid {self._process.pid}) {how}")

    def close(self) -> None:
        """End it. May be repeated."""
        if os.getpid() != self._owner:
            return  # a fork of the tests: the program is not its own
        atexit.unregister(self.close)
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)
        try:
            self._process.wait(START_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._control.close()

    def _read(self) -> None:
        while data := self._receive():
            pid, code = json.loads(data)
            with self._said:
                if code is None:
                    fork = self._forks[pid] = Fork(pid, self._args, self)
                    self._started.append(fork)
                else:
                    self._forks.pop(pid).end(code)
                self._said.notify_all()
        with self._said:
            self._over = True
            for fork in self._forks.values():
                fork.end(None)
            self._said.notify_all()

    def _receive(self) -> bytes:
        try:
            return self._control.recv(1 << 16)
        except OSError:
            return b""


def forks(
    module: str, argument: str, environment: Mapping[str, str], early: Mapping[str, str], padding: int = 0
) -> Forks:
    """The program of this process for ``module``, ``argument`` and the variables ``early``, which differ between some.

    It is started with ``environment`` at the first use, and ends with this process. If it has died, another one is
    started: what it has forked is lost, but not all later tests.
    """
    key = os.getpid(), module, argument, tuple(sorted(early.items()))  # a fork of this process has none yet
    if key not in _running or not _running[key].alive:
        _running[key] = Forks(module, argument, environment, padding)
    return _running[key]


_running: dict[tuple[int, str, str, tuple[tuple[str, str], ...]], Forks] = {}
