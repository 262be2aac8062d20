"""``index.jsonl`` beside the log files of an agent: which file is of which rank in which round, and how that ended.

One JSON object per line. ``started`` and ``ended`` are about a worker; paths are relative to the index, and null for
streams that go to no file. ``moved``: a directory has another name from then on. ``rdzv logs`` reads it.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Iterable, Mapping

from msgspec import Struct
from msgspec.structs import asdict, replace

from rdzv_plugins.background_queue import BackgroundQueue

logger = logging.getLogger(__name__)

NAME = "index.jsonl"
_MOST_BYTES = 4 << 20
_FLUSH_S = 1.0
"""How long the end of a round waits for a disk that does not take the last lines."""


class WorkerRecord(Struct, frozen=True):
    """A worker in one round, as it appears in the index."""

    run: str
    round: int
    """RDZV_ROUND, the same on all nodes, if the backend has it; otherwise the starts of this agent, from 1."""
    store_port: int
    """The port of the round's worker store: nodes of one job share it, other jobs in this directory do not. 0: none."""
    rank: int
    local_rank: int
    host: str
    pid: int
    stdout: str | None
    stderr: str | None
    exit_code: int | None = None
    """The exit code, negative for a signal; null while the worker runs."""
    stopped: bool = False
    """It was told to end, so its exit code says nothing about the worker itself."""


class Index:
    """Written line by line on a separate thread: nobody waits for the disk. One per agent; for one thread at a time.

    Lines that the disk does not take are missing, which is logged once.
    """

    def __init__(self) -> None:
        self._queue: BackgroundQueue[tuple[str, str]] | None = None
        self._torn = self._warned = False
        self._path = ""
        self._workers: dict[int, WorkerRecord] = {}

    def begin(self, path: str, workers: Iterable[WorkerRecord], moved: tuple[str, str] | None) -> None:
        """A round begins, whose workers have no pids yet. ``path`` is that of the index; empty: there is none.

        ``moved``: the old and new name of a directory that had to make room for it.
        """
        self._path = path
        self._workers = {each.local_rank: each for each in workers}
        if moved is not None:
            self._put([self._line("moved", {"from": moved[0], "to": moved[1]})])

    def started(self, pids: Mapping[int, int]) -> None:
        self._workers = {each: replace(worker, pid=pids[each]) for each, worker in self._workers.items()}
        self._put([self._line("started", asdict(each)) for each in self._workers.values()])

    def ended(self, local_rank: int, exit_code: int, *, stopped: bool) -> None:
        if (found := self._workers.pop(local_rank, None)) is not None:
            self._put([self._line("ended", asdict(replace(found, exit_code=exit_code, stopped=stopped)))])

    def flush(self) -> None:
        """Wait for the disk, for a moment."""
        if self._queue is not None:
            self._queue.flush(_FLUSH_S)

    @staticmethod
    def _line(event: str, fields: Mapping[str, object]) -> str:
        return json.dumps({"event": event, "time": round(time.time(), 3), **fields}) + "\n"

    def _put(self, lines: list[str]) -> None:
        if self._path and lines:
            if self._queue is None:
                self._queue = BackgroundQueue("rdzv-log-index", self._write, self._say_lost, limit=_MOST_BYTES)
            text = "".join(lines)
            self._queue.put((self._path, text), len(text))

    def _write(self, item: tuple[str, str]) -> None:
        path, text = item
        data = ("\n" * self._torn + text).encode()
        try:
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
            try:
                self._torn = True  # after half a line, the next write begins on a new line
                while data:
                    data = data[os.write(file, data) :]
                self._torn = False
            finally:
                os.close(file)
        except OSError as error:
            if not self._warned:
                logger.warning("lines are missing in %s: %s", path, error.strerror or error)
                self._warned = True

    def _say_lost(self, count: int) -> None:
        logger.warning("lines are missing in %s: the disk did not take them in time", self._path)
