"""Child processes: the line with which one says that it is ready, its answers, its last words, and its end.

They end with their standard input, so nothing is left behind if the process that started them is killed.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TypeVar

from rdzv_launcher.bench.method.readings import exact_cpu_seconds
from rdzv_plugins.errors import RdzvError
from rdzv_plugins.linux import prctl

C = TypeVar("C", bound="Child")

_LAST_LINES = 12


class NoAnswer(RdzvError):
    """A child has said nothing within its time."""


class Child:
    """A separate process. A context manager: at the end of the block it has ended. For one thread."""

    def __init__(
        self,
        what: str,
        command: Sequence[str],
        *,
        end_limit_s: float = 5.0,
        environment: Mapping[str, str] | None = None,
        before: Callable[[], None] | None = None,
    ) -> None:
        """Returns at once. ``what`` is its name in messages; ``before`` is what the child calls before the command.

        ``end_limit_s``: how long it may take to end by itself before it is killed.
        """
        self._what, self._end_limit_s = what, end_limit_s
        self._stderr = tempfile.TemporaryFile()  # thousands of nodes may warn: no pipe holds that  # noqa: SIM115
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env=environment,
            start_new_session=True,  # Ctrl-C is for the benchmark, which then ends it
            preexec_fn=before,
        )

    def __enter__(self: C) -> C:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_ready(self, limit_s: float) -> str:
        """Its first line. Raises ``RdzvError`` with its last words if there is none."""
        try:
            return self.read(limit_s)
        except RdzvError:
            raise RdzvError(f"{self._what} did not start{self._last_words()}") from None

    def read(self, limit_s: float) -> str:
        """The next line that it says. Raises ``NoAnswer``, and ``RdzvError`` with its last words if it has ended."""
        assert self._process.stdout is not None, "started with a pipe"
        with selectors.DefaultSelector() as selector:  # an answer is one line: none is left in the stream's buffer
            selector.register(self._process.stdout, selectors.EVENT_READ)
            if not selector.select(limit_s):
                raise NoAnswer(f"{self._what} has not answered within {limit_s:g} s")
        line = self._process.stdout.readline()
        if not line:
            raise self._ended()
        return os.fsdecode(line).rstrip("\n")

    def ask(self, question: str, limit_s: float) -> str:
        """Its answer to a line. Raises what ``read`` raises."""
        self.tell(question)
        return self.read(limit_s)

    def tell(self, line: str) -> None:
        """Write a line to it. If it has ended, ``read`` will say so."""
        assert self._process.stdin is not None, "started with a pipe"
        try:
            self._process.stdin.write(os.fsencode(line) + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # its last words say more

    def own_cpu_seconds(self) -> float:
        """Its CPU time so far, user and system. Raises ``RdzvError`` with its last words if it has ended."""
        try:
            return exact_cpu_seconds(self.pid)
        except OSError:
            raise self._ended() from None

    def end(self) -> None:
        """End it, if it has not ended: by closing its standard input, or by SIGKILL."""
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):  # it ended before it took what was written
                    stream.close()
        try:
            self._process.wait(self._end_limit_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._stderr.close()

    def _ended(self) -> RdzvError:
        try:
            code = self._process.wait(self._end_limit_s)
        except subprocess.TimeoutExpired:  # it has closed its output, and goes on
            self._process.kill()
            code = self._process.wait()
        return RdzvError(f"{self._what} {ended_by(code)}{self._last_words()}")

    def _last_words(self) -> str:
        self._stderr.seek(0)
        lines = self._stderr.read().decode(errors="replace").strip().splitlines()[-_LAST_LINES:]
        return "".join(f"\n  | {line}" for line in lines)


def module_command(name: str, *arguments: str) -> list[str]:
    """The command that runs a module of this package, ``name`` below ``rdzv_launcher.bench``, as a program."""
    return [sys.executable, "-m", f"rdzv_launcher.bench.{name}", *arguments]


def ended_by(code: int) -> str:
    """How a process ended, in words: by its exit code or, if that is negative, by a signal."""
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


def with_parent(number: int = signal.SIGKILL) -> Callable[[], None]:
    """Called by the parent; it returns a function for the child, to use as ``preexec_fn`` or after a fork.

    The child then gets that signal when the thread that started it ends. The arrangement outlives an exec.
    """
    parent = os.getpid()

    def arrange() -> None:
        prctl.die_with_parent(number)
        if os.getppid() != parent:  # too late for the signal
            os._exit(1)

    return arrange
