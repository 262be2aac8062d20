"""The files of a round, as torchrun lays them out (``LOGS/RUN_x/attempt_N/LOCAL_RANK/stdout.log``), and their index."""

from __future__ import annotations

import glob
import json
import logging
import os
import shutil
import tempfile
import time
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Protocol

from msgspec import Struct, field
from msgspec.structs import asdict, replace

from rdzv_launcher.run.machine import write_a_page
from rdzv_launcher.run.names import component
from rdzv_launcher.run.workers.environment import ERROR_FILE
from rdzv_launcher.run.workers.spec import Std, WorkersSpec
from rdzv_plugins.background_queue import BackgroundQueue

logger = logging.getLogger(__name__)


class Stream(Struct, frozen=True):
    """Where one stream of each worker goes: paths by local rank."""

    paths: Mapping[int, str]
    """The files; empty: our own stream."""
    teed: Mapping[int, str] = field(default_factory=dict)
    """Those files that are shown while they are written."""
    filtered: str = ""
    """Where the lines selected by --duplicate-stdout-filters or --duplicate-stderr-filters go; empty: nowhere."""


class Destinations(Struct, frozen=True):
    """Where the output of each worker goes."""

    stdout: Stream
    stderr: Stream
    error_files: Mapping[int, str] = field(default_factory=dict)
    """The error files, by local rank; empty: there is none."""
    index: str = ""
    """The file that says which file is whose; empty: there is none."""
    round: int = 0
    """The number of the round, as in the index."""
    moved: tuple[str, str] | None = None
    """A directory of an earlier round that had to make room: its old and new name, beside the index."""


class Layout(Protocol):
    """Decides on the files of a round."""

    @property
    def root(self) -> str:
        """The directory with all of the files; ``os.devnull`` for none."""

    def begin(self, variables: Mapping[int, dict[str, str]]) -> Destinations:
        """Make the files of a round; adds to the workers' ``variables`` what they have to know."""


_KEPT = 10
"""How many earlier rounds that used up no restart are kept: a job whose nodes come and go has countless such rounds."""


class LogFiles:
    """Makes the files. A directory that cannot be written (any more) costs a warning and the files, not the job."""

    def __init__(self, spec: WorkersSpec, instead: str) -> None:
        """``instead``: where the files go without --log-dir, or if nothing can be written there."""
        self._spec = spec
        self._roots = list(dict.fromkeys(filter(None, (spec.log_dir, instead))))
        self._run_directory = ""
        self._round = self._starts = 0
        self._moved: tuple[str, str] | None = None
        self._kept: deque[str] = deque()

    @property
    def root(self) -> str:
        return self._roots[0] if self._roots else os.devnull

    def begin(self, variables: Mapping[int, dict[str, str]]) -> Destinations:
        first = next(iter(variables.values()), {})
        directory = self._attempt(f"attempt_{first.get('TORCHELASTIC_RESTART_COUNT', '0')}", variables)
        if not directory:
            for each in variables.values():
                each[ERROR_FILE] = ""
            nothing = dict.fromkeys(variables, "")
            return Destinations(Stream(nothing), Stream(nothing), nothing)
        self._starts += 1
        number = first.get("RDZV_ROUND", "")
        self._round = int(number) if number.isdecimal() else self._starts
        has_index = self._spec.log_dir or any(map(self._to_file, variables))
        error_files = {rank: os.path.join(directory, str(rank), "error.json") for rank in variables}
        for local_rank, each in variables.items():
            each[ERROR_FILE] = error_files[local_rank]
        return Destinations(
            self._stream(Std.OUT, directory, variables),
            self._stream(Std.ERR, directory, variables),
            error_files,
            os.path.join(self._run_directory, INDEX) if has_index else "",
            self._round,
            self._moved,
        )

    def _attempt(self, name: str, ranks: Mapping[int, object]) -> str:
        """The directory of a round with everything that belongs in it; empty if it cannot exist, or should not."""
        while self.root != os.devnull:
            try:
                if not self._run_directory:
                    os.makedirs(self.root, exist_ok=True)
                    self._run_directory = tempfile.mkdtemp(prefix=f"{component(self._spec.run_id)}_", dir=self.root)
                    logger.debug("the workers' files are in %s", self._run_directory)
                directory = os.path.join(self._run_directory, name)
                self._make_room(directory)
                for local_rank in ranks:
                    os.makedirs(os.path.join(directory, str(local_rank)))
                    for stream in self._to_file(local_rank):
                        # problems are found now: whoever starts the worker could only fail
                        open(os.path.join(directory, str(local_rank), _FILES[stream]), "wb").close()
                write_a_page(directory)
                return directory
            except OSError as error:
                broken = self._roots.pop(0)
                self._run_directory = ""
                instead = f"go to {self.root}" if self._roots else "are left out, and their output comes here"
                why = error.strerror or error
                logger.warning("%s: %s: the workers' files %s", error.filename or broken, why, instead)
        return ""

    def _make_room(self, directory: str) -> None:
        """Clear the place of a round that used up no restart. Its error files are stale, but its output is not."""
        self._moved = None
        if any(os.path.getsize(each) for each in glob.iglob(os.path.join(glob.escape(directory), "*", "*.log"))):
            kept = f"{directory}.round_{self._round}"
            try:
                os.rename(directory, kept)
                self._moved = os.path.basename(directory), os.path.basename(kept)
                self._kept.append(kept)
            except OSError as error:
                logger.warning("removing %s, which cannot be kept: %s", directory, error.strerror or error)
        shutil.rmtree(directory, ignore_errors=True)
        while len(self._kept) > _KEPT:
            shutil.rmtree(self._kept.popleft(), ignore_errors=True)

    def _stream(self, stream: Std, directory: str, ranks: Mapping[int, object]) -> Stream:
        paths, teed = dict[int, str](), dict[int, str]()
        for local_rank in ranks:
            shown = self._spec.shows(local_rank)
            if stream not in self._to_file(local_rank):
                paths[local_rank] = "" if shown else os.devnull
                continue
            paths[local_rank] = os.path.join(directory, str(local_rank), _FILES[stream])
            if shown and stream in self._spec.tee.of(local_rank):
                teed[local_rank] = paths[local_rank]
        return Stream(paths, teed, os.path.join(directory, f"filtered_{_FILES[stream]}"))

    def _to_file(self, local_rank: int) -> tuple[Std, ...]:
        """The streams that go to a file. --tee is a file that is also shown, so both flags count."""
        wanted = self._spec.redirects.of(local_rank) | self._spec.tee.of(local_rank)
        return tuple(stream for stream in (Std.OUT, Std.ERR) if stream in wanted)


_FILES = {Std.OUT: "stdout.log", Std.ERR: "stderr.log"}


# ``index.jsonl`` beside the log files of an agent: which file is of which rank in which round, and how that ended.
#
# One JSON object per line. ``started`` and ``ended`` are about a worker; paths are relative to the index, and null for
# streams that go to no file. ``moved``: a directory has another name from then on. ``rdzv logs`` reads it.

INDEX = "index.jsonl"
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
