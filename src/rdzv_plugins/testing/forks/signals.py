"""Signals as set by a terminal, for each process that a test starts."""

from __future__ import annotations

import signal
from collections.abc import Callable

_OF_TERMINALS = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)


def default_signals() -> None:
    """Set signals as a terminal does: CI, nohup and background jobs start us with some ignored."""
    for number in _OF_TERMINALS:
        signal.signal(number, signal.SIG_DFL)


def before_exec() -> Callable[[], None] | None:
    """The ``preexec_fn`` of a process that should have ``default_signals``; None if it has them anyway.

    A new program has the default for everything that is not ignored. Running anything before that takes a copy of this
    process instead of a mere start: with torch imported, that is 10 ms instead of 1.
    """
    ignored = any(signal.getsignal(number) is signal.SIG_IGN for number in _OF_TERMINALS)
    return default_signals if ignored else None
