"""The tokens that ``rdzv serve`` accepts, read again when their file changes, so one is replaced without an outage."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Collection
from typing import TYPE_CHECKING

from rdzv_plugins.errors import UsageError
from rdzv_plugins.job_token import FILE_VARIABLE, AcceptedToken, accepted_tokens

if TYPE_CHECKING:
    from rdzv_plugins.kvstore.native.server import StoreServer

logger = logging.getLogger(__name__)

_LONG_S = 15e6
_LOOK_S = 1.0
"""Seconds between two looks at the file."""


class Accepted:
    """The tokens of one file, or of the environment. For one thread."""

    def __init__(self, path: str | None) -> None:
        """``path`` is as given by ``--rdzv-conf``. Raises ``UsageError`` like ``accepted_tokens``."""
        self._path = path
        self._file = path if path is not None else os.environ.get(FILE_VARIABLE)
        self._seen = self._look()
        self.tokens: tuple[AcceptedToken, ...] = accepted_tokens(path) or ()

    def keep_fresh(
        self, server: StoreServer, endings: Collection[signal.Signals], reads_again: Collection[signal.Signals]
    ) -> signal.Signals:
        """Pass the file's tokens to ``server`` when it has changed; returns which of the blocked ``endings`` arrived.

        Signals in ``reads_again`` end nothing: all files are read again.
        """
        looks = self._file is not None and bool(self.tokens)
        while True:
            # without a file there is nothing to look at meanwhile: half a year is as good as for ever
            came = signal.sigtimedwait(endings, _LOOK_S if looks else _LONG_S)
            if came is not None and came.si_signo not in reads_again:
                return signal.Signals(came.si_signo)
            if came is not None:
                server.read_certificates()
            if looks and ((seen := self._look()) != self._seen or came is not None):
                self._seen = seen
                self._read_again(server)

    def _read_again(self, server: StoreServer) -> None:
        try:
            self.tokens = accepted_tokens(self._path) or self.tokens
        except UsageError as error:
            logger.warning("%s; the tokens stay as they were", error)
            return
        server.accept_tokens(self.tokens)
        logger.warning("%s has changed: %d token(s) are accepted from now on", self._file, len(self.tokens))

    def _look(self) -> tuple[int, ...] | None:
        try:
            found = os.stat(self._file) if self._file is not None else None
        except OSError:  # it is being replaced
            return None
        return None if found is None else (found.st_ino, found.st_mtime_ns, found.st_size)
