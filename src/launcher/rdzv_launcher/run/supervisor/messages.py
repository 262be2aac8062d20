"""What agent, supervisor and template tell each other, and how: whole messages or none, never waiting for the other
end.

Both ends run the same interpreter and nobody else has access, so ``marshal`` is the format. Messages that are too long
for a socket's buffer, such as the environments of many workers, travel as a memory file. A supervisor that replaces
another one is an interpreter that has only our own packages and the standard library.
"""

from __future__ import annotations

import array
import marshal
import os
import select
import signal
import socket
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

NAME = "rdzv-supervisor"
"""The kernel's name for the supervisor, whose command line is its agent's."""


class Start(NamedTuple):
    """One worker to start. ``environment`` is complete; an empty path leaves a stream the same as the agent's own."""

    local_rank: int
    command: tuple[str, ...]
    environment: Mapping[str, str]
    stdout: str = ""
    stderr: str = ""
    number: int = 0
    """For the supervisor: that of the start of several workers to which this one belongs."""


class Inherited(NamedTuple):
    """What workers inherit from the agent's own process, if that was created for one call from Python."""

    descriptors: tuple[int, ...] = ()
    """Descriptors that are open in the workers under the same numbers."""
    function: Callable[[int], int] | None = None
    """What the workers run instead of their commands. Each is a fork of the supervisor, which then is a fork of the
    agent. The function is given the local rank and returns the exit code.
    """


class OwnedResources(NamedTuple):
    """What belongs to the agent, and is left to its supervisor when the agent cannot see to it."""

    page: int = -1
    """The descriptor of a ``RoundPage``, used to pause the workers while the agent stands still; -1: none."""
    mark: str = ""
    """Whatever carries this mark in its environment is ended when the agent has ended; empty: nothing."""
    directory: str = ""
    """Once the agent has ended, everything in here but the logs of workers is removed; empty: there is none."""


class Preload(NamedTuple):
    """Modules that the workers' interpreter should import before it is forked for each of them.

    ``command`` is that of the workers, ``environment`` what their environments have in common. A worker with other
    values of variables that matter when an interpreter or a library is loaded (``PYTHON*``, ``OMP_*``) is started as a
    fresh interpreter. ``limit``, in seconds, applies to the imports, and is the longest that a start waits for them.
    """

    modules: tuple[str, ...]
    command: tuple[str, ...]
    environment: Mapping[str, str]
    limit: float = 60.0


class WorkerEnded(NamedTuple):
    """A worker has ended: said once of each, in the order in which they ended, and to whoever has to know of it."""

    generation: int
    """That of the ``start`` that it belongs to."""
    local_rank: int
    exit_code: int
    """Negative for a signal, as in ``subprocess``."""


class Lost(NamedTuple):
    """The supervisor has ended without being asked to: no worker lives any more, and no other event follows."""

    reason: str


Event = WorkerEnded | Lost

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
                return True
            fd = os.memfd_create("rdzv-supervisor", os.MFD_CLOEXEC)
            with open(fd, "wb") as file:
                file.write(data)
                file.flush()
                rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))]
                self._end.sendmsg([_BY_FILE], rights)
        except BlockingIOError:
            return False
        except (BrokenPipeError, ConnectionResetError):
            raise Gone from None
        return True

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
