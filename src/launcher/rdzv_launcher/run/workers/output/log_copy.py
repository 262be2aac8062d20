"""A log file that the agent writes, from the worker's pipe: only then can it be rotated, or get timestamps."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import select
import termios
import threading
import time

from rdzv_launcher.run.workers.output.rotated import rotate
from rdzv_launcher.run.workers.output.stamps import stamp
from rdzv_plugins.threads import OwnThread

logger = logging.getLogger(__name__)

_PIPE = 1 << 20
_CHUNK = 64 << 10
_REST_S = 0.001
"""A worker that writes lines one by one need not wake us for each; one that has filled a quarter of its pipe does."""
_OVER = 1 << 20
"""How far beyond its size a file is written in order to reach the end of a line."""
_LOOK_S = 0.01


class LogCopy:
    """One stream of one worker, copied by a separate thread: by the kernel, unless lines get timestamps.

    No worker waits longer than the disk takes; what a full disk does not take is lost, counted and reported. The thread
    ends when nobody can write to the pipe any more.
    """

    def __init__(self, pipe: str, path: str, *, size: int, files: int, stamps: bool) -> None:
        """``size`` and ``files`` as in --log-rotate; 0: one file. Raises ``OSError`` without such a file or pipe."""
        self._path, self._size, self._files, self._stamps = path, size, files, stamps
        self.pipe = pipe
        self._file = self._open()
        self._written = 0
        os.mkfifo(pipe, 0o600)
        self._source = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        # a writer of our own: without it the pipe reads as ended before the worker has opened it
        self._writer = os.open(pipe, os.O_WRONLY | os.O_CLOEXEC)
        os.set_blocking(self._source, True)
        with contextlib.suppress(OSError, AttributeError):  # more than this user may have; not on this system
            fcntl.fcntl(self._source, fcntl.F_SETPIPE_SZ, _PIPE)
        self._little = 0
        with contextlib.suppress(OSError, AttributeError):
            self._little = fcntl.fcntl(self._source, fcntl.F_GETPIPE_SZ) // 4
        self._rotating = threading.Lock()
        self._between_lines = True
        self._lost = 0
        self._passed = 0
        """How many bytes have come out of the pipe, and are in the file or lost."""
        self._splices = not stamps and hasattr(os, "splice")
        self._busy = True
        self._thread = OwnThread(target=self._run, name="rdzv-log-copy")
        self._thread.start()

    def opened(self) -> None:
        """The worker has the pipe, or there is none: it no longer needs a name, and ends once nobody holds it."""
        if self._writer >= 0:
            os.close(self._writer)
            self._writer = -1
            try:
                os.unlink(self.pipe)
            except OSError:
                pass

    def settle(self, deadline: float) -> bool:
        """Wait until everything that the worker has written is in the file; False if that is not so in time.

        Processes that the worker left behind go on writing to the same file: its name may belong to another round.
        """
        enough = self._passed + self._waiting() + _PIPE  # no more than this is under way now
        while not (done := self._is_idle() or self._passed > enough) and time.monotonic() < deadline:
            self._thread.join(_LOOK_S)
        # a rotation that has begun ends first, unless the disk hangs: the next round may get files by these names
        wait_s = min(max(_LOOK_S, deadline - time.monotonic()), threading.TIMEOUT_MAX)
        locked = self._rotating.acquire(timeout=wait_s)
        self._size = 0
        if locked:
            self._rotating.release()
        return done

    def _is_idle(self) -> bool:
        return not self._thread.is_alive() or not (self._waiting() or self._busy)  # in this order: the taker is busy

    def _waiting(self) -> int:
        """How many bytes are in the pipe."""
        try:
            return int.from_bytes(fcntl.ioctl(self._source, termios.FIONREAD, b"\0" * 4), "little")
        except OSError:
            return 0

    def _run(self) -> None:
        try:
            while self._move():
                pass
        except Exception:  # nothing in the worker depends on us: it goes on writing
            logger.exception("%s gets no more lines", self._path)
            while os.read(self._source, _CHUNK):
                pass
        finally:
            self._say_lost()
            os.close(self._source)
            os.close(self._file)

    def _wait(self) -> None:
        """Wait until there is something to read, or nobody left to write it."""
        self._busy = False
        poll = select.poll()
        poll.register(self._source, select.POLLIN)
        poll.poll()
        self._busy = True

    def _move(self) -> bool:
        """Move what is there; False once there is nothing left, and nobody to write more."""
        self._wait()
        size = self._size
        room = size - self._written if size else _PIPE
        if not self._splices or room <= 0:
            data = os.read(self._source, _CHUNK)
            if data:
                self._take(data)
                self._passed += len(data)
            return bool(data)
        try:
            moved = os.splice(self._source, self._file, min(_PIPE, room))
        except OSError as error:
            if error.errno == errno.EINVAL:  # a file system that cannot do it
                self._splices = False
            else:
                count = len(os.read(self._source, _CHUNK))
                self._lose(count, error)
                self._passed += count
            return True
        self._written += moved
        self._passed += moved
        if 0 < moved < self._little:
            self._busy = False
            time.sleep(_REST_S)
        return moved > 0

    def _take(self, data: bytes) -> None:
        """Write it; a file that is large enough ends at the end of a line."""
        size = self._size
        if not size or self._written + len(data) <= size:
            self._write(data)
            return
        end = data.find(b"\n", max(0, size - self._written - 1)) + 1
        if end == 0 and self._written + len(data) < size + _OVER:
            self._write(data)
            return
        self._write(data[: end or len(data)])
        self._rotate()
        self._write(data[end or len(data) :])

    def _rotate(self) -> None:
        with self._rotating:
            if not self._size:  # settled since it was checked
                return
            try:
                rotate(self._path, self._files)
                file = self._open()
            except OSError as error:
                logger.warning("%s cannot be rotated any more: %s", self._path, error.strerror or error)
                self._size = 0
                return
        os.close(self._file)
        self._file, self._written = file, 0

    def _write(self, data: bytes) -> None:
        if self._stamps:
            data = self._stamped(data)
        try:
            while data:
                count = os.write(self._file, data)
                self._written += count
                data = data[count:]
            self._say_lost()
        except OSError as error:
            self._lose(len(data), error)

    def _stamped(self, data: bytes) -> bytes:
        if not data:
            return data
        now = stamp().encode()
        begun, self._between_lines = self._between_lines, data.endswith(b"\n")
        body = data[:-1] if self._between_lines else data
        return (now if begun else b"") + body.replace(b"\n", b"\n" + now) + data[len(body) :]

    def _open(self) -> int:
        return os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)

    def _lose(self, count: int, error: OSError) -> None:
        if not self._lost:
            logger.warning("%s: %s: what is written to it is lost", self._path, error.strerror or error)
        self._lost += count

    def _say_lost(self) -> None:
        if self._lost:
            logger.warning("%s lacks %d bytes", self._path, self._lost)
            self._lost = 0
