"""Signals of --signals-to-handle and other flags as text, and what a launch changes in its process."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator

from rdzv_launcher.run.supervisor.descendants import VARIABLE
from rdzv_plugins.errors import UsageError


@contextlib.contextmanager
def given_back() -> Iterator[None]:
    """Restore all signals after a launch, for callers that launch within their own process."""
    before = {number: signal.getsignal(number) for number in signal.valid_signals()}
    marks = os.environ.get(VARIABLE)
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler is not None and handler is not signal.getsignal(number):  # None: a handler not set by Python
                signal.signal(number, handler)
        os.environ.pop(VARIABLE, None)
        if marks is not None:
            os.environ[VARIABLE] = marks


def read(names: str, flag: str = "--signals-to-handle") -> list[signal.Signals]:
    """The signals in ``names`` (comma-separated, as in --signals-to-handle). Raises ``UsageError`` naming ``flag``."""
    found: list[signal.Signals] = []
    for name in filter(None, (part.strip() for part in names.split(","))):
        try:
            number = signal.Signals[name if name.startswith("SIG") else f"SIG{name}"]
        except KeyError:
            raise UsageError(f"{flag}: there is no signal {name!r}") from None
        if number in (signal.SIGKILL, signal.SIGSTOP):
            raise UsageError(f"{flag}: {name} cannot be handled: it ends or stops a process without asking")
        found.append(number)
    if not found:
        raise UsageError(f"{flag} is empty", remedy="Name at least one signal, for example SIGTERM.")
    return found
