"""How this agent is, for those who watch processes (kubelet, say): whether it lives, and whether its workers work.

Which path gets which answer, from the signs of life of the main thread and the stage of the agent. No sockets.
"""

from __future__ import annotations

import logging
import math
import sys
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec import Struct

from rdzv_launcher.run.agent.decisions import Stage
from rdzv_launcher.run.workers.worker_group import WorkerGroup
from rdzv_plugins.errors import MissingDependency
from rdzv_plugins.runtime import SYSTEM, Runtime

if TYPE_CHECKING:
    from rdzv_launcher.run.metrics import MetricsPage

logger = logging.getLogger(__name__)


class Pulse:
    """Made by the thread that beats; any thread may read it. Neither reading nor writing takes a lock."""

    def __init__(self, runtime: Runtime = SYSTEM) -> None:
        self._monotonic, self._thread = runtime.monotonic, runtime.get_ident()
        self._back_at = math.inf

    def beat(self, within: float | None) -> None:
        """The thread is alive, and will be back ``within`` seconds; None: it waits for others, however long."""
        self._back_at = math.inf if within is None else self._monotonic() + within

    def overdue(self) -> float:
        """For how many seconds the thread has been overdue; 0 or less: it is not due yet."""
        return self._monotonic() - self._back_at

    def place(self) -> str:
        """Where the thread is now, as ``/site/plugin.py:12 (rdzv_worker_env)``; empty if it has ended."""
        frame = sys._current_frames().get(self._thread)
        if frame is None:
            return ""
        last = traceback.extract_stack(frame, limit=1)[-1]
        return f"{last.filename}:{last.lineno} ({last.name})"


_SAYS: dict[Stage, str] = {
    "stopping": "the workers of this node are being stopped",
    "asking": "the workers of this node have failed: the others are asked whether a node was lost",
    "counting": "the workers of this node have failed: whether there is a restart for the job is being asked",
    "delaying": "the workers of this node have failed, and are about to be restarted",
    "finding": "the workers of this node have failed, and no restart is left",
    "ended": "this node is about to end",
}


def readiness(stage: Stage, group: WorkerGroup | None, waits_for: str) -> tuple[bool, str]:
    """True if they work in a complete round, or have finished. ``waits_for``: what the rendezvous says of its wait."""
    if stage == "joining":
        return False, f"waits for other nodes: {waits_for}" if waits_for else "waits for other nodes"
    if stage in _SAYS or group is None:
        return False, _SAYS.get(stage, "this node has no workers: the job goes on, or is done, without it")
    where = f"node {group.group_rank} of {group.group_world_size}, workers: {group.local_world_size}"
    if stage == "working":
        return True, f"works: {where}"
    return True, f"done: {where}; waits for the others"


TEXT = "text/plain; charset=utf-8"
ALIVE, READY, METRICS = "/healthz", "/readyz", "/metrics"
_OK, _NOT_FOUND, _FAILED, _NOT_INSTALLED, _UNAVAILABLE = 200, 404, 500, 501, 503


class Answer(Struct, frozen=True):
    """An HTTP status, and a sentence for people, or content of the type ``kind``."""

    status: int
    text: str
    kind: str = TEXT


def metrics_alone(metrics: MetricsPage) -> Callable[[str], Answer]:
    """The answers of a process whose health nobody asks for here, by the path that is requested."""
    return lambda path: (
        metrics_answer(metrics) if path.partition("?")[0] == METRICS else Answer(_NOT_FOUND, f"there is {METRICS}")
    )


def metrics_answer(metrics: MetricsPage) -> Answer:
    """The metrics; a sentence if they are not available."""
    from rdzv_launcher.run.metrics import CONTENT_TYPE  # most launches have none

    try:
        return Answer(_OK, metrics.text(), CONTENT_TYPE)
    except MissingDependency as error:
        return Answer(_NOT_INSTALLED, f"{error}. {error.remedy}")
    except Exception as error:
        logger.debug("the metrics cannot be told", exc_info=True)
        return Answer(_FAILED, f"the metrics cannot be told: {type(error).__name__}: {error}")


class Health:
    """The health of one agent. Any thread may ask it."""

    def __init__(self, pulse: Pulse, patience: float) -> None:
        """``patience``: by how many seconds the main thread may be later than it has said."""
        self._pulse, self._patience = pulse, patience
        self._readiness: Callable[[], tuple[bool, str]] = lambda: (False, "this node is about to join the others")
        self._metrics: MetricsPage | None = None

    def measure_by(self, metrics: MetricsPage) -> None:
        self._metrics = metrics

    def tell_by(self, readiness: Callable[[], tuple[bool, str]]) -> None:
        """From now on ``readiness`` says whether the workers work, and, in a sentence, what is going on. Any thread."""
        self._readiness = readiness

    def answer(self, path: str) -> Answer:
        path = path.partition("?")[0]
        if path == ALIVE:
            return self._alive()
        if path == READY:
            ready, text = self._state()
            return Answer(_OK if ready else _UNAVAILABLE, text)
        if path == METRICS:
            if self._metrics is None:
                return Answer(_UNAVAILABLE, "there are no metrics before this node begins to join the others")
            return metrics_answer(self._metrics)
        return Answer(_NOT_FOUND, f"there are {ALIVE}, {READY} and {METRICS}")

    def _alive(self) -> Answer:
        overdue = self._pulse.overdue()
        if overdue > self._patience:
            place = self._pulse.place()
            where = f", at {place}" if place else ""
            return Answer(_UNAVAILABLE, f"the agent's main thread has stood still for {overdue:.0f} s{where}")
        return Answer(_OK, f"alive: {self._state()[1]}")

    def _state(self) -> tuple[bool, str]:
        try:
            return self._readiness()
        except Exception as error:  # from a plug-in, which is asked what it waits for: the agent lives nevertheless
            logger.debug("the state of this agent cannot be told", exc_info=True)
            return False, f"what this agent waits for cannot be told: {type(error).__name__}: {error}"
