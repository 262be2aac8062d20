"""Nodes that were refused because of what a job's control store holds: waiting nodes are told who came, and why.

They are told at once. Keys under the job's prefix: ``refused/count``, and ``refused/<n>`` with the sentence about the
n-th.
"""

from __future__ import annotations

import logging
import threading

from torch.distributed import DistError, PrefixStore, TCPStore

from rdzv_plugins.kvstore.tcpstore.plain_client import KeyWatch
from rdzv_plugins.plain_text import printable

logger = logging.getLogger(__name__)

_COUNT = "refused/count"


def note_refused(store: PrefixStore, text: str) -> None:
    """Tell the waiting nodes that a node was refused. Raises ``DistError``."""
    store.set(f"refused/{store.add(_COUNT, 1)}", text)


class Refusals:
    """A context manager that logs every refusal meanwhile. Without ``control`` it hears of none.

    ``last`` is the newest sentence. Once the store is lost nothing more is heard; the loss is reported elsewhere.
    """

    def __init__(self, control: TCPStore | None, prefix: str) -> None:
        self._control, self._prefix = control, prefix
        self._lock = threading.Lock()
        self._stopped = False
        self._watch: KeyWatch | None = None
        self._number = 0
        self.last = ""

    def __enter__(self) -> Refusals:
        if self._control is not None:
            try:
                self._number = PrefixStore(self._prefix, self._control).add(_COUNT, 0)
                self._next()
            except (DistError, OSError) as error:
                logger.debug("nodes that are refused are not heard of: %s", error)
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._stopped = True
            watch, self._watch = self._watch, None
        if watch is not None:
            watch.stop()

    def _next(self) -> None:
        with self._lock:
            if self._control is None or self._stopped:
                return
            self._number += 1
            key = f"{self._prefix}/refused/{self._number}"
            self._watch = KeyWatch(self._control.host, self._control.port, key, self._told, lambda _: None)

    def _told(self, text: bytes) -> None:
        """Log that a node was refused, and watch for the next. Called on the watch's thread."""
        self.last = printable(text.decode(errors="backslashreplace"))
        logger.warning("%s", self.last)
        try:
            self._next()
        except OSError as error:
            logger.debug("nodes that are refused are not heard of any more: %s", error)
