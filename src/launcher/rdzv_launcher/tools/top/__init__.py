"""``rdzv top``: a job, or all jobs of an ``rdzv serve``, as they are now."""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import sys
from typing import Any

from rdzv_launcher.tools.job import add_job_flags, request_of
from rdzv_plugins.errors import EndpointUnreachable, MissingDependency, UsageError
from rdzv_plugins.plain_text import printable_data


def configure(commands: Any) -> None:
    """Add the sub-command's parser."""
    parser = commands.add_parser("top", help="watch a job, or all jobs of an rdzv serve: nodes, workers, events, waits")
    add_job_flags(
        parser,
        endpoint_required=True,
        timeout=10.0,
        endpoint_help="the endpoint of a job, one or several, or of an rdzv serve, which shows all of its jobs",
    )
    parser.add_argument(
        "--once", action="store_true", help="print it as text, and exit with 0 if all is well, else with 1"
    )
    parser.add_argument("--json", action="store_true", help="print it as JSON, and exit in the same way")


def run(args: argparse.Namespace) -> int:
    """Show it until the user quits, or once; returns the exit code. Raises ``RdzvError``."""
    from rdzv_launcher.tools.top.text import as_text
    from rdzv_launcher.tools.top.watching import EndpointWatch, is_well

    if not 1 <= args.timeout <= 120:
        raise UsageError(f"--timeout={args.timeout:g} is not between 1 and 120 seconds")
    once = args.once or args.json
    if not once:
        _check_screen()
    request = request_of(args)
    with contextlib.closing(EndpointWatch(request, args.timeout)) as watch:
        if not once:
            from rdzv_launcher.tools.top.screen import Screen

            watch.start()
            logging.disable(logging.CRITICAL)  # log lines would be written across the screen
            try:
                Screen(watch, request).run()
            finally:
                logging.disable(logging.NOTSET)
            return 0
        try:
            data = watch.look_once()
        except TimeoutError as error:
            raise EndpointUnreachable(
                f"{request.endpoint}: {error}", remedy="--timeout=SECONDS waits longer."
            ) from error
    print(json.dumps(data, indent=2) if args.json else as_text(printable_data(data)), flush=True)
    return 0 if all(map(is_well, data["jobs"])) and not data["left_out"] else 1


def _check_screen() -> None:
    """Raises ``UsageError`` without a terminal, ``MissingDependency`` without Textual."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError("rdzv top needs a terminal", remedy="`rdzv top --once` prints the same into a pipe or a file.")
    try:
        import textual  # noqa: F401
    except ImportError as error:
        raise MissingDependency(
            f"the screen of rdzv top is made by Textual, which cannot be imported: {error}",
            remedy="pip install 'rdzv-plugins[top]'. `rdzv top --once` prints the same without it.",
        ) from error
