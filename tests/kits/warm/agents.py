"""Launchers without the seconds that imports take: forks of ``program``, which has already imported them.

Each process that runs tests has up to two of these: one without torch, and one with it, for agents that would import it
or whose workers may be warm.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import re
import resource
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from pathlib import Path

from kits.warm import program
from kits.warm.program import asks_for_it
from rdzv_plugins.interfaces import Capability
from rdzv_plugins.registry import PluginHost
from rdzv_plugins.testing.processes import before_exec, clean_environment

_START_S = 180.0
"""Seconds to wait for an answer of the program: more than importing torch takes on a busy machine."""
_READ_AT_START = ("LD_", "PYTHON", "TORCH", "OMP_", "MALLOC_", "RDZV_DEBUG")
"""The beginnings of the names of variables that must be there when the interpreter starts, or torch is imported."""
_ROOM, _LONGEST = 32_000, 4_000
"""How many bytes of variables and of a command line /proc can show of a fork, over those of the program."""


class Fork:
    """A forked process, used like a ``subprocess.Popen``. ``wait`` and ``poll`` may be called from any thread."""

    def __init__(self, pid: int, args: Sequence[str]) -> None:
        self.pid, self.args = pid, args
        self.code: Future[int] = Future()
        """Its exit code, negative for a signal; ``RuntimeError`` if nobody can know it, as the program has ended."""

    def poll(self) -> int | None:
        """The code, once it has ended."""
        return self.code.result() if self.code.done() else None

    def wait(self, timeout: float | None = None) -> int:
        """The code. Raises ``subprocess.TimeoutExpired`` after ``timeout`` seconds."""
        try:
            return self.code.result(timeout)
        except FutureTimeout:
            raise subprocess.TimeoutExpired(self.args, timeout or 0) from None


class Program:
    """The program that forks. Thread-safe: one request at a time."""

    def __init__(self, kind: str, environment: Mapping[str, str]) -> None:
        """``kind``: ``torch`` or ``light``."""
        self._kind, self._owner = kind, os.getpid()
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, program.__file__, str(theirs.fileno()), kind, "x" * _LONGEST]
        with theirs:
            self._process = subprocess.Popen(
                command,
                env={**environment, "RDZV_TEST_ROOM": "x" * _ROOM},
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                preexec_fn=before_exec(),
                start_new_session=True,  # Ctrl-C is for the tests, which then end what they have started
            )
        self._lock = threading.Lock()
        self._args: Sequence[str] = ()  # of the process that is asked for
        self._asked: Future[Fork] = Future()
        self._forks: dict[int, Fork] = {}
        threading.Thread(target=self._read, name="forks", daemon=True).start()
        atexit.register(self.close)

    def start(
        self,
        name: str,
        arguments: Sequence[str],
        env: Mapping[str, str],
        output: Path,
        inside: int = 0,
    ) -> Fork:
        """A new agent, once it has become what was asked for; its directory is that of its ``output``.

        ``inside``: a process whose network, host name and mounts it has to share. Raises ``RuntimeError`` if the
        program has ended, or has not answered for ``_START_S``.
        """
        sys.audit("rdzv.forks.start", self._kind)
        request = {
            "program": name,
            "arguments": [*arguments],
            "environment": {**env},
            "output": str(output),
            "files": resource.getrlimit(resource.RLIMIT_NOFILE),
            "inside": inside,
        }
        with self._lock:
            self._args, self._asked = [name, *arguments], Future()
            try:
                self._control.send(json.dumps(request).encode())
                return self._asked.result(_START_S)
            except ConnectionError:
                raise self._lost("has ended") from None
            except FutureTimeout:
                self._process.kill()
                raise self._lost(f"has not answered for {_START_S:g} s") from None

    @property
    def alive(self) -> bool:
        """Whether it can still be asked for processes."""
        return self._process.poll() is None

    def close(self) -> None:
        """End it. May be repeated."""
        if os.getpid() != self._owner:
            return  # a fork of the tests: the program is not its own
        atexit.unregister(self.close)
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)
        try:
            self._process.wait(_START_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._control.close()

    def _lost(self, how: str) -> RuntimeError:
        return RuntimeError(f"the process that forks agents (pid {self._process.pid}) {how}, see its output above")

    def _read(self) -> None:
        while data := self._receive():
            pid, code = json.loads(data)
            if code is None:
                fork = self._forks[pid] = Fork(pid, self._args)
                self._asked.set_result(fork)
            else:
                self._forks.pop(pid).code.set_result(code)
        for future in (self._asked, *(fork.code for fork in self._forks.values())):
            if not future.done():
                future.set_exception(self._lost("has ended"))

    def _receive(self) -> bytes:
        try:
            return self._control.recv(1 << 16)
        except OSError:
            return b""


def warm_agent(name: str, arguments: Sequence[str], output: Path, env: Mapping[str, str], inside: int = 0) -> Fork:
    """Start a process that is like the command of that name, except for how its interpreter has started.

    stdout and stderr go to ``output``, and its directory is that of ``output``. If the program has died, another one is
    started: what it has forked is lost, but not all later tests.
    """
    output.write_bytes(b"")
    kind = "torch" if _wants_torch(name, arguments, output.parent, env) else "light"
    key = os.getpid(), kind  # a fork of this process has none yet
    if key not in _running or not _running[key].alive:
        _running[key] = Program(kind, _environment())
    return _running[key].start(name, arguments, env, output, inside)


_running: dict[tuple[int, str], Program] = {}


def can_be_warm(env: Mapping[str, str]) -> bool:
    """Whether an agent with these variables may begin in a process that has others."""
    return _of_the_start(env) == _of_the_start(_environment())


def _of_the_start(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if name.startswith(_READ_AT_START)}


def _wants_torch(name: str, arguments: Sequence[str], directory: Path, env: Mapping[str, str]) -> bool:
    """Whether the agent is likely to import torch, or to have a worker that may be warm. A wrong guess costs time."""
    told = [*arguments, *(value for each, value in env.items() if each.startswith(("PET_", "RDZV_")))]
    words = {word for text in told for word in re.split(r"[=,]", text)}
    return (
        name == "torchrun"
        or any(text.startswith(("--preload", "--check")) or "torch" in text for text in arguments)
        or not words.isdisjoint(_torchs_own())
        or any(asks_for_it(directory / text) for text in arguments if text.endswith(".py"))
    )


@functools.cache
def _torchs_own() -> frozenset[str]:
    """The names of backends that use the rendezvous of torch's launcher."""
    backends = [entry.backend for entry in PluginHost.load().catalog.entries()]
    own = [backend for backend in backends if Capability.TORCHRUN_PEERS in backend.capabilities]
    return frozenset(name for backend in own for name in (backend.name, *backend.aliases))


@functools.cache
def _environment() -> dict[str, str]:
    return clean_environment()
