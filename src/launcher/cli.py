"""``rdzv-run``: what the user types. Errors become one message and the exit code of their class."""

from __future__ import annotations

import contextlib
import gc
import linecache
import os
import sys
from collections.abc import Iterator, Sequence

from launcher.console import debug_wanted, open_standard_streams, report, say, setup_logging
from rdzv_plugins.errors import RdzvError


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
    open_standard_streams()
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
        say("rdzv-run", "interrupted")
        return 130
    except Exception as error:
        return report("rdzv-run", error, verbose=verbose)


if __name__ == "__main__":
    sys.exit(main())
