"""An agent's file of a timeline, in the directory that the user has named. No other agent writes to it."""

from __future__ import annotations

import logging
import os

from rdzv_launcher.run import file_names
from rdzv_launcher.run.timeline.record import SUFFIX, Record

logger = logging.getLogger(__name__)


class TimelineFile:
    """A ``Sink``. Each line is one write, so a reader sees whole lines, and an agent that is killed loses none.

    The first event that cannot be written is reported, and the job goes on; when there is room again, writing resumes.
    """

    def __init__(self, directory: str, run: str, host: str, agent: str) -> None:
        """Nothing is created before the first event: a file system may keep one waiting."""
        self.path = os.path.join(directory, f"{file_names.word(run)}-{file_names.word(host)}-{agent}{SUFFIX}")
        self._directory = directory
        self._fd = -1
        self._torn = False
        """The last line is incomplete."""
        self._lost = 0
        """The number of events since the last that was written."""

    def take(self, record: Record) -> None:
        """Write the event, or report once that this is not possible."""
        try:
            if self._fd < 0:
                self._open()
            self._write(record.line())
        except OSError as error:
            self._lost += 1
            if self._lost == 1:
                logger.warning(
                    "the timeline cannot be written to %s: %s; the job goes on without it",
                    self.path,
                    (error.strerror or str(error)).lower(),
                )
            return
        if self._lost:
            logger.warning("the timeline is written again; %d events are missing in %s", self._lost, self.path)
            self._lost = 0

    def close(self) -> None:
        """Close the file."""
        if self._lost > 1:
            logger.warning("%d events are missing in the timeline %s", self._lost, self.path)
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _open(self) -> None:
        os.makedirs(self._directory, exist_ok=True)
        # its name belongs to this agent alone: an existing file is not followed, and not written to
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        self._fd = os.open(self.path, flags, 0o644)

    def _write(self, line: bytes) -> None:
        left = memoryview(b"\n" + line if self._torn else line)
        while left:
            written = os.write(self._fd, left)
            self._torn = written < len(left)
            left = left[written:]
