"""The signals that a caller gets during its launch, passed on to the process of the launch."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

from rdzv_launcher.run.signals import read


class RelayedSignals:
    """Passes the caller's signals on to the launch. One per call.

    In the main thread these are the caller's signals; in others there are none, as with torch.
    """

    def __init__(self, names: str, notices: str = "") -> None:
        """``names``, and the signals that are a notice besides them: both comma-separated. Raises ``UsageError``."""
        self._numbers = dict.fromkeys(read(names) + (read(notices, "--notice-signals") if notices else []))
        self._pid = 0
        self.arrived: signal.Signals | None = None
        """The first signal that has arrived."""

    @contextlib.contextmanager
    def handled(self) -> Iterator[None]:
        """Handle them within this context, except ignored ones; afterwards everything is as before."""
        before: dict[signal.Signals, Any] = {}
        try:
            if threading.current_thread() is threading.main_thread():
                for number in self._numbers:
                    handler = signal.getsignal(number)
                    if handler is not signal.SIG_IGN and handler is not None:  # None: a handler not set by Python
                        before[number] = signal.signal(number, self._on_signal)
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def pass_on_to(self, pid: int) -> None:
        """Pass them on to this process from now on; 0: to none. It also gets those that arrived before."""
        self._pid = pid
        if self.arrived is not None:
            self._send(self.arrived)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.arrived is None:
            self.arrived = signal.Signals(number)
        self._send(number)

    def _send(self, number: int) -> None:
        if self._pid > 0:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, number)
