"""What a node of a blocked rendezvous tells: every ten seconds what it waits for, and at once who was refused."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from types import TracebackType

from torch.distributed import DistError, PrefixStore, TCPStore

from rdzv_plugins.kvstore.tcpstore.plain_client import KeyWatch
from rdzv_plugins.plain_text import printable
from rdzv_plugins.threads import OwnThread
from rdzv_plugins.timing import Reporting

logger = logging.getLogger(__name__)

_SAMPLE_S = 0.5


class Waiting:
    """A context manager around something that blocks; ``facts`` is called on a thread of its own.

    ``last`` keeps the newest facts that are not empty: torch tidies up its state before it raises a time-out.
    """

    def __init__(self, facts: Callable[[], str]) -> None:
        self._facts = facts
        self.last = facts()
        self._over = threading.Event()
        self._thread = OwnThread(target=self._run, name="rdzv-waiting")

    def __enter__(self) -> Waiting:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        start, reporting = time.monotonic(), Reporting()
        while not self._over.wait(_SAMPLE_S):
            self.last = self._facts() or self.last
            if reporting.is_due():
                known = self.last or "the state of the rendezvous has not been reached yet"
                logger.info("waiting: %s (%.0f s)", known, time.monotonic() - start)


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
