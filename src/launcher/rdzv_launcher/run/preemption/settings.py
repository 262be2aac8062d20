"""What the user has set about notices, and whether the scheduler gives as much time."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Collection

from msgspec import Struct

from rdzv_launcher.run import signals
from rdzv_launcher.run.options import RunOptions
from rdzv_launcher.run.supervisor.supervisor_process import DEAF_TO
from rdzv_plugins.errors import UsageError
from rdzv_plugins.schedulers.facts import time_until_end, told_grace

logger = logging.getLogger(__name__)

_LEAST_S = 1.0


class NoticeSettings(Struct, frozen=True):
    """What the user has set about notices before preemption: ``--preempt-grace`` and what goes with it."""

    grace: float
    """The grace in seconds; 0: this node gives no notices, but hears those of other nodes."""
    signals: tuple[signal.Signals, ...]
    """The signals that count as a notice; none without a grace."""
    to_workers: signal.Signals | None
    """The signal that workers get when there is a notice."""

    @property
    def ignored(self) -> frozenset[signal.Signals]:
        """Signals that workers ignore until they handle them: a scheduler may send one to all of a job's processes."""
        told = {*self.signals, *([self.to_workers] if self.to_workers else [])}
        return frozenset(told - {signal.SIGTERM, signal.SIGINT, signal.SIGCHLD})


def read_notice(args: RunOptions, stopping: Collection[signal.Signals] = ()) -> NoticeSettings:
    """The settings; ``stopping`` are the signals of --signals-to-handle. Raises ``UsageError``."""
    if args.preempt_grace and signal.SIGALRM in stopping:
        raise UsageError(
            "--signals-to-handle: SIGALRM is reserved for --preempt-grace",
            remedy="Leave it out, or --preempt-grace.",
        )
    found = tuple(dict.fromkeys(signals.read(args.notice_signals or RunOptions.notice_signals, "--notice-signals")))
    for number in found:
        if number not in DEAF_TO:
            raise UsageError(
                f"--notice-signals: {number.name} cannot be used: schedulers send it to every process of a job, and it "
                "would kill those beside the agent",
                remedy=f"Use one of {', '.join(each.name for each in sorted(DEAF_TO))}.",
            )
    to_workers = None
    if args.worker_notice_signal:
        to_workers, *more = signals.read(args.worker_notice_signal, "--worker-notice-signal")
        if more:
            raise UsageError(f"--worker-notice-signal={args.worker_notice_signal} is not one signal")
    if 0 < args.preempt_grace < _LEAST_S:
        raise UsageError(f"--preempt-grace={args.preempt_grace:g} is less than a second")
    if args.preempt_grace == 0 and args.notice_signals != RunOptions.notice_signals:
        raise UsageError("--notice-signals needs --preempt-grace", remedy="Say how many seconds the scheduler gives.")
    return NoticeSettings(args.preempt_grace, found if args.preempt_grace else (), to_workers)


def warn_of_longer_grace(notice: NoticeSettings) -> None:
    """At the start: warn if the scheduler is known to give less time."""
    grace = notice.grace
    told = told_grace(os.environ, by_sigterm=signal.SIGTERM in notice.signals) if grace else None
    if told is not None and told.value < grace:
        logger.warning(
            "--preempt-grace=%g is longer than the scheduler allows (%s): everything will be killed before the workers "
            "have stopped",
            grace,
            told,
        )


def warn_of_near_end(grace: float) -> None:
    """At a notice: warn if the job's time ends before the grace does."""
    told = time_until_end(os.environ, time.time())
    if told is not None and told.value < grace:
        logger.warning(
            "--preempt-grace=%g is longer than the %.0f s until the job's time is up (%s)",
            grace,
            told.value,
            told.source,
        )
