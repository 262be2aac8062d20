"""Copies of this process, made once it has imported what is slow to import, each with a connection to it."""

from __future__ import annotations

import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Iterable

from rdzv_launcher.bench.processes.child import with_parent


class Fork:
    """A copy of this process that runs a function and ends. It also ends when this process does."""

    def __init__(self, run: Callable[[socket.socket], None], others: Iterable[Fork] = ()) -> None:
        """``run`` gets the copy's end of the connection; those of the ``others`` are closed there."""
        self.connection, theirs = socket.socketpair()
        ends_with_me = with_parent()
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                ends_with_me()
                for each in (self, *others):
                    each.connection.close()
                run(theirs)
                code = 0
            except KeyboardInterrupt:
                pass  # the benchmark got it too, and says so
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)
        theirs.close()

    def kill(self) -> None:
        """Send SIGKILL, without waiting for the end."""
        os.kill(self.pid, signal.SIGKILL)

    def reap(self) -> int:
        """Wait for its end; returns its exit code, negative for a signal."""
        self.connection.close()
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
