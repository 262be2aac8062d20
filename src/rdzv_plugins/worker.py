"""For training scripts: does the round that this worker belongs to still hold?

A node may be cut off, or stand still, for longer than the others wait for it. They begin a new round without it, while
its workers may not know yet. A worker that is about to change something that others see (a checkpoint, a file, a
database) asks first:

    from rdzv_plugins.worker import wait_until_round_holds

    if wait_until_round_holds(timeout=60):
        save(checkpoint)

Asking reads a number that the agent keeps in memory, in microseconds; it imports neither torch nor anything else of
this project, and sends nothing. Asking before a change does not protect it while it is made:
docs/internals/fencing.md says what remains possible.

``notice`` and ``saved``, from ``rdzv_plugins.preemption``, tell whether the job is about to lose a node. ``progress``
says that this worker is alive and well: for ``rdzv-run --hang-timeout``.
"""

from __future__ import annotations

import os
import time

from rdzv_plugins.clock import now_ns
from rdzv_plugins.preemption import Notice, notice, saved
from rdzv_plugins.shared_numbers import ROUND_SIZE, ROUND_VARIABLE, START, UNTIL, open_numbers, progress
from rdzv_plugins.stacks_on_request import register

__all__ = ["Notice", "notice", "progress", "round_holds", "saved", "wait_until_round_holds"]

_AGAIN_S = 0.05

register()  # `rdzv stacks` can be told where this worker is, also where no debugger may look


def round_holds() -> bool:
    """True while this worker's round is sure to hold: the service cannot have ended its node's session yet.

    False once the round is over, the session has ended, or its agent has gone; also while that is unknown because the
    service has not answered for longer than the session's time to live, which may change again. Always True outside of
    rdzv-run, and with backends that cannot tell (``static``, ``c10d``). Thread-safe; may be called after a fork. Raises
    ``PermissionError`` in a process of another user, which may not read what the agent says.
    """
    page = _look()
    return page is None or now_ns() < page


def wait_until_round_holds(timeout: float) -> bool:
    """Wait until ``round_holds``, for at most ``timeout`` seconds. False at once when the round is over for good.

    Use it for an outage of the service: workers keep running meanwhile, and what they write can wait until it answers
    again.
    """
    deadline = time.monotonic() + timeout
    while True:
        page = _look()
        if page is None or now_ns() < page:
            return True
        if page == 0 or time.monotonic() >= deadline:
            return False
        time.sleep(min(_AGAIN_S, max(0.0, deadline - time.monotonic())))


def _look() -> int | None:
    """The time until which the round holds (``now_ns``), 0 when it is over; None if nobody says."""
    told = os.environ.get(ROUND_VARIABLE, "")
    if not told:
        return None
    path, _, start = told.rpartition(",")
    try:
        page = open_numbers(path, ROUND_SIZE)
    except FileNotFoundError:  # the agent has gone
        return 0
    until = page[UNTIL]
    return int(until) if page[START] == int(start) else 0
