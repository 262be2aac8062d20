"""``rdzv-run``: what the user types. Errors become one message and the exit code of their class."""

from __future__ import annotations

import contextlib
import gc
import linecache
import os
import sys
from collections.abc import Iterator, Sequence

from rdzv_launcher import queued_stderr
from rdzv_launcher.console import logging_given_back, open_standard_streams, report, say, setup_logging
from rdzv_launcher.version import version_line
from rdzv_plugins.errors import RdzvError, debug_wanted


@contextlib.contextmanager
def _frugal_import() -> Iterator[None]:
    """Import with a lazy garbage collector: torch's 800 modules allocate much, leave next to no garbage, and stay.

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
    open_standard_streams()
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments == ["--version"]:  # else the parser answers, which is torch's
        print(version_line(), flush=True)
        return 0
    verbose = debug_wanted()
    quiet = "TORCH_CPP_LOG_LEVEL" not in os.environ and not verbose
    try:
        if quiet:  # torch's C++ part logs stack frames for every lost connection; ours says what it means
            os.environ["TORCH_CPP_LOG_LEVEL"] = "FATAL"
        if sys.platform == "win32":
            raise RdzvError("rdzv-run does not run on Windows", remedy="Use Linux (also under WSL), or torchrun.")
        with _frugal_import():
            from rdzv_launcher.run.arguments import parse_arguments

            # source texts that torch has looked up, 1.7 MB that nobody reads again: room for our own modules
            linecache.clearcache()
            from rdzv_launcher.run.check import check
            from rdzv_launcher.run.launch import launch
            from rdzv_launcher.run.signals import given_back

        if quiet:  # read by torch when it is imported; the workers shall have torch's own level
            del os.environ["TORCH_CPP_LOG_LEVEL"]
        args = parse_arguments(arguments)
        verbose = verbose or args.verbose
        with contextlib.ExitStack() as changed:
            if argv is not None:  # else this process is about to end: a signal then is not to change its exit code
                changed.enter_context(given_back(args.signals_to_handle))
                changed.enter_context(logging_given_back())
            setup_logging("rdzv-run", verbose=verbose)
            return check(args) if args.check else launch(args)
    except KeyboardInterrupt:
        say("rdzv-run", "interrupted")
        return 130
    except Exception as error:
        return report("rdzv-run", error, verbose=verbose)
    finally:
        queued_stderr.drain()  # also for who has called this in a process of his own


if __name__ == "__main__":
    sys.exit(main())
