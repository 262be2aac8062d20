"""``rdzv-run``: what the user types. Errors become one message and the exit code of their class."""

from __future__ import annotations

import contextlib
import gc
import linecache
import logging
import os
import sys
import traceback
from collections.abc import Iterator, Sequence

from rdzv_plugins.errors import RdzvError

logger = logging.getLogger(__name__)


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


def report(name: str, error: BaseException, *, verbose: bool) -> int:
    """Print an error as its message and remedy; returns the exit code."""
    if verbose:
        traceback.print_exception(error)
    if isinstance(error, RdzvError):
        print(f"{name}: error: {error}", file=sys.stderr)
        if error.remedy:
            print(f"{name}: {error.remedy}", file=sys.stderr)
        return error.exit_code
    print(f"{name}: internal error: {type(error).__name__}: {error}", file=sys.stderr)
    if not verbose:
        print(f"{name}: -v or RDZV_DEBUG=1 shows where. Please report it.", file=sys.stderr)
    return RdzvError.exit_code


@contextlib.contextmanager
def _frugal_import() -> Iterator[None]:
    """Around the imports: torch's 800 modules allocate much, leave next to no garbage, and stay.

    Fewer collections meanwhile save a tenth of the CPU time of starting. Frozen, what is there is not
    looked through again: not while the job runs, and not at the end, where that took 0.4 s.
    """
    thresholds = gc.get_threshold()
    gc.set_threshold(5000, 20, 20)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.freeze()


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of the ``rdzv-run`` command; returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    verbose = debug_wanted()
    quiet = "TORCH_CPP_LOG_LEVEL" not in os.environ and not verbose
    try:
        if quiet:  # torch's C++ part logs stack frames for every lost connection; ours says what it means
            os.environ["TORCH_CPP_LOG_LEVEL"] = "FATAL"
        if sys.platform == "win32":
            raise RdzvError("rdzv-run does not run on Windows", remedy="Use Linux (also under WSL), or torchrun.")
        with _frugal_import():
            from launcher.arguments import parse_arguments

            # source texts that torch has looked up, 1.7 MB that nobody reads again: room for our own modules
            linecache.clearcache()
            from launcher.launch import launch

        if quiet:  # read by torch when it is imported; the workers shall have torch's own level
            del os.environ["TORCH_CPP_LOG_LEVEL"]
        args = parse_arguments(arguments)
        verbose = verbose or args.verbose
        setup_logging("rdzv-run", verbose=verbose)
        return launch(args)
    except KeyboardInterrupt:
        print("rdzv-run: interrupted", file=sys.stderr)
        return 130
    except Exception as error:
        return report("rdzv-run", error, verbose=verbose)


if __name__ == "__main__":
    sys.exit(main())
