"""The tokens that ``rdzv serve`` accepts, read again when their file changes, so one is replaced without an outage."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Collection
from typing import TYPE_CHECKING

from rdzv_plugins.errors import UsageError
from rdzv_plugins.job_token import FILE_VARIABLE, AcceptedToken, accepted_tokens
from rdzv_plugins.threads import OwnThread

if TYPE_CHECKING:
    from rdzv_plugins.kvstore.native.server import StoreServer

logger = logging.getLogger(__name__)

_LOOK_S = 1.0
"""Seconds between two looks at the file."""


class Accepted:
    """The tokens of one file, or of the environment. Whoever made it keeps them fresh on the main thread."""

    def __init__(self, path: str | None) -> None:
        """``path`` is as given by ``--rdzv-conf``. Raises ``UsageError`` like ``accepted_tokens``."""
        self._path = path
        self._file = path if path is not None else os.environ.get(FILE_VARIABLE)
        self._lock = threading.Lock()
        self._seen = self._look()
        self.tokens: tuple[AcceptedToken, ...] = accepted_tokens(path) or ()

    def keep_fresh(
        self, server: StoreServer, endings: Collection[signal.Signals], reads_again: Collection[signal.Signals]
    ) -> signal.Signals:
        """Pass the file's tokens to ``server`` when it has changed; returns which of the blocked ``endings`` arrived.

        Signals in ``reads_again`` end nothing: all files are read again.
        """
        over = threading.Event()
        if self._file is not None and self.tokens:
            OwnThread(target=self._keep_looking, name="rdzv-tokens", args=(server, over)).start()
        try:
            # without a time limit: one that ends while the process is stopped has CPython's sigtimedwait return what
            # no signal has written
            while (came := signal.Signals(signal.sigwaitinfo(endings).si_signo)) in reads_again:
                server.read_certificates()
                self._read_if_changed(server, anyway=True)
            return came
        finally:
            over.set()

    def _keep_looking(self, server: StoreServer, over: threading.Event) -> None:
        while not over.wait(_LOOK_S):
            try:
                self._read_if_changed(server)
            except Exception:  # it looks again: a thread that has ended would leave the tokens as they are for good
                logger.exception("%s could not be looked at", self._file)

    def _read_if_changed(self, server: StoreServer, *, anyway: bool = False) -> None:
        with self._lock:
            seen = self._look()
            if not self.tokens or self._file is None or (seen == self._seen and not anyway):
                return
            self._seen = seen
            try:
                self.tokens = accepted_tokens(self._path) or self.tokens
            except UsageError as error:
                logger.warning("%s; the tokens stay as they were", error)
                return
            server.accept_tokens(self.tokens)
            logger.warning("%s has changed: %d token(s) are accepted from now on", self._file, len(self.tokens))

    def _look(self) -> tuple[int, ...] | None:
        # ctime: a file that others could read is right once its mode is
        try:
            found = os.stat(self._file) if self._file is not None else None
        except OSError:  # it is being replaced
            return None
        return None if found is None else (found.st_ino, found.st_ctime_ns, found.st_size)
