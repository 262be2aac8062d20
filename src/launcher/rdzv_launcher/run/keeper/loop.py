"""The keeper's event loop: whatever becomes ready first is handled first."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable


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
