"""Signals: what was ignored when we started stays ignored (nohup); the rest stops the job and tells why.

A signal is an exception in the main thread, wherever that is just now. Two places are wrong for it: between the fork of
a worker and the note of its pid (``deferred``), and inside of code that takes every exception for its own, as logging
does: so it is remembered, too, and raised again before anything is started (``raise_arrived``).
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
from collections.abc import Callable, Iterator
from types import FrameType

from torch.distributed.elastic.multiprocessing import SignalException

from rdzv_launcher.run.fence import marked
from rdzv_plugins.errors import UsageError

logger = logging.getLogger(__name__)

VARIABLE = "TORCHELASTIC_SIGNALS_TO_HANDLE"
_UNUSED = signal.SIGURG
"""torch takes the signals of that variable over whenever it starts workers: this one, which nobody sends."""

_handled: list[signal.Signals] = []
_deferring = False
_arrived: signal.Signals | None = None
_at_another: Callable[[], None] | None = None
_VARIABLES = (VARIABLE, marked.VARIABLE, "OMP_NUM_THREADS")
"""The environment variables that a launch sets for torch's agent and for its workers."""


@contextlib.contextmanager
def given_back(names: str) -> Iterator[None]:
    """Restore the signals in ``names`` after a launch, for whoever calls it in a process of their own."""
    numbers = [getattr(signal, name.strip(), None) for name in names.split(",")]
    before = {number: signal.getsignal(number) for number in numbers if isinstance(number, signal.Signals)}
    variables = {name: os.environ.get(name) for name in _VARIABLES}
    try:
        yield
    finally:
        global _arrived
        _handled.clear()
        _arrived = None
        for number, handler in before.items():
            if handler is not None and handler is not signal.getsignal(number):  # None: none of Python's
                signal.signal(number, handler)
        for name, value in variables.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def install(names: str) -> None:
    """Handle the signals in ``names`` (comma-separated, as --signals-to-handle) from now on, during the rendezvous too.

    A signal ignored at start is left out. Raises ``UsageError``.
    """
    for name in filter(None, (part.strip() for part in names.split(","))):
        try:
            number = signal.Signals[name]
        except KeyError:
            raise UsageError(f"--signals-to-handle: there is no signal {name!r}") from None
        if signal.getsignal(number) is signal.SIG_IGN:
            continue
        try:
            signal.signal(number, _raise)
        except (OSError, ValueError) as error:
            raise UsageError(f"--signals-to-handle: {name} cannot be handled: {error}") from error
        _handled.append(number)
    logger.debug("handling signals: %s", ", ".join(number.name for number in _handled) or "none")
    if not names.strip(" ,"):
        raise UsageError("--signals-to-handle is empty", remedy="Name at least one signal, for example SIGTERM.")
    os.environ[VARIABLE] = _UNUSED.name


def for_workers() -> dict[str, str]:
    """A worker that starts processes with torch's means handles the signals that this process does."""
    return {VARIABLE: ",".join(number.name for number in _handled) or signal.SIGUSR2.name}  # torch needs one


@contextlib.contextmanager
def deferred() -> Iterator[None]:
    """A signal that arrives meanwhile is raised at the end. Around what must be done as a whole or not at all."""
    global _deferring
    raise_arrived()
    before = signal.getsignal(_UNUSED)
    _deferring = True
    try:
        yield
    finally:
        signal.signal(_UNUSED, before)
        _deferring = False
        raise_arrived()


def raise_arrived() -> None:
    """Raise the signal that has arrived, if one has: whoever caught it before did not know what it was."""
    if _arrived is not None:
        raise _exception(_arrived)


def at_another(call: Callable[[], None]) -> None:
    """Call it when a signal arrives after the first: whoever sends it does not want to wait. It takes no lock."""
    global _at_another
    _at_another = call


def _raise(number: int, frame: FrameType | None) -> None:
    global _arrived
    again, _arrived = _arrived is not None, signal.Signals(number)
    if not _deferring:
        if again and _at_another is not None:
            _at_another()
        raise _exception(_arrived)


def _exception(number: signal.Signals) -> SignalException:
    return SignalException(f"got {number.name}", sigval=number)


def ignore_all() -> None:
    """Ignore further signals: the process is ending, and nothing must interrupt its clean-up."""
    for number in _handled:
        signal.signal(number, signal.SIG_IGN)
