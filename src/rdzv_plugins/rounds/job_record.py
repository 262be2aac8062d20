"""What the nodes of a job tell each other through their control store: failures, ends, who has left.

Keys, all under the prefix of the run: ``failure/<round>`` the first failure of a round (JSON), ``restarts`` the rounds
that failed and whose workers were to be restarted (JSON), ``end`` how the job ended (JSON), ``left/<agent>`` an agent
that has left. Values are JSON, never pickle: whoever can write to a store must not be able to run code on its readers.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import timedelta

from rdzv_plugins.errors import StoreError, StoreTimeout
from rdzv_plugins.interfaces import Failure, Outcome
from rdzv_plugins.rounds.ends import parse_failure, parse_outcome, to_json
from rdzv_plugins.store import Store

_TRIES = 100


class JobRecord:
    """The record of one run. As thread-safe as the store. Every method raises ``StoreError``."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def note_failure(self, round_: int, failure: Failure) -> None:
        """Keep ``failure`` if it is the first of ``round_`` over all nodes."""
        self._store.compare_set(f"failure/{round_}", "", to_json(failure))

    def first_failure(self, round_: int) -> Failure | None:
        """The first failure of ``round_``, if there was one."""
        text = self._read(f"failure/{round_}")
        return parse_failure(text) if text else None

    def count_restart(self, round_: int, note: str) -> list[str]:
        """Count ``round_`` unless it is already counted, with a note.

        Returns the notes of all that count, ordered by round.
        """
        held = self._read("restarts")
        for _ in range(_TRIES):
            if round_ in (counted := _parse_restarts(held)):
                return [text for _, text in sorted(counted.items())]
            # a node that is not the first mostly finds that another has counted the same round
            held = self._store.compare_set("restarts", held, json.dumps(sorted({**counted, round_: note}.items())))
        raise StoreError(f"the restart after round {round_} could not be counted: others write all the time")

    def end(self, outcome: Outcome) -> None:
        """Say how the job ended. The first statement counts."""
        self._store.compare_set("end", "", to_json(outcome))

    def ended(self) -> Outcome | None:
        """How the job ended; None while it has not."""
        text = self._read("end")
        return parse_outcome(text) if text else None

    def has_left(self, *agents: str) -> bool:
        """True once all of these have said that they no longer need the store. Makes one request."""
        return self._store.check([f"left/{who}" for who in agents])

    def mark_left(self, who: str) -> None:
        """Note that this agent process, known as ``who``, no longer needs the store."""
        self._store.set(f"left/{who}", "")

    def wait_left(self, others: Iterable[str], linger: float) -> None:
        """Wait until ``others`` have left, at most ``linger`` seconds. For the node that serves the store."""
        keys = [f"left/{who}" for who in others]
        if not keys or linger <= 0:
            return
        try:
            self._store.wait(keys, timedelta(seconds=linger))
        except StoreTimeout:
            pass

    def _read(self, key: str) -> bytes:
        # check first: get() of a missing key would block
        return self._store.get(key) if self._store.check([key]) else b""


def _parse_restarts(text: bytes) -> dict[int, str]:
    """The notes by round. What cannot be read counts as nothing: others may write anything there."""
    try:
        return {int(round_): str(note) for round_, note in json.loads(text or b"[]")}
    except (TypeError, ValueError, RecursionError):
        return {}
