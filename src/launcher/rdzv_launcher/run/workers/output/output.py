"""The output of the workers, round after round: files, what is shown of them, and what goes to our own streams."""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from rdzv_launcher.run.workers.output.log_files import Destinations, Index, Layout, Stream, WorkerRecord
from rdzv_launcher.run.workers.spec import WorkersSpec
from rdzv_plugins.runtime import OwnThread

if TYPE_CHECKING:
    from rdzv_launcher.run.workers.output.shown import Tee


logger = logging.getLogger(__name__)


_INTERVAL_S = 0.1


class FirstLines:
    """Looks at the files of a round ten times a second, on a thread of its own, until one of them has grown."""

    def __init__(self, files: Sequence[tuple[int, str]], tell: Callable[[int], None]) -> None:
        """``files`` with the local ranks of the workers that are about to get them; ``tell`` gets one rank, once."""
        self._files = [(local_rank, path, _size(path)) for local_rank, path in files]
        self._tell = tell
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        if files:
            OwnThread(target=self._run, name="rdzv-first-line").start()

    def stop(self) -> None:
        """The round is over: ``tell`` is no longer called. Does not wait for any file."""
        with self._lock:
            self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.wait(_INTERVAL_S):
            for local_rank, path, before in self._files:
                if _size(path) > before:
                    with self._lock:
                        if not self._stopped.is_set():
                            self._tell(local_rank)
                    return


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:  # it does not exist yet
        return 0


_STUCK_S, _REST_S = 10.0, 120.0
"""How long the end of a round waits for our own streams to take the rest: while they take nothing, and at most."""


class WorkerOutput:
    """The output of this node's workers. One per agent, used by its main thread, except ``files``."""

    def __init__(
        self,
        spec: WorkersSpec,
        layout: Layout,
        capture: Callable[[Mapping[int, str]], Mapping[int, str]] | None = None,
        on_first: Callable[[int], None] | None = None,
        ready: Callable[[], None] = lambda: None,
    ) -> None:
        """``capture`` takes over the stderr of workers that would write to ours: ``WorkerMonitor.attach``.

        ``on_first`` is called by any thread with the local rank of the worker that is the first of its round to write
        to a file of its own, and returns at once. ``ready`` makes sure before each round that there are directories.
        """
        self._spec = spec
        self._layout = layout
        self._capture = capture
        self._on_first, self._ready = on_first, ready
        self._first: FirstLines | None = None
        self._host = socket.gethostname()
        self._index = Index()
        self._tee: Tee | None = None
        self._found: Destinations | None = None
        self._cut = False

    @property
    def root(self) -> str:
        return self._layout.root

    @property
    def was_shown(self) -> bool:
        """Whether the files hold nothing that was not shown, too, as with --tee and --log-prefix."""
        spec = self._spec
        wanted = spec.ranks_filter or spec.stdout_filters or spec.stderr_filters
        return not (self._cut or wanted) and all(
            spec.shows(each) and not spec.redirects.of(each) & ~spec.tee.of(each) for each in range(spec.nproc)
        )

    def error_file(self, local_rank: int) -> str:
        """The file where a worker of the newest round records its exception; empty if there is none."""
        return "" if self._found is None else self._found.error_files.get(local_rank, "")

    def files(self, local_rank: int) -> dict[str, str]:
        """Where a worker's streams go in the newest round: empty for our own, ``os.devnull`` for none. Any thread."""
        found = self._found
        if found is None:
            return {}
        return {"stdout": found.stdout.paths.get(local_rank, ""), "stderr": found.stderr.paths.get(local_rank, "")}

    def begin(self, variables: Mapping[int, dict[str, str]]) -> Destinations:
        self.end()
        self._ready()
        self._found = found = self._only_shown(self._layout.begin(variables), variables)
        if found.stdout.teed or found.stderr.teed or self._spec.stdout_filters or self._spec.stderr_filters:
            from rdzv_launcher.run.workers.output.shown import show  # what most launches do not need

            ranks = {each: _rank(each, own) for each, own in variables.items()}
            self._tee = show(found, self._spec, variables, ranks)
        if self._on_first is not None:
            every = [*found.stdout.paths.items(), *found.stderr.paths.items()]
            self._first = FirstLines([each for each in every if each[1] not in ("", os.devnull)], self._on_first)
        records = [self._record(found, each, own) for each, own in variables.items()] if found.index else []
        self._index.begin(found.index, records, found.moved)
        if self._capture is None:
            return found
        paths = self._capture(found.stderr.paths)  # for files, it is told where they are
        return replace(found, stderr=replace(found.stderr, paths=paths))

    def started(self, pids: Mapping[int, int]) -> None:
        """The workers of the round are running; ``pids`` are by local rank."""
        self._index.started(pids)

    def ended(self, local_rank: int, exit_code: int, *, stopped: bool) -> None:
        """A worker has ended; ``stopped``: it was told to."""
        self._index.ended(local_rank, exit_code, stopped=stopped)

    def end(self) -> None:
        """The workers of the round have ended: show the rest of what they wrote."""
        if self._first is not None:
            self._first.stop()
        tee, self._tee = self._tee, None
        if tee is not None and not tee.stop(_STUCK_S, _REST_S):
            tee.complete = False
            logger.warning("not all lines of --tee could be shown: the rest is in %s", self.root)
        self._cut = self._cut or (tee is not None and not tee.complete)
        self._index.flush()

    def _record(self, found: Destinations, local_rank: int, own: Mapping[str, str]) -> WorkerRecord:
        """A worker of the round, for the index."""
        base = os.path.dirname(found.index)
        stdout, stderr = (
            os.path.relpath(path, base) if path not in ("", os.devnull) else None
            for path in (found.stdout.paths[local_rank], found.stderr.paths[local_rank])
        )
        rank, port = _rank(local_rank, own), own.get("RDZV_ROOT_PORT", own.get("MASTER_PORT", ""))
        port = port if port.isdecimal() else "0"  # a plug-in may have set it
        return WorkerRecord(self._spec.run_id, found.round, int(port), rank, local_rank, self._host, -1, stdout, stderr)

    def _only_shown(self, found: Destinations, variables: Mapping[int, Mapping[str, str]]) -> Destinations:
        """Apply --ranks-filter: the output that it leaves out goes to files only."""
        hidden = {each for each, own in variables.items() if not self._spec.shows_global(_rank(each, own))}

        def shown(stream: Stream) -> Stream:
            paths = {each: path or (os.devnull if each in hidden else "") for each, path in stream.paths.items()}
            teed = {each: path for each, path in stream.teed.items() if each not in hidden}
            return replace(stream, paths=paths, teed=teed)

        return replace(found, stdout=shown(found.stdout), stderr=shown(found.stderr))


def _rank(local_rank: int, variables: Mapping[str, str]) -> int:
    """The global rank. A plug-in may have set the variable to anything."""
    rank = variables.get("RANK", "")
    return int(rank) if rank.isdecimal() else local_rank
