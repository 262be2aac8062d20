"""What the commands have in common on the screen: log lines, errors, and a stderr that may be gone."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import traceback

from rdzv_plugins.errors import RdzvError


class _Format(logging.Formatter):
    """``12:00:01 rdzv-run warning: text``."""

    def __init__(self, program: str) -> None:
        super().__init__()
        self._program = program

    def format(self, record: logging.LogRecord) -> str:
        level = "" if record.levelno == logging.INFO else f" {record.levelname.lower()}"
        text = f"{self.formatTime(record, '%H:%M:%S')} {self._program}{level}: {record.getMessage()}"
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


def setup_logging(program: str, *, verbose: bool) -> None:
    """Our own log lines go to stderr."""
    handler = logging.StreamHandler()
    handler.setFormatter(_Format(program))
    for root in ("rdzv_plugins", "launcher"):
        ours = logging.getLogger(root)
        ours.handlers[:] = [handler]
        ours.setLevel(logging.DEBUG if verbose else logging.INFO)
        ours.propagate = False


def debug_wanted() -> bool:
    """True when RDZV_DEBUG asks for tracebacks."""
    return os.environ.get("RDZV_DEBUG", "") not in ("", "0")


def say(program: str, text: str) -> None:
    """A line for the user. Whoever read our stderr may be gone: the exit code must not depend on that."""
    with contextlib.suppress(OSError, ValueError):
        # one write: where stderr is not buffered (python -u), print() writes the line's end apart
        sys.stderr.write(f"{program}: {text}\n")
        sys.stderr.flush()


def report(program: str, error: BaseException, *, verbose: bool) -> int:
    """Print an error as its message and remedy; returns the exit code."""
    if verbose:
        with contextlib.suppress(OSError, ValueError):
            traceback.print_exception(error)
    if isinstance(error, RdzvError):
        say(program, f"error: {error}")
        if error.remedy:
            say(program, error.remedy)
        return error.exit_code
    say(program, f"internal error: {type(error).__name__}: {error}")
    if not verbose:
        say(program, "-v or RDZV_DEBUG=1 shows where. Please report it.")
    return RdzvError.exit_code


def open_standard_streams() -> None:
    """Fill the places of closed standard streams (``2>&-``): the next file or socket would take their number."""
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number: this one
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115
