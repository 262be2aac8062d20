"""Restarts that do not help: the same failure, at the same place, without progress in between. No I/O, no clock.

Each failed round leaves a note (``Spent``). All nodes read the same notes, in the order of the rounds, so all of them
come to the same conclusion, whichever node the failure was on.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Literal

import msgspec
from msgspec import Struct

from rdzv_launcher.run.agent.events import RestartAllowed, RestartRefused
from rdzv_launcher.run.workers.causes import read_traceback
from rdzv_launcher.run.workers.failures import describe, describe_exit
from rdzv_plugins.errors import CrashLoop, is_signal
from rdzv_plugins.interfaces import Failure, RendezvousHandler
from rdzv_plugins.plain_text import printable

logger = logging.getLogger(__name__)


Counts = Literal["code", "any", "off"]
"""Which failures end the job: those in the program's text, all, or none."""

TIMES = 3
"""This many failures in a row are a loop."""
PROGRESS_S = 600.0
"""Workers that ran for longer have made progress, as far as anybody can tell: they may have saved a checkpoint."""
_AT_ONCE = 2
"""This many restarts without progress happen without a delay."""
_LONGEST_DELAY_S = 60.0
_LONGEST_TEXT = 500


class Spent(Struct, frozen=True):
    """One failed round, as noted for all nodes."""

    what: str
    """The first failure over all nodes, in words that are the same when it happens again."""
    ran: float
    """Seconds from the start of the workers to their end."""
    of_the_text: bool = False
    """The failure is in the program's text: no restart fixes it."""

    @property
    def made_progress(self) -> bool:
        return self.ran >= PROGRESS_S


def spent(failure: Failure, ran: float) -> Spent:
    """The note of a round whose first failure over all nodes was ``failure``, ``ran`` seconds after its start.

    A failure is identified by exception and last frame. The ranks of a job often fail alike, and which of them fails
    first is chance; the rank is included only where there is no traceback.
    """
    found = read_traceback(failure.stderr) if failure.exit_code > 0 else None
    if found is not None and found.place:
        return Spent(f"{found.exception} at {found.place}", ran, found.is_of_the_text)
    if failure.hang:
        return Spent(f"rank {failure.global_rank} stood still", ran)
    return Spent(f"rank {failure.global_rank} ended with {describe_exit(failure.exit_code)}", ran)


def to_note(value: Spent) -> str:
    """The note as text that ``from_note`` can read."""
    return msgspec.json.encode(value).decode()


def from_note(text: str) -> Spent:
    """Read the note of any node. One that cannot be read counts as a failure unlike any other."""
    try:
        note = msgspec.json.decode(text, type=Spent)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return Spent("", PROGRESS_S)
    return msgspec.structs.replace(note, what=printable(note.what)[:_LONGEST_TEXT])


def in_a_row(history: Sequence[Spent]) -> int:
    """How many times in a row the last failure has happened, without progress in between; at least 1."""
    last, times = history[-1], 1
    while times < len(history) and not history[-times].made_progress and history[-times - 1].what == last.what:
        times += 1
    return times


def is_loop(history: Sequence[Spent], counts: Counts) -> bool:
    """Whether the last failure should end the job."""
    if counts == "off" or in_a_row(history) < TIMES:
        return False
    return counts == "any" or all(each.of_the_text for each in history[-TIMES:])


def delay_of(history: Sequence[Spent], first: float) -> float:
    """Seconds to wait before the restart after the last failure, whatever the failures were.

    There is no delay before the first two restarts without progress; then ``first``, twice that, and so on, up to a
    minute. If ``first`` is 0, there is never a delay.
    """
    tries = 0
    while tries < len(history) and not history[-tries - 1].made_progress:
        tries += 1
    doubled = min(tries - _AT_ONCE - 1, 32)
    return min(first * 2**doubled, max(first, _LONGEST_DELAY_S)) if doubled >= 0 else 0.0


# Whether failed workers are started again, beyond what one node knows: a budget of the job, crash loops, delays.
#
# The handler keeps the notes of all failed rounds. Where it keeps none (a plug-in's own), or cannot be asked now, this
# agent's notes have to do.


class RetryLimits(Struct, frozen=True):
    """What the user has set about restarts of the whole job."""

    job_restarts: int | None = None
    """The most restarts over all nodes; None: as many as the nodes have."""
    crash_loop: Counts = "code"
    restart_delay: float = 1.0
    """Seconds before the third restart without progress; each further one waits twice as long."""


class Retries:
    """Decides for one agent whether its workers are restarted. For one thread."""

    def __init__(self, limits: RetryLimits, handler: RendezvousHandler) -> None:
        self._limits, self._handler = limits, handler
        self._own: list[Spent] = []

    def decide(self, failure: Failure, ran: float) -> RestartAllowed | RestartRefused:
        """Decide what follows a round's first failure over all nodes, ``ran`` seconds after its start. May ask others.

        All that others notice is that the round is counted. Raises whatever ends the wait for them (a signal).
        """
        limits, history = self._limits, self._count(spent(failure, ran))
        times = in_a_row(history)
        if is_loop(history, limits.crash_loop):
            why = (
                f"This is a crash loop: {times} times in a row {history[-1].what}, without progress in between. "
                f"{CrashLoop.remedy_text}"
            )
            return RestartRefused(failure, describe(failure), why, CrashLoop.exit_code)
        if limits.job_restarts is not None and len(history) > limits.job_restarts:
            why = (
                f"The restarts of the job are used up: --rdzv-conf job_restarts={limits.job_restarts}, over all nodes."
            )
            return RestartRefused(failure, describe(failure), why)
        if times == TIMES and limits.crash_loop != "off":
            logger.warning(
                "%d times in a row %s, without progress in between: --rdzv-conf crash_loop=any would end the job now",
                times,
                history[-1].what,
            )
        return RestartAllowed(delay_of(history, limits.restart_delay))

    def _count(self, latest: Spent) -> list[Spent]:
        """The failed rounds, in order; this one is the last."""
        self._own.append(latest)
        try:
            notes = self._handler.count_restart(to_note(latest))
        except Exception as error:  # the service may have gone with the node that failed
            if is_signal(error):
                raise
            logger.warning("the restarts of the job cannot be counted now, only those of this node: %s", error)
            return self._own
        return [from_note(note) for note in notes] if notes else self._own
