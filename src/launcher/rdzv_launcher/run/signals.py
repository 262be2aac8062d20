"""The signals of --signals-to-handle as text, and what a launch changes in its process."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator

from rdzv_launcher.run.fence import marked
from rdzv_plugins.errors import UsageError


@contextlib.contextmanager
def given_back(names: str) -> Iterator[None]:
    """Restore the signals in ``names`` after a launch, for whoever calls it in a process of their own."""
    numbers = [getattr(signal, name.strip(), None) for name in names.split(",")]
    before = {number: signal.getsignal(number) for number in numbers if isinstance(number, signal.Signals)}
    marks = os.environ.get(marked.VARIABLE)
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler is not None and handler is not signal.getsignal(number):  # None: none of Python's
                signal.signal(number, handler)
        os.environ.pop(marked.VARIABLE, None)
        if marks is not None:
            os.environ[marked.VARIABLE] = marks


def read(names: str) -> list[signal.Signals]:
    """The signals in ``names`` (comma-separated, as --signals-to-handle). Raises ``UsageError``."""
    found = []
    for name in filter(None, (part.strip() for part in names.split(","))):
        try:
            found.append(signal.Signals[name])
        except KeyError:
            raise UsageError(f"--signals-to-handle: there is no signal {name!r}") from None
        if name in ("SIGKILL", "SIGSTOP"):
            raise UsageError(
                f"--signals-to-handle: {name} cannot be handled: it ends or stops a process without asking"
            )
    if not found:
        raise UsageError("--signals-to-handle is empty", remedy="Name at least one signal, for example SIGTERM.")
    return found
