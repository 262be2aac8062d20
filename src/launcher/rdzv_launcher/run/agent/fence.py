"""The fence around this node's workers: none acts for longer than the node's place in its round is known to hold.

The session decides. While it lives, or nobody can tell that it has ended, workers run. When it has ended, others may
have begun a new round: the workers are killed, before anybody has to ask. When this process has stood still for so long
that its session may have ended, they are paused first, and killed or continued once that is known. The supervisor does
what this process cannot: it kills the workers when the agent has ended, and pauses them while the agent stands still.
"""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from rdzv_launcher.run.supervisor import descendants
from rdzv_launcher.run.supervisor.descendants import Processes, ProcessTag
from rdzv_plugins.interfaces import Holding
from rdzv_plugins.runtime import Runtime, Signals
from rdzv_plugins.shared_numbers import (
    BEAT,
    ENDED,
    IDLE,
    NEVER,
    PAUSE_AT,
    PAUSED,
    RUNNING,
    START,
    STATE,
    STILL,
    UNTIL,
    RoundPage,
)

if TYPE_CHECKING:
    from rdzv_plugins.runtime import OwnThread

logger = logging.getLogger(__name__)

_LOOKS_PER_TTL = 10
_LONGEST_LOOK_S, _SHORTEST_LOOK_S = 0.5, 0.05
_STILL = 0.5
"""A fraction of the time to live, in which keep-alives are sent three times: a shorter standstill loses no session."""
_ASK_S = 1.0
_AGAIN_S = 0.05
_OTHERS_S = 1.0
"""How long processes that the agent itself has started may take to end when the agent ends."""
_END_S = 5.0
"""Seconds to wait for killed processes: longer than the kernel takes to end them."""


class Fence:
    """Keeps workers from working in a round that may be over. One per agent.

    The agent's main thread calls it. A separate thread looks a few times in a session's time to live, and at once when
    there is news. It sends nothing: sessions are kept alive by their own means. ``on_kill`` is called before workers
    are killed: their ends are not failures.
    """

    def __init__(
        self,
        holding: Holding | None,
        page: RoundPage,
        marked: ProcessTag,
        signal_below: Callable[[int], None],
        on_kill: Callable[[], None],
        runtime: Runtime,
        processes: Processes = descendants,
    ) -> None:
        """``holding`` None: nobody can say whether the round holds, so it does until the agent stops the workers.

        The supervisor has the same ``page``. ``marked`` is whatever else this process has started. ``signal_below``
        makes the supervisor send a signal to everything below it, without waiting.
        """
        self._holding, self._on_kill = holding, on_kill
        self._signal_below = signal_below
        self._runtime, self._processes = runtime, processes
        self._marked = marked
        self._page = page
        self._workers: dict[int, str] = {}
        """For each worker of the newest start, when its process was started, by pid."""
        self._ttl = math.inf if holding is None else holding.ttl
        self._look_s = min(max(self._ttl / _LOOKS_PER_TTL, _SHORTEST_LOOK_S), _LONGEST_LOOK_S)
        self._page[STILL] = NEVER if math.isinf(self._ttl) else int(self._ttl * _STILL * 1e9)
        self._lock = runtime.Lock()
        self._closing = runtime.Event()
        self._thread: OwnThread | None = None
        if holding is not None:
            holding.on_news(self._hear)

    @property
    def environment(self) -> dict[str, str]:
        """Variables for the workers that are being started."""
        return self._page.environment

    def starting(self) -> None:
        """Begin to watch: workers are about to be started."""
        with self._lock:
            if self._thread is None:
                self._thread = self._runtime.Thread(target=self._run, name="rdzv-fence", on_error=self._unwatched)
                self._thread.start()
            self._page[UNTIL] = 0
            self._page[START] += 1
            self._publish()
            self._page[STATE] = RUNNING

    def started(self, pids: Iterable[int]) -> None:
        """Note the pids of the workers that have been started."""
        with self._lock:
            found = map(self._processes.look, pids)
            self._workers = {worker.pid: worker.started for worker in found if worker is not None}

    def stopping(self) -> bool:
        """The workers are about to be stopped: from now on their round does not hold.

        Returns False if they may not act any more, not even to end: then they have been killed when this returns.
        """
        self._page[UNTIL] = 0
        with self._lock:
            state = self._page[STATE]
            if state == RUNNING and self._holding is not None and not self._holding.sure():
                state = self._page[STATE] = ENDED
            if state in (PAUSED, ENDED):
                self._kill()
                return False
            return True

    def stopped(self) -> None:
        """The workers have ended, and so has what was left in their sessions."""
        with self._lock:
            self._page[STATE] = IDLE
            self._workers = {}

    def close(self, spared: Iterable[int] = ()) -> list[int]:
        """The supervisor has ended: end whatever else this process has started. May be called again.

        The sessions of the processes ``spared`` are left alone. Returns the pids of processes that do not end.
        """
        with self._lock:
            if self._closing.is_set():
                return []
            self._closing.set()  # the thread does nothing from now on
        if self._holding is not None:
            self._holding.on_news(None)
        self._page[UNTIL] = self._page[STATE] = 0
        # multiprocessing's own helper ignores SIGTERM, and ends when this process does
        tracker = getattr(sys.modules.get("multiprocessing.resource_tracker"), "_resource_tracker", None)
        self._marked.spare(getattr(tracker, "_pid", None) or 0)
        self._marked.spare_sessions(found.session for pid in spared if (found := self._processes.look(pid)) is not None)
        left: list[int] = []
        if self._marked.signal(Signals.SIGTERM):
            self._marked.signal(Signals.SIGCONT)
            self._wait_gone(self._runtime.monotonic() + _OTHERS_S)
            left = self._end_all()
        return left

    def _end_all(self) -> list[int]:
        deadline = self._runtime.monotonic() + _END_S
        while (left := self._marked.signal(Signals.SIGKILL)) and self._runtime.monotonic() < deadline:
            self._runtime.sleep(_AGAIN_S)
        return left

    def _wait_gone(self, deadline: float) -> None:
        while self._marked.signal(0) and self._runtime.monotonic() < deadline:
            self._runtime.sleep(_AGAIN_S)

    def _ended(self) -> bool:
        return self._holding is not None and self._holding.ended()

    def _hear(self) -> None:
        """Note whether the round is over. Called on a thread of the session, which must not be held up."""
        if self._holding is not None and self._holding.until() == 0:
            self._page[UNTIL] = 0

    def _run(self) -> None:
        while not self._closing.is_set():
            paused = self._page[STATE] == PAUSED
            pause = _AGAIN_S if paused else self._look_s
            if self._holding is None:
                self._closing.wait(pause)
            else:
                self._holding.wait_for_news(pause)
            try:
                with self._lock:
                    if not self._closing.is_set():
                        self._look()
            except Exception:  # it goes on looking
                logger.exception("error in the fence around the workers")

    def _unwatched(self, error: Exception) -> None:
        """Nobody looks any more: no worker may act. The next start begins to look again."""
        with self._lock:
            self._thread = None
            if self._page[STATE] in (RUNNING, PAUSED):
                self._page[UNTIL], self._page[STATE] = 0, ENDED
                self._kill()

    def _look(self) -> None:
        """Check once whether the agent stood still or the session has ended. The caller holds the lock."""
        page, present = self._page, self._runtime.now_ns()
        stood = present - page[BEAT]
        if page[STATE] == RUNNING and present >= page[PAUSE_AT] and stood >= page[STILL]:
            self._pause(stood / 1e9)
        self._page[BEAT] = self._runtime.now_ns()
        if page[STATE] in (RUNNING, PAUSED) and self._ended():
            logger.warning(
                "this node's session has ended, so its round may be over: killing its workers (this uses up no restart)"
            )
            page[UNTIL] = 0
            page[STATE] = ENDED
        if page[STATE] == ENDED:
            self._kill()
        elif page[STATE] == RUNNING:
            self._publish()
        elif page[STATE] == PAUSED:
            self._resume_if_alive()

    def _pause(self, stood: float) -> None:
        # first the state, then the beat: the supervisor pauses them, too, and must know that it is not to continue them
        self._page[STATE] = PAUSED
        self._signal(Signals.SIGSTOP)
        logger.warning(
            "this process stood still for %.1f s; pausing the workers of this node until it is known whether its "
            "session is still alive",
            stood,
        )

    def _resume_if_alive(self) -> None:
        assert self._holding is not None
        until = self._holding.until()
        if until == math.inf and not self._holding.confirm(_ASK_S):
            return
        if 0 < until <= self._runtime.now():
            return  # the service has not answered yet
        if until == 0:  # others may have begun another round while this process stood still
            self._page[STATE] = ENDED
            self._kill()
            return
        self._publish()
        self._page[STATE] = RUNNING
        self._signal(Signals.SIGCONT)
        logger.warning("this node's session is alive: resuming its workers")

    def _kill(self) -> None:
        self._on_kill()
        self._signal(Signals.SIGKILL)

    def _signal(self, number: int) -> None:
        """Signal the workers at once, whatever the supervisor does, and through it what they have started."""
        for pid, started in self._workers.items():
            process = self._processes.look(pid)
            if process is not None and process.started == started:
                try:
                    self._runtime.killpg(pid, number)
                except OSError:  # it has ended
                    continue
        self._signal_below(number)

    def _publish(self) -> None:
        """Publish how long the round holds. A session that cannot say is trusted for half its time to live."""
        until = math.inf if self._holding is None else self._holding.until()
        page = self._page
        page[UNTIL] = NEVER if until == math.inf else int(until * 1e9)
        page[BEAT] = self._runtime.now_ns()
        if math.isinf(self._ttl):
            page[PAUSE_AT] = NEVER
        elif until == math.inf:
            page[PAUSE_AT] = page[BEAT] + page[STILL]
        elif until > 0:
            page[PAUSE_AT] = page[UNTIL]
