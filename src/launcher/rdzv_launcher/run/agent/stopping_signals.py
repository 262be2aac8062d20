"""The signals that stop a job, as events. Signals that were ignored when we started stay ignored (nohup).

A signal is put into the agent's inbox, whatever the main thread is doing, and is never lost. Where that thread waits
for others for long, the signal is also raised there, to end the wait: ``raising``.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from rdzv_launcher.run.agent.events import GraceOver, SignalArrived
from rdzv_launcher.run.signals import read
from rdzv_plugins.errors import UsageError
from rdzv_plugins.runtime import ITIMER_REAL, SIG_DFL, SIG_IGN, Runtime, Signals

logger = logging.getLogger(__name__)


class Interrupted(Exception):
    """A signal ended a wait. Code that catches every exception recognises it by ``sigval`` (``errors.is_signal``)."""

    def __init__(self, number: Signals) -> None:
        super().__init__(f"got {number.name}")
        self.sigval = number


class StoppingSignals:
    """The signals that stop this agent. One per agent, for the main thread."""

    def __init__(self, names: str, put: Callable[[SignalArrived | GraceOver], None], runtime: Runtime) -> None:
        """Handle the signals in ``names`` (comma-separated, as in --signals-to-handle) from now on, until ``close``.

        ``put`` is called in the middle of whatever the main thread is doing. Raises ``UsageError``.
        """
        self._put, self._runtime = put, runtime
        self._before: dict[Signals, Any] = {}
        self._raises = self._alarmed = False
        self._arrived: Signals | None = None
        try:
            for number in read(names):
                self._handle(number)
        except UsageError:
            self.close()
            raise
        logger.debug("handling signals: %s", ", ".join(number.name for number in self._before) or "none")

    @property
    def pending(self) -> bool:
        """Whether a signal has arrived that the agent has not taken from its inbox yet."""
        return self._arrived is not None

    def taken(self) -> None:
        """The agent has taken all arrived signals from its inbox."""
        self._arrived = None

    @contextlib.contextmanager
    def raising(self) -> Iterator[None]:
        """Within this context, a signal raises ``Interrupted``, even one that had arrived and was not taken yet."""
        try:
            try:
                self._raises = True
                if self._arrived is not None:
                    raise Interrupted(self._arrived)
                yield
            finally:
                self._raises = False
        finally:
            self._raises = False  # a signal may have come just before this was done

    def set_alarm(self, seconds: float) -> None:
        """Put ``GraceOver`` into the inbox after ``seconds``, whatever the main thread is doing: where a signal raises,
        so does this. It uses SIGALRM, and is for the main thread.
        """
        self._handle(Signals.SIGALRM, self._on_alarm)
        self._alarmed = True
        self._runtime.setitimer(ITIMER_REAL, seconds)

    def ignore_all(self) -> None:
        """Ignore further signals: the process is ending, and nothing must interrupt its clean-up."""
        self._cancel_alarm()
        for number in self._before:
            self._runtime.signal(number, SIG_IGN)

    def close(self) -> None:
        """Restore the previous handlers, for callers that launch within their own process."""
        self._cancel_alarm()
        while self._before:
            number, before = self._before.popitem()
            self._runtime.signal(number, before)

    def _cancel_alarm(self) -> None:
        """Cancel the alarm: it would kill a caller's process, once its own handlers are restored."""
        if self._alarmed:
            self._runtime.setitimer(ITIMER_REAL, 0)

    def _handle(self, number: Signals, handler: Callable[[int, FrameType | None], None] | None = None) -> None:
        before = self._runtime.getsignal(number)
        if (before is SIG_IGN and handler is None) or number in self._before:
            return
        try:
            self._runtime.signal(number, handler or self._on_signal)
        except (OSError, ValueError) as error:
            raise UsageError(f"--signals-to-handle: {number.name} cannot be handled: {error}") from error
        self._before[number] = SIG_DFL if before is None else before  # None: a handler not set by Python

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._arrived = Signals(number)
        self._put(SignalArrived(self._arrived))
        if self._raises:
            raise Interrupted(self._arrived)

    def _on_alarm(self, number: int, frame: FrameType | None) -> None:
        self._arrived = Signals(number)
        self._put(GraceOver())
        if self._raises:
            raise Interrupted(self._arrived)
