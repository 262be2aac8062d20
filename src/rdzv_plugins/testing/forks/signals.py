"""Signals as a terminal gives them, for each process that a test starts."""

from __future__ import annotations

import signal
from collections.abc import Callable

_OF_TERMINALS = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)


def default_signals() -> None:
    """Signals as a terminal gives them: CI, nohup and background jobs start us with some ignored."""
    for number in _OF_TERMINALS:
        signal.signal(number, signal.SIG_DFL)


def before_exec() -> Callable[[], None] | None:
    """The ``preexec_fn`` of a process that is to have ``default_signals``: None where it has them without.

    A new program has the default for all that is not ignored. To run anything before that takes a copy of this process
    in place of a mere start: where torch is imported, that is 10 ms in place of 1.
    """
    ignored = any(signal.getsignal(number) is signal.SIG_IGN for number in _OF_TERMINALS)
    return default_signals if ignored else None
