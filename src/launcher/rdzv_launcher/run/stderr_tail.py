"""The workers' standard error on its way to ours: passed on as it comes, with the last lines kept for the summary.

The supervisor opens the stream by path, so each worker gets the path of a named pipe, or of a pseudo-terminal if our
own stderr is a terminal (so progress bars and colours stay as they are).
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import logging
import os
import selectors
import shutil
import termios
import threading
import tty
from collections.abc import Callable, Mapping
from pathlib import Path

from rdzv_launcher.console import NO_SPACE, forward_to_stderr, stderr_has_room
from rdzv_launcher.run.machine import write_a_page
from rdzv_launcher.run.workers.output.growing_file import all_of
from rdzv_plugins.runtime import OwnThread

logger = logging.getLogger(__name__)


KEEP_BYTES = 16 * 1024
KEEP_LINES = 20
_CHUNK = 64 * 1024
_AT_ONCE = 1 << 20
"""A pipe usually holds less."""


def last_lines(data: bytes) -> tuple[str, ...]:
    """The last lines of a stream; for a line that was overwritten (carriage return), what it showed last."""
    lines = data[-KEEP_BYTES:].decode(errors="replace").splitlines()
    shown = [line.rsplit("\r", 1)[-1].rstrip() for line in lines]
    return tuple(line for line in shown if line)[-KEEP_LINES:]


class StderrPipe:
    """One worker's stderr. Not thread-safe: its user holds a lock. Nothing blocks.

    A worker that writes more than our own stderr takes is held up, as it would be without us.
    """

    def __init__(
        self,
        directory: Path,
        local_rank: int,
        *,
        forward: bool,
        on_room: Callable[[], None],
        on_first: Callable[[], None],
    ) -> None:
        """``on_room`` is called, on another thread, when a pipe that was ``held_up`` can be read again.

        ``on_first`` is called when the worker writes for the first time.
        """
        self._forward = forward
        self._on_room, self._on_first = on_room, on_first
        self.held_up = False
        """There may be more to read, but our own stderr has no room for it."""
        self._kept = bytearray()
        terminal = self._open_terminal() if forward and os.isatty(2) else None
        # a writer of our own: without it the pipe reads as ended before the worker has opened it
        self.fd, self._writer, self.path = terminal or self._open_pipe(directory / f"stderr.{local_rank}")

    @staticmethod
    def _open_pipe(path: Path) -> tuple[int, int, str]:
        with contextlib.ExitStack() as unless_kept:
            try:
                path.unlink(missing_ok=True)
                os.mkfifo(path, 0o600)
                reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
                unless_kept.callback(os.close, reader)
                writer = os.open(path, os.O_WRONLY)
                unless_kept.pop_all()
                return reader, writer, str(path)
            except OSError:  # a file system without pipes, a umask that lets nobody write
                pass
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        return reader, writer, f"/proc/{os.getpid()}/fd/{writer}"

    @staticmethod
    def _open_terminal() -> tuple[int, int, str] | None:
        try:
            reader, writer = os.openpty()
        except OSError:  # a container without /dev/ptmx
            return None
        tty.setraw(writer)  # what passes here is processed once, by the real terminal
        with contextlib.suppress(OSError):
            size = fcntl.ioctl(2, termios.TIOCGWINSZ, b"\0" * 8)
            fcntl.ioctl(writer, termios.TIOCSWINSZ, size)
        os.set_blocking(reader, False)
        return reader, writer, os.ttyname(writer)

    def drain(self, *, all_of_it: bool = False) -> bool:
        """Read what is there now, keep its end and pass it on. False once nobody can write any more.

        ``all_of_it``: also read if our own stderr has no room for it; it is then dropped there.
        """
        left = _AT_ONCE
        while left > 0:
            self.held_up = self._forward and not all_of_it and not stderr_has_room(self._on_room)
            if self.held_up:
                return True
            try:
                data = os.read(self.fd, _CHUNK)
            except BlockingIOError:
                return True
            except OSError:  # a terminal's way of saying that its writers are gone
                return False
            if not data:
                return False
            if not self._kept:
                self._on_first()
            left -= len(data)
            self._kept += data
            del self._kept[:-KEEP_BYTES]
            if self._forward:
                forward_to_stderr(data)
        return True

    def tail(self) -> tuple[str, ...]:
        return last_lines(bytes(self._kept))

    def close_writer(self) -> None:
        """The workers have ended: from now on the pipe lasts as long as the processes that they left behind."""
        if self._writer >= 0:
            writer, self._writer = self._writer, -1
            os.close(writer)

    def close(self) -> None:
        self.close_writer()
        os.close(self.fd)


def tail_of_file(path: str) -> tuple[str, ...]:
    """The last lines of a stderr that goes to a file, and a note if there was no room for more."""
    try:
        data = b""
        for part in reversed(all_of(path)):
            with open(part, "rb") as file:
                file.seek(max(0, os.path.getsize(part) - KEEP_BYTES))
                data = file.read(KEEP_BYTES) + data
            if len(data) >= KEEP_BYTES:
                break
        return (*last_lines(data), *_lack_of_space(path))
    except OSError:
        return ()


def _lack_of_space(path: str) -> tuple[str, ...]:
    try:
        write_a_page(os.path.dirname(path))
    except OSError as error:
        if error.errno in NO_SPACE:
            return (f"(rdzv-run: {error.strerror}: {path}; output may be missing)",)
    return ()


class WorkerMonitor:
    """What one agent keeps of its workers' standard error. Thread-safe."""

    def __init__(self, directory: Path, on_first: Callable[[int], None]) -> None:
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
                    logger.exception("error in the monitor of the workers")

    def _handle(self, ready: list[int]) -> None:
        for pipe in [*self._pipes.values(), *self._old_pipes]:
            if pipe.fd in ready:
                self._read(pipe)
        for fd in ready:
            if fd == self._wake_r:
                os.read(fd, 4096)
                self._read_on()
