"""Looks at the workers of one node: at signs of life every time, at their places only while a hang is suspected."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable

from rdzv_launcher.run.hangs import samples
from rdzv_launcher.run.hangs.place import Place
from rdzv_launcher.run.hangs.signs import below_s, read_signs
from rdzv_launcher.run.hangs.standstill import Standing, Standstill
from rdzv_launcher.run.hangs.verdict import SUSPECTED, NodeStanding
from rdzv_launcher.run.stacks import processes, reading
from rdzv_launcher.run.stacks.node import NodeStacks
from rdzv_launcher.run.stacks.workers import Worker
from rdzv_plugins.linux.children import children_now

logger = logging.getLogger(__name__)

_SAMPLE_S, _NATIVE_S = 5.0, 15.0
"""Time limits for one sample, and for one with native frames."""
_CREDIT, _LEAST_CREDIT_S = 1 / 8, 3.0
"""The part of the time-out that one look may account for: a watch that is late stood still itself, with the workers."""
_UNREAD = 5
_SHARE = 1000.0
"""Samples without a suspicion may cost a thousandth of a processor."""
_COST_S = 0.1
"""The processor time that one sample takes, including the start of py-spy."""


class NodeWatch:
    """Watches this node's workers for progress. One per agent. ``look`` is for one thread; the rest is for any."""

    def __init__(
        self, timeout: float, told: Callable[[int], int], stacks: NodeStacks, say: Callable[[str], None]
    ) -> None:
        """``timeout`` is in seconds. ``told`` returns, by global rank, a number that changes when a script reports
        progress, and is 0 as long as it never has. ``say`` shows people a message, once.
        """
        self._timeout, self._told, self._stacks, self._say = timeout, told, stacks, say
        self._generation = 0
        self._watched: dict[int, Standstill] = {}
        self._suspected_until = 0.0
        self._canary_at = 0.0
        self._canary: int | None = None
        self._unread = 0
        """The number of samples in a row that could not be taken."""
        self.standing = NodeStanding(-1, works=False, watches=True, workers={})
        """How its workers stand, as of the last look."""

    @property
    def longest_s(self) -> float:
        """The longest time for which a worker has stood still."""
        return max((each.seconds for each in self.standing.workers.values() if each.is_still), default=0.0)

    def suspect(self) -> None:
        """A hang is suspected: for the time-out from now on, workers that use a processor are sampled."""
        self._suspected_until = time.monotonic() + self._timeout

    def look(self, place: Place) -> None:
        """Look at all workers."""
        now = time.monotonic()
        if place.generation != self._generation:
            self._generation, self._watched, self._suspected_until = place.generation, {}, 0.0
            self._canary, self._canary_at = None, now + self._canary_pause
        pids_of = functools.cache(children_now)  # some kernels make it read all processes: once, where it matters
        found = {each.rank: self._look_at(each, now, pids_of) for each in place.workers} if place.works else {}
        self.standing = NodeStanding(place.node_rank, place.works, True, found)
        if now >= self._canary_at and place.works:
            self._canary_at = now + self._canary_pause
            self._look_at_canary(place.workers)

    def _look_at(self, worker: Worker, now: float, pids_of: Callable[[], Callable[[int], list[int]]]) -> Standing:
        signs = read_signs(worker.pid, self._stacks.own)
        watched = self._watched.get(worker.rank)
        if signs is None or (watched is not None and watched.born != signs.born):
            return Standing("done")
        if watched is None:
            self._watched[worker.rank] = Standstill(signs, max(self._timeout * _CREDIT, _LEAST_CREDIT_S))
            return Standing("moves")
        late = watched.quiet_s >= self._timeout * SUSPECTED / 2
        watched.look(signs, below_s(worker.pid, pids_of()) if late else None)
        watched.tell(self._told(worker.rank))
        if now < self._suspected_until and not watched.standing().is_quiet:
            self._sample(worker, watched)
        return watched.standing()

    def _sample(self, worker: Worker, watched: Standstill) -> None:
        with self._stacks.debugging:
            process = processes.look(worker.pid)
            if process is None or process.stands_still:
                return
            try:
                watched.sample(samples.take(process, time.monotonic(), timeout=_SAMPLE_S))
                self._unread = 0
                if watched.wants_native:
                    watched.native(samples.below_python(process, timeout=_NATIVE_S))
            except reading.NoStacks as error:  # the worker then counts as making progress
                self._cannot_sample(worker, error)

    @property
    def _canary_pause(self) -> float:
        return max(self._timeout / 4, _COST_S * _SHARE)

    def _look_at_canary(self, workers: tuple[Worker, ...]) -> None:
        """Sample one worker of the node now and then: where all ranks spin or loop, none of them waits."""
        busy = [each for each in workers if self.standing.workers[each.rank].kind == "moves"]
        if len(busy) < len(workers) or not busy:
            return
        with self._stacks.debugging:
            process = processes.look(busy[0].pid)
            if process is None or process.stands_still:
                return
            try:
                seen = samples.take(process, time.monotonic(), timeout=_SAMPLE_S).print
            except reading.NoStacks as error:
                self._cannot_sample(busy[0], error)
                return
        if seen == self._canary:
            self.suspect()
        self._canary = seen

    def _cannot_sample(self, worker: Worker, error: reading.NoStacks) -> None:
        logger.debug("worker %d (pid %d) cannot be sampled: %s", worker.local_rank, worker.pid, error)
        self._unread += 1  # a process that is just starting or ending cannot be read, either
        if self._unread == _UNREAD and reading.py_spy() is not None:
            self._say(
                "--hang-timeout: py-spy cannot read the workers, and as long as it cannot, a rank in an endless loop "
                f"is taken for one that computes: {error}"
            )
