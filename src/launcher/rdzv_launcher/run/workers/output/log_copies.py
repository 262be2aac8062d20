"""The log files of a round that the agent writes, if --log-rotate or --log-timestamps ask for it."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from rdzv_launcher.run.workers.log_settings import LogSettings

if TYPE_CHECKING:
    from rdzv_launcher.run.workers.output.log_copy import LogCopy

logger = logging.getLogger(__name__)

_SETTLE_S = 10.0


class LogCopies:
    """The copies of one round after another. Used by the agent's thread."""

    def __init__(self, settings: LogSettings, directory: str) -> None:
        """``directory`` is created for the pipes, if there are any."""
        self._settings, self._directory = settings, directory
        self._round = 0
        self._copies: list[LogCopy] = []

    def begin(self, stream: str, files: Mapping[int, str]) -> dict[int, str]:
        """Where the workers should write instead, by local rank. A file without a pipe is left to the worker."""
        found = dict(files)
        for local_rank, path in files.items():
            if not self._settings.copies or path in ("", os.devnull):
                continue
            from rdzv_launcher.run.workers.output.log_copy import LogCopy  # what most launches do not need

            pipe = os.path.join(self._directory, f"{stream}.{local_rank}.{self._round}")
            try:
                os.makedirs(self._directory, mode=0o700, exist_ok=True)
                copy = LogCopy(
                    pipe,
                    path,
                    size=self._settings.rotate_bytes,
                    files=self._settings.rotate_files,
                    stamps=self._settings.stamps_files,
                )
            except OSError as error:
                logger.warning("%s has neither rotation nor timestamps: %s", path, error.strerror or error)
                continue
            self._copies.append(copy)
            found[local_rank] = pipe
        return found

    def opened(self) -> None:
        """The workers have opened their streams."""
        for each in self._copies:
            each.opened()

    def end(self) -> None:
        """The workers have ended: wait until the files have all of it. What they left behind may go on writing."""
        self.opened()
        self._round += 1
        deadline = time.monotonic() + _SETTLE_S
        copies, self._copies = self._copies, []
        if not all(each.settle(deadline) for each in copies):
            logger.warning("the disk has not taken all that the workers wrote after %g s", _SETTLE_S)
