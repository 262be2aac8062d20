"""The events of a timeline as spans of OpenTelemetry: one for the agent, and below it one for each phase."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from typing import Any

from rdzv_launcher.run.timeline.record import Record
from rdzv_launcher.run.timeline.span_export import make_provider
from rdzv_plugins.errors import RdzvError
from rdzv_plugins.threads import OwnThread

logger = logging.getLogger(__name__)

_BAD = frozenset({"failed", "hung", "lost"})
_LAST_S = 1.0
_PARENT = {"traceparent": "TRACEPARENT", "tracestate": "TRACESTATE"}


class Spans:
    """A ``Sink``. OpenTelemetry is imported with the first event, on the thread that delivers it.

    A span's times start from the wall clock at the first event, and advance by the monotonic clock. If the variable
    TRACEPARENT names a span (W3C Trace Context), that is the parent of the agent's span.
    """

    def __init__(
        self,
        environment: Mapping[str, str] = os.environ,
        make: Callable[[Mapping[str, str]], Any] = make_provider,
    ) -> None:
        """``make`` makes the ``TracerProvider``, or raises an ``RdzvError``, which is reported once."""
        self._environment, self._make = environment, make
        self._provider: Any = None
        self._tracer: Any = None
        self._agent: Any = None
        self._phase: Any = None
        self._name = ""
        self._base = 0.0
        self._given_up = False
        self._last = 0

    def take(self, record: Record) -> None:
        """Take one event: of a new phase, or within one."""
        if self._given_up:
            return
        if self._provider is None:
            self._begin(record)
        if self._agent is None:
            return
        at = self._last = int((self._base + record.mono) * 1e9)
        if record.phase != self._name:
            self._end_phase(at)
            self._name = record.phase
            if record.phase != "ended":
                self._phase = self._span(record.phase, at, self._agent, _attributes(record))
        span = self._agent if self._phase is None else self._phase
        facts = {"cause": record.cause, **record.facts} if record.cause else record.facts
        span.add_event(record.event, _flat(facts), at)
        if record.event in _BAD:
            self._note_bad(span, record)

    def close(self) -> None:
        """End all spans, and export what is still pending, for as long as an agent's end may wait for a collector."""
        if self._agent is not None:
            self._end_phase(self._last)
            self._agent.end(self._last)
            self._agent = None
            ending = OwnThread(target=self._provider.shutdown, name="rdzv-spans")
            ending.start()
            ending.join(_LAST_S)
            if ending.is_alive():
                logger.warning("the last spans of the timeline may be lost: nobody took them within %g s", _LAST_S)

    def _begin(self, record: Record) -> None:
        try:
            self._provider = self._make(self._environment)
        except Exception as error:
            self._given_up = True
            remedy = f" {error.remedy}" if isinstance(error, RdzvError) and error.remedy else ""
            logger.warning("there are no spans of the timeline: %s.%s", str(error).rstrip("."), remedy)
            return
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._base = record.wall - record.mono
        self._tracer = self._provider.get_tracer("rdzv-run")
        carrier = {name: self._environment[each] for name, each in _PARENT.items() if each in self._environment}
        context = TraceContextTextMapPropagator().extract(carrier)
        start = int(record.wall * 1e9)
        self._agent = self._tracer.start_span("agent", context, attributes=_attributes(record), start_time=start)

    def _span(self, name: str, at: int, parent: Any, attributes: Mapping[str, Any]) -> Any:
        from opentelemetry.trace import set_span_in_context

        return self._tracer.start_span(name, set_span_in_context(parent), attributes=attributes, start_time=at)

    def _note_bad(self, span: Any, record: Record) -> None:
        from opentelemetry.trace import Status, StatusCode

        span.set_status(Status(StatusCode.ERROR, record.cause))

    def _end_phase(self, at: int) -> None:
        if self._phase is not None:
            self._phase.end(at)
            self._phase = None


def _attributes(record: Record) -> dict[str, Any]:
    named = {"run": record.run, "host": record.host, "agent": record.agent, "node": record.node, "round": record.round}
    return {f"rdzv.{name}": value for name, value in named.items() if value is not None}


def _flat(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Turn facts into attributes: numbers and texts."""
    return {
        f"rdzv.{name}": value if isinstance(value, bool | int | float | str) else str(value)
        for name, value in facts.items()
        if value is not None
    }
