"""Which path gets which answer: its status and its sentence. No sockets."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from msgspec import Struct

from rdzv_launcher.run.health.http import TEXT
from rdzv_launcher.run.health.pulse import Pulse
from rdzv_launcher.run.metrics.page import CONTENT_TYPE, MetricsPage
from rdzv_plugins.errors import MissingDependency

logger = logging.getLogger(__name__)

ALIVE, READY, METRICS = "/healthz", "/readyz", "/metrics"
_OK, _NOT_FOUND, _FAILED, _NOT_INSTALLED, _UNAVAILABLE = 200, 404, 500, 501, 503


class Answer(Struct, frozen=True):
    """An HTTP status, and a sentence for people, or content of the type ``kind``."""

    status: int
    text: str
    kind: str = TEXT


class Pages(Protocol):
    """The owner of the answers, as their server knows it."""

    def answer(self, path: str) -> Answer:
        """The answer to a request for ``path``. Any thread; raises nothing, and waits for nobody."""
        ...


class MetricsAlone:
    """The pages of a process whose health nobody asks for here."""

    def __init__(self, metrics: MetricsPage) -> None:
        self._metrics = metrics

    def answer(self, path: str) -> Answer:
        if path.partition("?")[0] == METRICS:
            return metrics_answer(self._metrics)
        return Answer(_NOT_FOUND, f"there is {METRICS}")


def metrics_answer(metrics: MetricsPage) -> Answer:
    """The metrics; a sentence if they are not available."""
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
        """Use these metrics from now on."""
        self._metrics = metrics

    def tell_by(self, readiness: Callable[[], tuple[bool, str]]) -> None:
        """From now on ``readiness`` says whether the workers work, and, in a sentence, what is going on. Any thread."""
        self._readiness = readiness

    def answer(self, path: str) -> Answer:
        """The answer to a request for ``path``."""
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
