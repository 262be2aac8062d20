"""``rdzv-run``, the command that users type. Errors become one message and the exit code of their class."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Sequence

from rdzv_launcher.console import drain_stderr, logging_given_back, open_standard_streams, report, say, setup_logging
from rdzv_launcher.run.importing import importing_torch
from rdzv_launcher.run.parser import parse_arguments
from rdzv_plugins.errors import RdzvError, debug_wanted

logger = logging.getLogger(__name__)


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of the ``rdzv-run`` command; returns the exit code.

    What needs torch imports it last, once everything that can be wrong without it has been checked: so mistakes are
    reported at once.
    """
    open_standard_streams()
    verbose = debug_wanted()
    try:
        args = parse_arguments(sys.argv[1:] if argv is None else argv)
        verbose = verbose or args.verbose
        if sys.platform == "win32":
            raise RdzvError("rdzv-run does not run on Windows", remedy="Use Linux (also under WSL), or torchrun.")
        from rdzv_launcher.run.preparation import Preparation
        from rdzv_launcher.run.signals import given_back

        with contextlib.ExitStack() as changed:
            if argv is not None:  # otherwise this process is about to end: then a signal must not change its exit code
                changed.enter_context(given_back())
                changed.enter_context(logging_given_back())
            setup_logging("rdzv-run", verbose=verbose)
            # a plug-in may import it
            with importing_torch():
                if args.check:
                    from rdzv_launcher.run.check import check

                    return check(args)
                start = Preparation(args).take_all_steps()
                if start.request.idle:
                    logger.info("nothing to do here: %s", start.request.idle)
                    return 0
                from rdzv_launcher.run.launch import launch
            return launch(start).end.exit_code
    except KeyboardInterrupt:
        say("rdzv-run", "interrupted")
        return 130
    except Exception as error:
        return report("rdzv-run", error, verbose=verbose)
    finally:
        drain_stderr()  # also for callers within their own process


if __name__ == "__main__":
    sys.exit(main())
