"""Watches the workers of this node from a thread of its own: their stderr, and the exact order of their ends.

torch's agent looks ten times a second and dates failures in whole seconds, so of several workers that
fail together it names any. The kernel tells at once (pidfd), and the first one is the cause.
"""

from __future__ import annotations

import logging
import os
import selectors
import shutil
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from rdzv_launcher.run.stderr_pipes import StderrPipe, tail_of_file

logger = logging.getLogger(__name__)

OnFailure = Callable[[int, int, int, tuple[str, ...]], None]
"""Called with (local rank, pid, exit code, last lines of stderr); the exit code is negative for a signal."""


class WorkerMonitor:
    """One per agent. The agent's thread calls in; ``on_failure`` is called from a thread of its own."""

    def __init__(self, directory: Path, on_failure: OnFailure) -> None:
        """``directory`` is made when pipes are needed, and removed."""
        self._on_failure = on_failure
        self._directory = directory
        self._lock = threading.Lock()
        self._pipes: dict[int, StderrPipe] = {}
        self._old_pipes: list[StderrPipe] = []
        self._held_up: set[StderrPipe] = set()
        self._files: dict[int, str] = {}
        self._pidfds: dict[int, tuple[int, int]] = {}
        self._watching = False
        self._report: threading.Thread | None = None
        self._selector = selectors.DefaultSelector()
        self._wake_r, self._wake_w = os.pipe()
        os.set_blocking(self._wake_r, False)
        self._selector.register(self._wake_r, selectors.EVENT_READ)
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="rdzv-worker-monitor", daemon=True)
        self._thread.start()

    def attach(self, stderrs: Mapping[int, str]) -> dict[int, str]:
        """Take over the workers' stderr for a new round: the destinations that torch chose in, ours out.

        "" (the console) and /dev/null become pipes; a file stays, and is read when needed.
        """
        with self._lock:
            self._drop_round()
            self._directory.mkdir(mode=0o700, exist_ok=True)
            paths = {}
            for local_rank, path in stderrs.items():
                if path not in ("", os.devnull):
                    self._files[local_rank] = path
                    paths[local_rank] = path
                    continue
                pipe = StderrPipe(self._directory, local_rank, forward=path == "", on_room=self._wake)
                self._pipes[local_rank] = pipe
                self._selector.register(pipe.fd, selectors.EVENT_READ)
                paths[local_rank] = pipe.path
        self._wake()
        return paths

    def watch(self, pids: Mapping[int, int]) -> None:
        """Watch the workers just started: local rank to pid."""
        with self._lock:
            self._watching = True
            self._report = None
            for local_rank, pid in pids.items() if hasattr(os, "pidfd_open") else ():
                try:
                    fd = os.pidfd_open(pid)
                except OSError as error:  # an old kernel: torch's own order has to do
                    logger.debug("cannot watch pid %d: %s", pid, error)
                    return
                self._pidfds[fd] = (local_rank, pid)
                self._selector.register(fd, selectors.EVENT_READ)
            # the workers have opened their pipes: without a name they cannot be left behind
            self._remove_directory()
        self._wake()

    def ignore_exits(self) -> None:
        """The agent is about to stop the workers: their ends are not failures."""
        self._watching = False

    @property
    def has_reported(self) -> bool:
        """A failure of this round was reported, or is about to be."""
        return self._report is not None

    def wait_report(self, timeout: float) -> bool:
        """True if a failure of this round was reported; waits up to ``timeout`` seconds until it is through."""
        with self._lock:
            report = self._report
        if report is not None:
            report.join(timeout)
        return report is not None

    def tail(self, local_rank: int) -> tuple[str, ...]:
        """The last lines of a worker's stderr."""
        with self._lock:
            pipe = self._pipes.get(local_rank)
            if pipe is not None:
                pipe.drain(all_of_it=True)
                return pipe.tail()
        return tail_of_file(self._files[local_rank]) if local_rank in self._files else ()

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
        """The round is over. What its workers left running may go on writing to their pipes."""
        while self._pipes:
            _, pipe = self._pipes.popitem()
            pipe.close_writer()
            self._old_pipes.append(pipe)
            self._read(pipe, all_of_it=True)
        while self._pidfds:
            fd, _ = self._pidfds.popitem()
            self._selector.unregister(fd)
            os.close(fd)
        self._files = {}

    def _read(self, pipe: StderrPipe, *, all_of_it: bool = False) -> None:
        if not pipe.drain(all_of_it=all_of_it) and pipe in self._old_pipes:
            self._forget(pipe)
        elif pipe.held_up and pipe not in self._held_up:  # the selector would tell of it again and again
            self._selector.unregister(pipe.fd)
            self._held_up.add(pipe)

    def _read_on(self) -> None:
        """Read on from pipes that were held up: there may be room again."""
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
                except Exception:  # the workers' stderr has to go on being read, whatever went wrong
                    logger.exception("the monitor of the workers met an error")

    def _handle(self, ready: list[int]) -> None:
        for pipe in [*self._pipes.values(), *self._old_pipes]:
            if pipe.fd in ready:
                self._read(pipe)
        for fd in ready:
            if fd == self._wake_r:
                os.read(fd, 4096)
                self._read_on()
            elif fd in self._pidfds:
                self._ended(fd)

    def _ended(self, fd: int) -> None:
        local_rank, pid = self._pidfds.pop(fd)
        self._selector.unregister(fd)
        try:
            status = os.waitid(os.P_PIDFD, fd, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:  # torch was quicker: it stops the others now, and the agent reports its result
            self._watching = False
            status = None
        finally:
            os.close(fd)
        if status is None or not self._watching or self._report is not None:
            return
        exit_code = status.si_status if status.si_code == os.CLD_EXITED else -status.si_status
        if exit_code == 0:
            return
        pipe = self._pipes.get(local_rank)
        if pipe is not None:
            pipe.drain(all_of_it=True)
        tail = pipe.tail() if pipe is not None else tail_of_file(self._files.get(local_rank, ""))
        # a thread of its own: the report goes over the network, and stderr must not wait for it
        self._report = threading.Thread(
            target=self._on_failure, args=(local_rank, pid, exit_code, tail), name="rdzv-report-failure", daemon=True
        )
        self._report.start()
