"""Which worker of a round is the first to write to a file of its own. Only a timeline needs this."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence

from rdzv_plugins.threads import OwnThread

_INTERVAL_S = 0.1


class FirstLines:
    """Looks at the files of a round ten times a second, on a thread of its own, until one of them has grown."""

    def __init__(self, files: Sequence[tuple[int, str]], tell: Callable[[int], None]) -> None:
        """``files`` with the local ranks of the workers that are about to get them; ``tell`` gets one rank, once."""
        self._files = [(local_rank, path, _size(path)) for local_rank, path in files]
        self._tell = tell
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        if files:
            OwnThread(target=self._run, name="rdzv-first-line").start()

    def stop(self) -> None:
        """The round is over: ``tell`` is no longer called. Does not wait for any file."""
        with self._lock:
            self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.wait(_INTERVAL_S):
            for local_rank, path, before in self._files:
                if _size(path) > before:
                    with self._lock:
                        if not self._stopped.is_set():
                            self._tell(local_rank)
                    return


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:  # it does not exist yet
        return 0
