"""Reads the workers' stderr on a separate thread: passes it on, and keeps its end for the summary."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import selectors
import shutil
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from rdzv_launcher.run.stderr_pipes import StderrPipe, tail_of_file
from rdzv_plugins.threads import OwnThread

logger = logging.getLogger(__name__)


class WorkerMonitor:
    """What one agent keeps of its workers' standard error. Thread-safe."""

    def __init__(self, directory: Path, on_first: Callable[[int], None] = lambda local_rank: None) -> None:
        """``directory`` is created when pipes are needed, and removed.

        ``on_first`` is called with the local rank of a worker that writes for the first time in its round; it must
        return at once.
        """
        self._directory, self._on_first = directory, on_first
        self._lock = threading.Lock()
        self._pipes: dict[int, StderrPipe] = {}
        self._old_pipes: list[StderrPipe] = []
        self._held_up: set[StderrPipe] = set()
        self._files: dict[int, str] = {}
        self._selector = selectors.DefaultSelector()
        self._wake_r, self._wake_w = os.pipe()
        os.set_blocking(self._wake_r, False)
        self._selector.register(self._wake_r, selectors.EVENT_READ)
        self._closed = False
        self._thread = OwnThread(target=self._run, name="rdzv-worker-monitor")
        self._thread.start()

    def attach(self, stderrs: Mapping[int, str]) -> dict[int, str]:
        """Take over the workers' stderr for a new round: takes the logs' destinations, and returns ours.

        "" (the console) and /dev/null become pipes; a file stays, and is read when needed.
        """
        with self._lock:
            self._drop_round()
            with contextlib.suppress(OSError):  # then the pipes have no names
                os.makedirs(self._directory, mode=0o700, exist_ok=True)
            paths = {}
            for local_rank, path in stderrs.items():
                if path not in ("", os.devnull):
                    self._files[local_rank] = path
                    paths[local_rank] = path
                    continue
                on_first = functools.partial(self._on_first, local_rank)
                pipe = StderrPipe(
                    self._directory, local_rank, forward=path == "", on_room=self._wake, on_first=on_first
                )
                self._pipes[local_rank] = pipe
                self._selector.register(pipe.fd, selectors.EVENT_READ)
                paths[local_rank] = pipe.path
        self._wake()
        return paths

    def opened(self) -> None:
        """The workers have opened their pipes: without names, the pipes cannot be left behind."""
        with self._lock:
            self._remove_directory()

    def tail(self, local_rank: int) -> tuple[str, ...]:
        """The last lines of a worker's stderr."""
        with self._lock:
            pipe = self._pipes.get(local_rank)
            if pipe is not None:
                pipe.drain(all_of_it=True)
                return pipe.tail()
        return tail_of_file(self._files[local_rank]) if local_rank in self._files else ()

    def kept(self, local_rank: int) -> tuple[str, ...]:
        """The last lines so far of a worker's stderr that goes to no file. Reads nothing; may be called at any time."""
        with self._lock:
            pipe = self._pipes.get(local_rank)
            return () if pipe is None else pipe.tail()

    def close(self) -> None:
        """Pass on what is left of stderr, and end the thread."""
        with self._lock:
            self._drop_round()
            while self._old_pipes:
                self._forget(self._old_pipes[-1])
            self._closed = True
        self._wake()
        self._thread.join()
        self._remove_directory()

    def _remove_directory(self) -> None:
        shutil.rmtree(self._directory, ignore_errors=True)

    def _wake(self) -> None:
        os.write(self._wake_w, b"x")

    def _drop_round(self) -> None:
        """The round is over. Processes that its workers left running may go on writing to their pipes."""
        while self._pipes:
            _, pipe = self._pipes.popitem()
            pipe.close_writer()
            self._old_pipes.append(pipe)
            self._read(pipe, all_of_it=True)
        self._files = {}

    def _read(self, pipe: StderrPipe, *, all_of_it: bool = False) -> None:
        if not pipe.drain(all_of_it=all_of_it) and pipe in self._old_pipes:
            self._forget(pipe)
        elif pipe.held_up and pipe not in self._held_up:  # the selector would report it again and again
            self._selector.unregister(pipe.fd)
            self._held_up.add(pipe)

    def _read_on(self) -> None:
        """Resume reading from pipes that were held up: there may be room again."""
        for pipe in list(self._held_up):
            self._held_up.discard(pipe)
            self._selector.register(pipe.fd, selectors.EVENT_READ)
            self._read(pipe)

    def _forget(self, pipe: StderrPipe) -> None:
        self._old_pipes.remove(pipe)
        if pipe in self._held_up:
            self._held_up.discard(pipe)
        else:
            self._selector.unregister(pipe.fd)
        pipe.close()

    def _run(self) -> None:
        while True:
            # woken by every change, so that it never waits on a file descriptor that is gone
            ready = [key.fd for key, _ in self._selector.select()]
            with self._lock:
                if self._closed:
                    return
                try:
                    self._handle(ready)
                except Exception:  # the workers' stderr has to be read, whatever went wrong
                    logger.exception("the monitor of the workers met an error")

    def _handle(self, ready: list[int]) -> None:
        for pipe in [*self._pipes.values(), *self._old_pipes]:
            if pipe.fd in ready:
                self._read(pipe)
        for fd in ready:
            if fd == self._wake_r:
                os.read(fd, 4096)
                self._read_on()
