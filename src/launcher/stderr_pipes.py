"""A worker's standard error on its way to ours: passed on as it comes, with the last lines kept for the summary.

torch opens the stream by path, so each worker gets the path of a named pipe, or of a pseudo-terminal
where our own stderr is a terminal (progress bars and colours stay as they are).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
import termios
import tty
from pathlib import Path

KEEP_BYTES = 16 * 1024
KEEP_LINES = 20
_CHUNK = 64 * 1024


def last_lines(data: bytes) -> tuple[str, ...]:
    """The last lines of a stream; of a line that was overwritten (carriage return), what it showed last."""
    lines = data[-KEEP_BYTES:].decode(errors="replace").splitlines()
    shown = [line.rsplit("\r", 1)[-1].rstrip() for line in lines]
    return tuple(line for line in shown if line)[-KEEP_LINES:]


class StderrPipe:
    """One worker's stderr. Not thread-safe: read by the monitor's thread only."""

    def __init__(self, directory: Path, local_rank: int, *, forward: bool) -> None:
        self._forward = forward
        self._kept = bytearray()
        self._keep_open: list[int] = []
        if forward and os.isatty(2):
            self.fd, self.path = self._open_terminal()
        else:
            self.path = str(directory / f"stderr.{local_rank}")
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.path)
            os.mkfifo(self.path, 0o600)
            self.fd = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK)
            # a writer of our own: without it the pipe reads as ended between two writers
            self._keep_open.append(os.open(self.path, os.O_WRONLY))

    def _open_terminal(self) -> tuple[int, str]:
        reader, writer = os.openpty()
        tty.setraw(writer)  # what passes here is processed once, by the real terminal
        with contextlib.suppress(OSError):
            size = fcntl.ioctl(2, termios.TIOCGWINSZ, b"\0" * 8)
            fcntl.ioctl(writer, termios.TIOCSWINSZ, size)
        os.set_blocking(reader, False)
        self._keep_open.append(writer)
        return reader, os.ttyname(writer)

    def drain(self) -> None:
        """Read what is there now, keep its end and pass it on."""
        while True:
            try:
                data = os.read(self.fd, _CHUNK)
            except (BlockingIOError, OSError):
                return
            if not data:
                return
            self._kept += data
            del self._kept[:-KEEP_BYTES]
            if self._forward:
                self._pass_on(data)

    def _pass_on(self, data: bytes) -> None:
        while data:
            try:
                data = data[os.write(2, data) :]
            except BlockingIOError:
                continue
            except OSError:  # our own stderr is gone: the workers must not stop for that
                self._forward = False
                return

    def tail(self) -> tuple[str, ...]:
        """The last lines so far."""
        return last_lines(bytes(self._kept))

    def close(self) -> None:
        """Let go of the pipe."""
        for fd in (self.fd, *self._keep_open):
            os.close(fd)
        self._keep_open.clear()


def pipe_directory() -> Path:
    """A private directory for named pipes."""
    return Path(tempfile.mkdtemp(prefix="rdzv-run-"))


def tail_of_file(path: str) -> tuple[str, ...]:
    """The last lines of a stderr that torch redirected to a file."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.path.getsize(path) - KEEP_BYTES))
            return last_lines(file.read())
    except OSError:
        return ()
