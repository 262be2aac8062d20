"""Messages between agent, keeper and template: whole messages or none, and never waiting for the other end; a loop.

Both ends run the same interpreter and nobody else has access, so ``marshal`` is the format. Messages that are too long
for a socket's buffer, such as the environments of many workers, travel as a memory file.
"""

from __future__ import annotations

import array
import marshal
import os
import select
import signal
import socket
from collections.abc import Callable
from typing import Any

Message = tuple[Any, ...]
"""Its first item says what kind of message it is. Contains only built-in types."""

_LONGEST = 32 * 1024
_BY_FILE = b"@"


class Gone(Exception):
    """The other end has been closed: its process has ended."""


class Channel:
    """One end. ``send`` may be called by any thread, ``receive`` by one at a time."""

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self._end = end

    @classmethod
    def pair(cls, socketpair: Callable[..., tuple[Any, Any]] = socket.socketpair) -> tuple[Channel, Channel]:
        """Make two ends, neither of which is inherited by programs that are started."""
        ours, theirs = socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return cls(ours), cls(theirs)

    @classmethod
    def of(cls, fd: int) -> Channel:
        """Wrap the end that this process was given as ``fd``."""
        os.set_inheritable(fd, False)
        return cls(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, 0, fd))

    def fileno(self) -> int:
        """The descriptor for ``poll``; -1 once it is closed."""
        return self._end.fileno()

    def close(self) -> None:
        """Close this end; the other one is told."""
        self._end.close()

    def send(self, message: Message) -> bool:
        """Send; False if the other end does not take it now. Raises ``Gone``, and ``OSError`` if memory is short."""
        data = marshal.dumps(message)
        try:
            if len(data) <= _LONGEST:
                self._end.send(data)
            else:
                self._send_file(data)
        except BlockingIOError:
            return False
        except (BrokenPipeError, ConnectionResetError):
            raise Gone from None
        return True

    def _send_file(self, data: bytes) -> None:
        fd = os.memfd_create("rdzv-keeper", os.MFD_CLOEXEC)
        with open(fd, "wb") as file:
            file.write(data)
            file.flush()
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))]
            self._end.sendmsg([_BY_FILE], rights)

    def receive(self) -> Message | None:
        """The next message, or None if there is none yet. Raises ``Gone``."""
        try:
            data, rights, _, _ = self._end.recvmsg(2 * _LONGEST, socket.CMSG_SPACE(4), socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return None
        except ConnectionResetError:
            raise Gone from None
        if not data:
            raise Gone
        for _, _, fds in rights:
            with open(array.array("i", fds[:4])[0], "rb") as file:
                file.seek(0)
                data = file.read()
        message: Message = marshal.loads(data)
        return message


class Loop:
    """An event loop: calls back for descriptors in the order in which they became ready.

    epoll returns them in that order: so the order of ends is kept.
    """

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._callbacks: dict[int, Callable[[], None]] = {}

    def watch(self, fd: int, callback: Callable[[], None], events: int = select.EPOLLIN) -> None:
        """Call ``callback`` whenever ``fd`` is ready, until ``forget``. It may be called once too often."""
        if fd in self._callbacks:
            self._epoll.modify(fd, events)
        else:
            self._epoll.register(fd, events)
        self._callbacks[fd] = callback

    def forget(self, fd: int) -> None:
        """Stop watching ``fd``. Call this before ``fd`` is closed."""
        if self._callbacks.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def watch_children(self, callback: Callable[[], object]) -> None:
        """Call ``callback`` when one or more children have ended."""
        ready, written = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(written, warn_on_full_buffer=False)

        def woken() -> None:
            try:
                os.read(ready, 4096)
            except BlockingIOError:
                pass
            callback()

        self.watch(ready, woken)

    def turn(self, timeout: float) -> None:
        """Handle what is ready; wait up to ``timeout`` seconds for something, for ever if negative."""
        for fd, _ in self._epoll.poll(timeout):
            if callback := self._callbacks.get(fd):
                callback()
