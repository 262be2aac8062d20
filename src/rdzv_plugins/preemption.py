"""For training scripts: is the job about to lose a node, and at which step do all ranks save?

With ``rdzv-run --preempt-grace=SECONDS`` a node that gets SIGTERM does not stop its workers at once: those of all nodes
are told first. A script that asks after each step saves the same step on all ranks:

    from rdzv_plugins.worker import notice, saved

    for step in range(first, steps):
        train()
        told = notice(step=step + 1)  # so many steps are done
        if told is not None and told.step == step + 1:
            save(checkpoint)
            saved()

Asking reads numbers that the agent keeps in memory, in microseconds; it imports neither torch nor anything else of this
project that does, and sends nothing. docs/guides/preemption.md has the rest.
"""

from __future__ import annotations

import json
import operator
import os
import time
from dataclasses import dataclass
from typing import SupportsIndex

from rdzv_plugins.clock import now
from rdzv_plugins.shared_numbers import open_numbers

__all__ = ["Notice", "notice", "saved"]

# The page: what agent and workers of a node share about a notice. The agent says which step is the last, workers where
# they are.
#
# So that all ranks save the same step, the agents propose one, and each checks whether a worker of its own has already
# passed it: a worker writes where it is before it looks at LIMIT; an agent writes LIMIT, and looks SEEN_S later where
# the workers are. So if a worker has passed the step without seeing the limit, this is known. A worker that arrives at
# a step that is only proposed waits for the decision.

VARIABLE = "RDZV_NOTICE"
"""The variable in a worker's environment: the path of the page, its size in bytes, the number of the workers' start,
and the worker's first place, separated by commas."""
FILE = "RDZV_NOTICE_FILE"
"""The variable with the path of a file that exists once there is a notice.

It is a JSON object with the fields of ``Notice``, but ``deadline`` as a Unix time in seconds.
"""

START, NUMBER, DEADLINE, ROUND, NODE, LIMIT = range(6)
"""Places in the page.

START: how often workers have been started; NUMBER: 0 without a notice, otherwise it changes with each change of the
rest; DEADLINE: in nanoseconds of ``clock.now_ns``; ROUND; NODE: the rank of the node that is lost; LIMIT: 0, or the
step after which all save, or minus that step while it is only proposed.
"""
FIRST, WIDTH = 8, 2
AT, SAVED = range(2)
"""Places of each worker, from FIRST on.

AT: how many steps are done, -1 if it has never said; SAVED: 1 once it has said that it has saved.
"""

SEEN_S = 0.01
"""Seconds after which every processor sees a write by another: longer than it can remain hidden."""
VALID_S = 8.0
"""A proposal older than this is no longer agreed to."""
HOLD_S = 10.0
"""How many seconds a worker waits for a decision at most.

This is longer than ``VALID_S``, so that the worker passes no step that is agreed on after all.
"""
MOST_STEPS = 2**62


def size_of(workers: int) -> int:
    """The size of a page in bytes."""
    return 8 * (FIRST + WIDTH * workers)


_LOOK_S = 0.001


@dataclass(frozen=True)
class Notice:
    """The job is about to lose a node. ``round`` and ``step`` are the same on all ranks of a round, once known."""

    reason: str
    """Why the node leaves, as a sentence."""
    deadline: float
    """The time, as ``time.monotonic`` counts, until which workers can save; then those of the node are stopped."""
    node: int
    """The rank of the leaving node in the round."""
    round: int
    """The number of the round, as in RDZV_ROUND."""
    step: int | None
    """Save when this many steps are done. None while no step is agreed on: because no worker says where it is (``step``
    of ``notice``), because the agents are still agreeing, or because this backend cannot carry it to the other nodes.
    """


_known: tuple[tuple[int, ...], Notice] | None = None
_undecided = 0
"""The newest proposal that was not decided in time: it is not waited for again."""


def notice(step: SupportsIndex | None = None) -> Notice | None:
    """The notice of this round, or None while there is none; always None outside of rdzv-run.

    ``step``: how many steps this worker has done, to be given after each step; a count that grows by one and is equal
    on all ranks when they have done the same. If a worker's count jumps past ``Notice.step``, the agents assume that it
    has not saved it. Returns in microseconds; only within a second or so after a notice may it take longer, at most
    some seconds, while the agents agree on the step. Thread-safe; with ``step``, for only one thread of a worker.
    Raises ``ValueError`` for a step below 0, ``TypeError`` for one that is not a whole number, and ``PermissionError``
    in a process of a different user than the agent's.
    """
    place = _place()
    if step is not None:
        done = operator.index(step)
        if not 0 <= done < MOST_STEPS:
            raise ValueError(f"step={done}: the number of steps that are done is 0 or more")
        if place is not None:
            page, _, mine = place
            if 0 < page[LIMIT] == page[mine + AT] < done and page[START] == place[1]:
                page[mine + SAVED] = 1  # it was told of this step, and has gone on
            if page[mine + AT] < done:
                page[mine + AT] = done  # before LIMIT is read: see above
            if page[LIMIT] < 0:
                _hold(page, done)
    if place is None or not place[0][NUMBER] or place[0][START] != place[1]:
        return None
    return _read(place[0])


def saved() -> None:
    """Say that this worker has saved what it wants to save: it does not need the node until the deadline.

    A worker that was told to save its step, and then gives a later one to ``notice``, has also said so. Workers that
    have never called ``saved`` or ``notice(step=...)`` are not waited for, unless none has. Does nothing while there is
    no notice. Thread-safe. Raises ``PermissionError`` as ``notice`` does.
    """
    place = _place()
    if place is not None and place[0][NUMBER] and place[0][START] == place[1]:
        place[0][place[2] + SAVED] = 1


def _place() -> tuple[memoryview, int, int] | None:
    """The page, the number of this worker's start, and its first place."""
    told = os.environ.get(VARIABLE, "")
    if not told:
        return None
    path, size, start, mine = told.rsplit(",", 3)
    try:
        return open_numbers(path, int(size), write=True), int(start), int(mine)
    except FileNotFoundError:  # the agent has gone
        return None


def _hold(page: memoryview, done: int) -> None:
    """Wait while it is not decided whether this step is the one."""
    global _undecided
    until = now() + HOLD_S
    while (limit := -int(page[LIMIT])) > 0 and done >= limit and limit != _undecided:
        if now() >= until:
            _undecided = limit
            return
        time.sleep(_LOOK_S)


def _read(page: memoryview) -> Notice:
    global _known
    limit = max(0, int(page[LIMIT]))
    numbers = (int(page[START]), int(page[NUMBER]), int(page[DEADLINE]), limit)
    if _known is None or _known[0] != numbers:
        left = numbers[2] / 1e9 - now()
        _known = (
            numbers,
            Notice(_reason(), time.monotonic() + left, int(page[NODE]), int(page[ROUND]), limit or None),
        )
    return _known[1]


def _reason() -> str:
    """From the file, which holds what is no number."""
    try:
        with open(os.environ.get(FILE, "")) as file:
            return str(json.load(file)["reason"])
    except (OSError, ValueError, LookupError, TypeError):  # a full disk
        return "a node is about to leave"
