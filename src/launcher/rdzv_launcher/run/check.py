"""``rdzv-run --check``: what can be known before the start, one line for each finding, and how the launch would end."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import traceback
from collections.abc import Sequence

from rdzv_launcher.console import of_the_system, warnings_collected
from rdzv_launcher.run.checks import CHECKS, Check, NotKnown, Start
from rdzv_plugins.errors import RdzvError
from rdzv_plugins.plain_text import printable

_LONGEST = 4000


def check(args: argparse.Namespace, checks: Sequence[Check] = CHECKS) -> int:
    """Make all ``checks`` and print what they find.

    Returns 0 if the job could start, otherwise the exit code with which its launch would end.
    """
    codes: dict[str, int] = {}
    out: set[str] = set()
    with contextlib.ExitStack() as held:
        start = Start(args, held)
        for each in checks:
            if broken := [name for name in each.after if name in out]:
                _say("skipped", each.name, f"it builds on: {', '.join(broken)}")
                out.add(each.name)
            elif code := _made(each, start):
                codes[each.name] = code
                out.add(each.name)
    if not codes:
        _print("The job could start here.")
        return 0
    code = next(iter(codes.values()))
    _print(f"The job would not start here: it would end with exit code {code} ({', '.join(codes)}).")
    return code


def _made(each: Check, start: Start) -> int:
    """Make a check; returns the exit code with which the launch would end, 0 if it goes on."""
    error: BaseException | None = None
    found = ""
    with warnings_collected() as warned:
        try:
            found = each.find(start)
        except Exception as raised:
            error = of_the_system(raised)
    if warned:
        _say("warning", each.name, "; ".join(warned))
    if error is None:
        if not warned:
            _say("ok", each.name, found)
        return 0
    if isinstance(error, NotKnown):
        _say("skipped", each.name, str(error))
        return 0
    if start.args.verbose:
        traceback.print_exception(error)
    if not isinstance(error, RdzvError):
        _say("FAILED", each.name, f"internal error: {type(error).__name__}: {error}")
        return RdzvError.exit_code
    text = str(error)
    _say("FAILED", each.name, f"{text}{'' if text.endswith(('.', '?', '!')) else '.'} {error.remedy}".rstrip())
    return error.exit_code


def _say(verdict: str, name: str, text: str) -> None:
    _print(f"{verdict:<8} {name}: {printable(text, _LONGEST)}")


def _print(line: str) -> None:
    """Print a line. The reader may have seen enough and be gone: the exit code must not depend on that."""
    try:
        print(line, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
