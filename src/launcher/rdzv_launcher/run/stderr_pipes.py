"""A worker's standard error on its way to ours: passed on as it comes, with the last lines kept for the summary.

The keeper opens the stream by path, so each worker gets the path of a named pipe, or of a pseudo-terminal if our own
stderr is a terminal (so progress bars and colours stay as they are).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import termios
import tty
from collections.abc import Callable
from pathlib import Path

from rdzv_launcher import queued_stderr
from rdzv_launcher.console import NO_SPACE
from rdzv_launcher.run.machine import write_a_page
from rdzv_launcher.run.workers.output.rotated import all_of

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
        on_first: Callable[[], None] = lambda: None,
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
            self.held_up = self._forward and not all_of_it and not queued_stderr.has_room(self._on_room)
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
                queued_stderr.forward(data)
        return True

    def tail(self) -> tuple[str, ...]:
        """The last lines so far."""
        return last_lines(bytes(self._kept))

    def close_writer(self) -> None:
        """The workers have ended: from now on the pipe lasts as long as the processes that they left behind."""
        if self._writer >= 0:
            writer, self._writer = self._writer, -1
            os.close(writer)

    def close(self) -> None:
        """Release the pipe."""
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
            return (f"(rdzv-run: {error.strerror}: {path}, so there may have been more)",)
    return ()
