"""How a node, and its job, ends: outcomes as JSON, the error of a node that hears of one, staying, the exit barrier.

Nodes that have a control store tell each other there. Keys, all under the prefix of the run: ``failure/<round>`` the
first failure of a round (JSON), ``restarts`` the rounds that failed and whose workers were to be restarted (JSON),
``end`` how the job ended (JSON), ``left/<agent>`` an agent that has left. Values are JSON, never pickle: whoever can
write to a store must not be able to run code on its readers.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import Any

from rdzv_plugins import errors
from rdzv_plugins.errors import StoreError, StoreTimeout
from rdzv_plugins.interfaces import Failure, Outcome, Request
from rdzv_plugins.plain_text import printable
from rdzv_plugins.runtime import SYSTEM, Runtime
from rdzv_plugins.store import Store
from rdzv_plugins.timing import Reporting

logger = logging.getLogger(__name__)

_MOST_LINES = 100
"""The most lines to read of a worker's last words; fewer are written."""


def to_json(end: Outcome | Failure) -> str:
    """The JSON form of an end."""
    return json.dumps(asdict(end))


def parse_outcome(text: bytes | str) -> Outcome:
    """An ``Outcome`` from its JSON form. Raises ``ValueError`` for anything else."""
    try:
        data = json.loads(text)
        failure, end = data.get("failure"), data["end"]
        if end not in ("done", "failed", "lost"):
            raise TypeError(f"its end is {end!r}")
        code = data.get("exit_code", 0)
        if type(code) is not int or not 0 <= code <= 255:
            raise TypeError(f"its exit_code is {code!r}")
        why = printable(str(data.get("why", "")))
        return Outcome(end, printable(str(data["reason"])), _failure(failure) if failure else None, why, code)
    except (TypeError, AttributeError, KeyError, RecursionError) as error:
        raise ValueError(f"not an outcome: {error}") from None


def parse_failure(text: bytes | str) -> Failure:
    """A ``Failure`` from its JSON form. Raises ``ValueError`` for anything else."""
    try:
        return _failure(json.loads(text))
    except (TypeError, AttributeError, KeyError, RecursionError) as error:
        raise ValueError(f"not a failure: {error}") from None


def _failure(data: dict[str, Any]) -> Failure:
    """A failure from its JSON form. Raises ``TypeError`` or ``KeyError``."""
    numbers = {name: data[name] for name in ("node_rank", "global_rank", "local_rank", "pid", "exit_code")}
    for name, number in numbers.items():
        least, most = (-127, 255) if name == "exit_code" else (-1, 2**31 - 1)
        if type(number) is not int or not least <= number <= most:
            raise TypeError(f"its {name} is {number!r}")
    lines = data["stderr"]
    if not isinstance(lines, list):
        raise TypeError("its stderr is no list of lines")
    stderr = tuple(printable(str(line)) for line in lines[-_MOST_LINES:])
    cause, hang = printable(str(data.get("cause", ""))), printable(str(data.get("hang", "")))
    return Failure(host=printable(str(data["host"])), stderr=stderr, cause=cause, hang=hang, **numbers)


def ended_error(outcome: Outcome, request: Request) -> errors.RendezvousFailed:
    """The error for a node that hears how the job ended elsewhere."""
    if outcome.failure is not None:
        failed = outcome.failure
        return errors.PeerFailed(
            f"run {request.run_id!r} failed on node {failed.node_rank} ({failed.host}): {outcome.reason}",
            failed,
            why=outcome.why,
            exit_code=outcome.exit_code,
        )
    if outcome.exit_code == errors.Preempted.exit_code:
        return errors.Preempted(f"run {request.run_id!r} was preempted: {outcome.reason or outcome.end}")
    if outcome.exit_code == errors.RendezvousTimeout.exit_code:
        return errors.RendezvousTimeout(f"run {request.run_id!r}{request.at_endpoint} has ended: {outcome.reason}")
    return errors.RendezvousClosed(
        f"run {request.run_id!r}{request.at_endpoint} has ended: {outcome.reason or outcome.end}",
        remedy="" if outcome.end == "lost" else "To start it again, use another --rdzv-id.",
    )


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
        with contextlib.suppress(StoreTimeout):
            self._store.wait(keys, timedelta(seconds=linger))

    def _read(self, key: str) -> bytes:
        # check first: get() of a missing key would block
        return self._store.get(key) if self._store.check([key]) else b""


def _parse_restarts(text: bytes) -> dict[int, str]:
    """The notes by round. What cannot be read counts as nothing: others may write anything there."""
    try:
        return {int(round_): str(note) for round_, note in json.loads(text or b"[]")}
    except (TypeError, ValueError, RecursionError):
        return {}


_LOOK_S = 1.0
_ASK_S = 10.0


def drain_wait(
    goes_on: Callable[[], bool],
    working: Callable[[], Sequence[str]],
    runtime: Runtime = SYSTEM,
    *,
    every: float = _ASK_S,
    gone: Callable[[float], object] | None = None,
) -> None:
    """Wait until ``goes_on``, asked every second, is false, or ``working``, asked ``every`` so often, names nobody.

    ``gone`` waits at most so many seconds, and returns true as soon as nobody is working any more; without it that is
    not known sooner. A signal ends the wait, and so does an exception from any of them. Logs now and then, at growing
    intervals, for whom this node stays.
    """
    reporting, next_ask = Reporting(first=_LOOK_S, grows=True, runtime=runtime), runtime.monotonic()
    while goes_on():
        if runtime.monotonic() >= next_ask:
            names = working()
            if not names:
                return
            if reporting.is_due():
                logger.info("this node is done but serves others: staying while they work (%s)", ", ".join(names))
            next_ask = runtime.monotonic() + every
        if (gone or runtime.sleep)(_LOOK_S):
            return


# The exit barrier, whose keys are those of torch's agent (agent/server/api.py), in the agents' store of a round.
# rdzv-run uses them, too: nodes of plain torchrun may be part of the same job. One node looks at all the others and
# the rest read what it found, so no node's requests grow with their number.

_PATIENCE_S = 5.0

BARRIER = "torchelastic/agent/terminal_state"
ARRIVALS = f"{BARRIER}/num_members"
"""Counts the nodes whose workers have succeeded."""
LAST = f"{BARRIER}/last_member"
"""The key that is written by the last node whose workers have succeeded."""


def node_key(rank: int) -> str:
    """Written by each node of rdzv-run, so that a waiting node can name the others; torch's own nodes do not."""
    return f"{BARRIER}/node/{rank}"


def missing(store: Store, nodes: int) -> list[int]:
    """The ranks of the nodes that are not there yet. A few requests: of those that ask meanwhile, one looks."""
    key = f"{BARRIER}/missing/{store.add(ARRIVALS, 0)}"  # the list is the same until another one arrives
    return looked_once(store, key, lambda: absent(store, [node_key(rank) for rank in range(nodes)]), _PATIENCE_S)


def looked_once(store: Store, key: str, look: Callable[[], Iterable[int]], patience: float) -> list[int]:
    """The ranks that ``look`` finds: the first caller looks, and the others read them under ``key``.

    Whoever has waited ``patience`` seconds in vain looks for itself: the first one may have ended meanwhile.
    """
    if store.add(f"{key}/looks", 1) > 1:
        try:
            store.wait([key], timedelta(seconds=patience))
            return [int(rank) for rank in json.loads(store.get(key))]
        except StoreTimeout:
            pass
    found = list(look())
    store.set(key, json.dumps(found))
    return found


def absent(store: Store, keys: list[str], first: int = 0) -> list[int]:
    """The positions, from ``first`` on, of the keys that do not exist.

    Makes one request if all exist, and few if most do: halves are asked for where something is missing.
    """
    if not keys or store.check(keys):
        return []
    if len(keys) == 1:
        return [first]
    half = len(keys) // 2
    return [*absent(store, keys[:half], first), *absent(store, keys[half:], first + half)]
