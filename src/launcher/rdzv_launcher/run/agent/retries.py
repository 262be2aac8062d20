"""Whether failed workers are started again, beyond what one node knows: a budget of the job, crash loops, delays.

The handler keeps the notes of all failed rounds. Where it keeps none (a plug-in's own), or cannot be asked now, this
agent's notes have to do.
"""

from __future__ import annotations

import logging

from msgspec import Struct

from rdzv_launcher.run.agent import crash_loop
from rdzv_launcher.run.agent.crash_loop import Counts, Spent
from rdzv_launcher.run.agent.events import RestartAllowed, RestartRefused
from rdzv_launcher.run.summary import describe
from rdzv_plugins.errors import CrashLoop, is_signal
from rdzv_plugins.interfaces import Failure, RendezvousHandler

logger = logging.getLogger(__name__)


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
        limits, history = self._limits, self._count(crash_loop.spent(failure, ran))
        times = crash_loop.in_a_row(history)
        if crash_loop.is_loop(history, limits.crash_loop):
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
        if times == crash_loop.TIMES and limits.crash_loop != "off":
            logger.warning(
                "%d times in a row %s, without progress in between: --rdzv-conf crash_loop=any would end the job now",
                times,
                history[-1].what,
            )
        return RestartAllowed(crash_loop.delay_of(history, limits.restart_delay))

    def _count(self, latest: Spent) -> list[Spent]:
        """The failed rounds, in order; this one is the last."""
        self._own.append(latest)
        try:
            notes = self._handler.count_restart(crash_loop.to_note(latest))
        except Exception as error:  # the service may have gone with the node that failed
            if is_signal(error):
                raise
            logger.warning("the restarts of the job cannot be counted now, only those of this node: %s", error)
            return self._own
        return [crash_loop.from_note(note) for note in notes] if notes else self._own
