"""What the nodes of a job tell each other through their control store: failures, ends, who has left.

Keys, all under the prefix of the run: ``failure/<round>`` the first failure of a round (JSON),
``end`` how the job ended (JSON), ``left`` how many nodes have left. JSON, never pickle: whoever can
write to a store must not be able to run code on its readers.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from datetime import timedelta

from torch.distributed import DistError, DistNetworkError, Store

from rdzv_plugins.interfaces import Failure, Outcome

logger = logging.getLogger(__name__)

_WATCH_SLICE_S = 300.0
_LINGER_STEP_S = 0.05


class JobRecord:
    """The record of one run. Thread-safe as far as the store is: torch's stores serialise their calls."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def note_failure(self, round_: int, failure: Failure) -> None:
        """Keep ``failure`` if it is the first of ``round_`` over all nodes."""
        self._store.compare_set(f"failure/{round_}", "", json.dumps(asdict(failure)))

    def first_failure(self, round_: int) -> Failure | None:
        """The first failure of ``round_``, if there was one."""
        text = self._read(f"failure/{round_}")
        return _failure(json.loads(text)) if text else None

    def end(self, outcome: Outcome) -> None:
        """Say how the job ended. The first to say so is believed."""
        self._store.compare_set("end", "", json.dumps(asdict(outcome)))

    def ended(self) -> Outcome | None:
        """How the job ended, None while it has not."""
        text = self._read("end")
        return parse_outcome(text) if text else None

    def mark_left(self) -> None:
        """Count this node as gone: whoever serves the store need not wait for it."""
        self._store.add("left", 1)

    def wait_left(self, nodes: int, linger: float) -> None:
        """Wait until ``nodes`` have left, at most ``linger`` seconds. For the node that serves the store."""
        deadline = time.monotonic() + linger
        while self._store.add("left", 0) < nodes and time.monotonic() < deadline:
            time.sleep(_LINGER_STEP_S)

    def _read(self, key: str) -> bytes:
        # check first: get() of a missing key would block
        return self._store.get(key) if self._store.check([key]) else b""


class Watch:
    """A thread that waits for one key and then calls back, once: pushed by the server, never polled.

    It has a connection of its own, because a blocked wait keeps a store object busy.
    ``on_value`` gets the value, ``on_lost`` the error when the server goes away; both run on the
    thread. ``stop`` makes it silent; the thread ends with the process.
    """

    def __init__(
        self, store: Store, key: str, on_value: Callable[[bytes], None], on_lost: Callable[[Exception], None]
    ) -> None:
        self._stopped = threading.Event()
        self._key, self._on_value, self._on_lost = key, on_value, on_lost
        self._store = store.clone()
        threading.Thread(target=self._run, name=f"rdzv-watch-{key}", daemon=True).start()

    def stop(self) -> None:
        """No call-back after this returns, save one that is already running."""
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                self._store.wait([self._key], timedelta(seconds=_WATCH_SLICE_S))
                value = self._store.get(self._key)
            except DistNetworkError as error:
                if not self._stopped.is_set():
                    self._on_lost(error)
                return
            except DistError:  # the slice is over
                continue
            if not self._stopped.is_set():
                self._on_value(value)
            return


def parse_outcome(text: bytes | str) -> Outcome:
    """An ``Outcome`` from its JSON form."""
    data = json.loads(text)
    failure = data.pop("failure", None)
    return Outcome(**data, failure=_failure(failure) if failure else None)


def _failure(data: dict[str, object]) -> Failure:
    return Failure(**{**data, "stderr": tuple(data["stderr"])})  # type: ignore[arg-type]
