"""The environment variables that stand for flags: ``PET_`` and the flag's name, as in torchrun."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
from collections.abc import Iterator

from rdzv_plugins.errors import UsageError

_ALSO = {
    "exit_barrier_timeout": "TORCH_ELASTIC_EXIT_BARRIER_TIMEOUT",
    "hang_timeout": "RDZV_HANG_TIMEOUT",
    "health_port": "TORCHELASTIC_HEALTH_CHECK_PORT",
    "leave_background": "RDZV_LEAVE_BACKGROUND",
    "notice_signals": "RDZV_NOTICE_SIGNALS",
    "preempt_grace": "RDZV_PREEMPT_GRACE",
    "preflight": "RDZV_PREFLIGHT",
    "preload": "RDZV_PRELOAD",
    "timeline": "RDZV_TIMELINE",
    "worker_notice_signal": "RDZV_WORKER_NOTICE_SIGNAL",
    "worker_stacks": "RDZV_WORKER_STACKS",
}
"""Other variables, including torch's, that mean the same as a flag. The flag's own variable wins."""


def variable_of(dest: str) -> str:
    """The variable of the option with this destination."""
    return f"PET_{dest.upper()}"


def source_of(dest: str) -> str | None:
    """The variable that gives this option a value now; None if none is set. An empty variable counts as set."""
    names = (variable_of(dest), *([_ALSO[dest]] if dest in _ALSO else []))
    return next((name for name in names if name in os.environ), None)


@contextlib.contextmanager
def blaming_variables(args: argparse.Namespace) -> Iterator[None]:
    """Within this context, a ``UsageError`` about a flag that nobody has written names the variable instead."""
    try:
        yield
    except UsageError as error:
        text = str(error)
        for dest in args.by_variable:
            flag = rf"--{dest.replace('_', '[-_]')}(?![\w-])"
            text = re.sub(flag, source_of(dest) or variable_of(dest), text)
        error.args = (text,)
        raise
