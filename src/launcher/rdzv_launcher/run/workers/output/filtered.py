"""--duplicate-stdout-filters, --duplicate-stderr-filters: a file of the lines that contain one of some words."""

from __future__ import annotations

import io
import logging

logger = logging.getLogger(__name__)


class FilteredFile:
    """Shared by all workers of a round. For one thread. A full disk ends the file, and nothing else."""

    def __init__(self, path: str, needles: tuple[str, ...]) -> None:
        self._path = path
        self._needles = needles
        self._file: io.FileIO | None = None
        try:
            self._file = io.FileIO(path, "wb")
        except OSError as error:
            self._give_up(error)

    def take(self, line: str) -> None:
        """Write the line, if it contains one of the words."""
        if self._file is not None and any(needle in line for needle in self._needles):
            try:
                self._file.write(line.encode(errors="replace"))
            except OSError as error:
                self.close()
                self._give_up(error)

    def close(self) -> None:
        """Close the file at the end of the round."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _give_up(self, error: OSError) -> None:
        logger.warning("%s gets no more lines: %s", self._path, error.strerror or error)
