"""Requests that have to complete, and the outage while the service does not do them, which has one deadline.

Requests that the thread that finds them due (a watch's or a proxy's) cannot wait for are made in the background.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import TypeVar

from rdzv_plugins.coordination import Session
from rdzv_plugins.errors import Compacted, ConnectionLost, RdzvError
from rdzv_plugins.runtime import Runtime
from rdzv_plugins.timing import EVERY_S, growing

logger = logging.getLogger(__name__)

T = TypeVar("T")

LEAST_S = 1.0
"""The least that a request is given, however little of the outage is left: this process may have stood still."""
_LONGEST_S = 10.0
_SLACK_S = 0.1
_LEAST_UNTIL_S = 0.1  # the same for a request that is given up at a time
_QUIET_S = 1.0  # what is over within this many seconds is not worth a line
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 2.0


def request_timeout(session: Session) -> float:
    """Seconds to allow for one request: less than a session's life, so that a caller who insists learns of its end."""
    return min(session.ttl, _LONGEST_S)


def known_until(session: Session, unknown: float) -> float:
    """``Session.known_until``, or ``unknown`` of a session that cannot tell."""
    return float(getattr(session, "known_until", unknown))


class Outage:
    """Counts for how long the service has not done what this node needs, whatever is wrong. Thread-safe.

    It is silent, cannot be reached, refuses this node, takes no writes, or something else is there. The first to notice
    begins the count; others who notice go on with it, until the service does something that one of them needs.
    """

    def __init__(
        self,
        run_id: str,
        seconds: float,
        has_begun: Callable[[], bool],
        give_up: Callable[[Exception], object],
        tell: Callable[[bool], object],
        runtime: Runtime,
    ) -> None:
        """``give_up`` is called with the last error when there has been one for ``seconds``.

        ``tell`` is called with True when one has lasted for a second, and then with False when it is over.
        ``has_begun``: whether the job has had a round. Before that a refusal is not waited out.
        """
        self._runtime = runtime
        self._run_id, self._seconds, self._has_begun = run_id, seconds, has_begun
        self._give_up, self._tell = give_up, tell
        self._lock = self._runtime.Lock()
        self._since: float | None = None
        self._report_at = 0.0
        self._told = False

    @property
    def lasts(self) -> bool:
        return self._since is not None

    @property
    def left(self) -> float:
        """Seconds until this node gives up; all of them while there is no outage."""
        return max(0.0, self._ends_at - self._runtime.now())

    @property
    def _ends_at(self) -> float:
        since = self._since
        return (self._runtime.now() if since is None else since) + self._seconds

    def begin(self, since: float) -> None:
        """Note that the service has not done what it should since then (``Runtime.now``), or longer."""
        with self._lock:
            if self._since is None:
                self._report_at, self._told = max(since, self._runtime.now() - _QUIET_S) + _QUIET_S, False
            self._since = since if self._since is None else min(since, self._since)

    def over(self) -> None:
        """The service has done what was needed."""
        with self._lock:
            since, told, self._since, self._told = self._since, self._told, None, False
        if told and since is not None:
            self._tell(False)
            logger.warning(
                "run %s: the rendezvous works again, after %.0f s",
                self._run_id,
                self._runtime.now() - since,
            )

    def ended_by(self, error: Exception, asked: float, timeout: float) -> bool:
        """Note that what was asked at ``asked`` was not done; True if it has gone on for too long.

        It was given ``timeout`` seconds: if far more have passed, this process has stood still, and asks once more.
        """
        self.begin(asked)
        in_time = self._runtime.now() - asked <= timeout + LEAST_S or asked >= self._ends_at - _SLACK_S
        if in_time and self.left < _SLACK_S:
            return True
        self._report(error)
        return False

    def _report(self, error: Exception) -> None:
        with self._lock:
            if self._runtime.now() < self._report_at or self.left < _SLACK_S:
                return
            first, self._report_at, self._told = not self._told, self._runtime.now() + EVERY_S, True
        if first:
            self._tell(True)
        then = f" {error.remedy}" if isinstance(error, RdzvError) else ""
        logger.warning("run %s: %s; waiting for up to %.0f s more.%s", self._run_id, error, self.left, then)

    def retry_until_lost(self, session: Session, request: Callable[[float], T], until: float = math.inf) -> T:
        """Repeat a request, which gets its time-out, until it is done: repeating one that took effect changes nothing.

        Raises ``ConnectionLost`` at the latest when the session ends or this node gives up; ``Compacted``; a refusal if
        the job has not begun; and the last error if it was not done ``until`` then (``clock.now``).
        """
        first, pauses = self._runtime.now(), growing(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
        while True:
            asked, most = self._runtime.now(), request_timeout(session)
            if until < math.inf:  # it is small: an outage is noticed the sooner
                most = min(most / 2, max(_LEAST_UNTIL_S, until - asked))
            timeout = min(most, max(LEAST_S, self.left))
            try:
                answer = request(timeout)
            except (ConnectionLost, Compacted):
                raise
            except (TimeoutError, RdzvError) as error:
                refused = isinstance(error, RdzvError)
                if refused and not self._has_begun():
                    raise
                self.begin(first)
                if self.ended_by(error, asked, timeout):
                    self._give_up(error)
                    raise ConnectionLost(str(error)) from error
                if self._runtime.now() >= until - _SLACK_S:
                    raise
                if refused:
                    self._runtime.sleep(min(next(pauses), max(0.0, until - self._runtime.now())))
            else:
                self.over()
                return answer


class BackgroundTasks:
    """Runs tasks on threads that end when there is nothing to do, those of one kind one after the other. Thread-safe.

    Of those that have to wait for one of their kind, only the newest is done: a service that is slow to answer is not
    asked the more often the more there is to hear. An outage ends a task; errors are logged.
    """

    def __init__(
        self, run_id: str, runtime: Runtime, *, name: str = "rdzv-elastic", threads: int = 8, most: int = 64
    ) -> None:
        """At most so many ``threads`` run; at most so many tasks wait, of which the oldest make room."""
        self._run_id, self._runtime = run_id, runtime
        self._name, self._threads, self._most = name, threads, most
        self._lock = self._runtime.Lock()
        self._waiting: dict[str, Callable[[], object]] = {}  # by kind
        self._running: set[str] = set()

    def __call__(self, kind: str, task: Callable[[], object]) -> None:
        with self._lock:
            self._waiting.pop(kind, None)
            self._waiting[kind] = task
            if len(self._waiting) > self._most:
                self._waiting.pop(next(iter(self._waiting)))
            due = self._next() if len(self._running) < self._threads else None
        if due is not None:
            self._runtime.Thread(target=self._run, name=self._name, args=due).start()

    def _next(self) -> tuple[str, Callable[[], object]] | None:
        """Take the oldest task that need not wait for one of its kind. The caller holds the lock."""
        kind = next((each for each in self._waiting if each not in self._running), None)
        if kind is None:
            return None
        self._running.add(kind)
        return kind, self._waiting.pop(kind)

    def _run(self, kind: str, task: Callable[[], object]) -> None:
        due: tuple[str, Callable[[], object]] | None = kind, task
        while due is not None:
            kind, task = due
            try:
                task()
            except (ConnectionLost, TimeoutError) as error:
                logger.debug("in the background: %s", error)
            except RdzvError as error:
                logger.warning("run %s: %s", self._run_id, error)
            except Exception:  # what follows must still be done
                logger.exception("run %s: a task in the background has failed; please report it", self._run_id)
            with self._lock:
                self._running.discard(kind)
                due = self._next()
