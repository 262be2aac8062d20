"""Children that end with their parent, also when it is killed; how it ends them, and what they said last."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
from collections.abc import Callable
from typing import IO, Any

_PR_SET_PDEATHSIG = 1
_TAIL_LINES = 12


def with_parent(number: int = signal.SIGKILL) -> Callable[[], None]:
    """To be called by the parent; what it returns is for the child, as ``preexec_fn`` or after a fork.

    The child then gets that signal when the thread that has started it ends. The arrangement outlives an exec.
    """
    prctl, parent = ctypes.CDLL(None).prctl, os.getpid()

    def arrange() -> None:
        prctl(_PR_SET_PDEATHSIG, number)
        if os.getppid() != parent:  # too late for the signal
            os._exit(1)

    return arrange


def end_by_input(process: subprocess.Popen[Any], patience_s: float) -> None:
    """End a child that ends with its standard input, by SIGKILL if it does not; closes both of its pipes."""
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            stream.close()
    try:
        process.wait(patience_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def tail(stderr: IO[Any]) -> str:
    """The last lines of a file that a child writes its errors to, ready to stand below a message."""
    stderr.seek(0)
    said = stderr.read()
    text = said.decode(errors="replace") if isinstance(said, bytes) else said
    return "".join(f"\n  | {line}" for line in text.strip().splitlines()[-_TAIL_LINES:])
