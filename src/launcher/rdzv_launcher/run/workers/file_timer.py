"""The watchdog for which workers set themselves deadlines: torch's ``FileTimerServer``, if a variable asks for it.

Only then is torch imported. The server kills a worker that misses its deadline, and this process too, with the signal
that the worker has chosen: that is torch's decision.
"""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from rdzv_launcher.run.workers.environment import FILE_TIMER, TIMER_FILE
from rdzv_plugins.errors import UsageError

_INTERVAL_S = 0.1
_OPENS_S, _LOOK_S = 5.0, 0.01


class FileTimer:
    """The watchdog for torch's file timers. One per agent, for its main thread; each round has a server of its own."""

    def __init__(
        self,
        run_id: str,
        environ: Mapping[str, str],
        directory: str,
        log_event: Callable[[str, Any], None] | None = None,
    ) -> None:
        """``directory`` is the agent's own: torch creates the pipe as the umask allows, and others must not read it.

        ``log_event`` is called by the server's thread with what the server does, with torch's arguments.
        """
        self._run_id, self._directory, self._log_event = run_id, directory, log_event
        self._enabled = environ.get(FILE_TIMER) == "1"
        self._given = environ.get(TIMER_FILE)
        self._server: Any = None
        self._path = ""

    def start(self) -> dict[str, str]:
        """Start the server of a round, if one is wanted; returns what is added to the workers' variables.

        Raises ``UsageError`` if no pipe can be created where a variable says.
        """
        self.stop()
        if not self._enabled:
            return {} if self._given is None else {TIMER_FILE: self._given}
        self._path = self._given or os.path.join(self._directory, f"watchdog_timer_{uuid.uuid4()}")
        from torch.distributed.elastic.timer import FileTimerServer

        try:
            if self._given is None:  # a cleaner of temporary files may have removed it
                os.makedirs(self._directory, mode=0o700, exist_ok=True)
            self._server = FileTimerServer(
                self._path, self._run_id, max_interval=_INTERVAL_S, daemon=True, log_event=self._log_event
            )
        except OSError as error:
            raise UsageError(
                f"{TIMER_FILE}={self._path}: no pipe can be made there: {error.strerror or error}",
                remedy=f"Name a file in a directory where this user may write, or unset {TIMER_FILE}.",
            ) from error
        self._server.start()
        return {TIMER_FILE: self._path}

    def stop(self) -> None:
        """End the server of the finished round, and remove its pipe."""
        if self._server is None:
            return
        server, self._server = self._server, None
        with contextlib.suppress(OSError):
            # the server's thread waits for a first writer, and does not return before there was one
            writer = os.open(self._path, os.O_RDWR | os.O_NONBLOCK)
            deadline = time.monotonic() + _OPENS_S
            while not getattr(server, "_is_client_started", True) and time.monotonic() < deadline:
                time.sleep(_LOOK_S)
            os.close(writer)
        server.stop()
