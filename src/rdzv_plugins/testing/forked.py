"""Processes of nodes: forks of one that has imported torch, so that each of them costs milliseconds.

The program that forks is Python's own, ``multiprocessing``'s "forkserver". It is started for the first of them, with
its variables: those that are read when an interpreter starts, or a library is imported, count only there. It ends with
the process of the tests, however that ends, and all that it has forked with it.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar
from unittest import mock

from rdzv_plugins.interfaces import Request
from rdzv_plugins.system import prctl

F = TypeVar("F", bound="Forked")

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    ["pytest", "rdzv_plugins.dynamic.handler", "rdzv_plugins.elastic.handler", "rdzv_plugins.testing.commands"]
)
_START_S = 180.0
"""More than importing torch takes on a busy machine."""
_BECOME = "become"
_IGNORED = (signal.SIGPIPE, signal.SIGXFSZ)
"""Signals that every program in Python ignores."""


class Forked:
    """A node's process, and the connection to it. For use by one thread. A context manager: at its end it is gone."""

    def __init__(
        self, output: Path, environment: Mapping[str, str], run: Callable[..., None], request: Request, *arguments: Any
    ) -> None:
        """``run(connection, request, *arguments)`` is called there, in the directory of ``output``, where it prints.

        ``run`` is a function of a module, and ``environment`` is added to the variables of this process.
        """
        sys.audit("rdzv.forks.start", run.__name__)
        self.output = output
        self.connection, theirs = _CONTEXT.Pipe()
        variables = {**os.environ, **environment}
        told = run, replace(request, conf=dict(request.conf)), *arguments
        self._process = _CONTEXT.Process(target=_become, args=(theirs, output, variables, sys.path, *told), daemon=True)
        with theirs, mock.patch.dict(os.environ, environment):
            self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid
        if not self.connection.poll(_START_S) or self.connection.recv() != _BECOME:
            raise RuntimeError(f"no process of a node was forked within {_START_S:g} s")

    @property
    def code(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs."""
        return self._process.exitcode

    @property
    def log(self) -> str:
        return self.output.read_text(errors="replace")

    def wait(self, timeout: float) -> int | None:
        """Its exit code; None if it still runs after ``timeout`` seconds."""
        self._process.join(timeout)
        return self._process.exitcode

    def kill(self) -> None:
        """Kill the node as when its machine loses power; returns when it has ended."""
        self._process.kill()
        self._process.join()

    def close(self) -> None:
        """End its process at once, whatever it is doing."""
        try:
            self.kill()
        finally:
            self.connection.close()  # that also ends a child that it has left

    def __enter__(self: F) -> F:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _become(connection: Connection, output: Path, variables: Mapping[str, str], path: list[str], *told: Any) -> None:
    """Turn this fork into a process of its own."""
    os.setsid()  # Ctrl-C is for the tests, which then end what they have started
    prctl.die_with_parent(os.getppid())
    tests = multiprocessing.parent_process()
    if tests is None or not tests.is_alive():  # then the program that forks may have ended before
        os._exit(1)
    for name in os.listdir("/proc/self/fd"):  # one of them would keep the program that forks, when the tests have ended
        if int(name) > 2 and int(name) != connection.fileno():
            with suppress(OSError):  # that of the list itself
                os.close(int(name))
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        as_at_start = signal.SIG_IGN if number in _IGNORED else signal.SIG_DFL
        if signal.getsignal(number) is not as_at_start:
            signal.signal(number, as_at_start)
    written = os.open(output, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    for stream in (1, 2):
        os.dup2(written, stream)
    os.close(written)
    os.chdir(output.parent)
    os.environ.clear()
    os.environ.update(variables)
    sys.path[:] = path
    connection.send(_BECOME)  # from now on it ends with the tests, also if it is stopped
    run, request, *arguments = told
    run(connection, replace(request, conf=MappingProxyType(request.conf)), *arguments)
