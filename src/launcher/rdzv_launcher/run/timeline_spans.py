"""The events of a timeline as spans of OpenTelemetry: one for the agent, and below it one for each phase.

Where they go is said by OpenTelemetry's variables (OTEL_*), which its SDK reads. Without them there are none.
"""

from __future__ import annotations

import importlib.metadata
import logging
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from rdzv_plugins.errors import MissingDependency, RdzvError, UsageError
from rdzv_plugins.threads import OwnThread

if TYPE_CHECKING:
    from rdzv_launcher.run.timeline import Record

logger = logging.getLogger(__name__)

_EXPORTER, _PROTOCOL = "OTEL_TRACES_EXPORTER", "OTEL_EXPORTER_OTLP_PROTOCOL"
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_BY_PROTOCOL = {"http/protobuf": "otlp_proto_http", "grpc": "otlp_proto_grpc"}
_INSTALL = "pip install 'rdzv-plugins[otel]', or unset it. The timeline's file is written in any case."


def spans_wanted(environment: Mapping[str, str]) -> bool:
    """Whether somebody has said where spans go, and has not switched them off."""
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    names = _names(environment)
    return names != ["none"] and bool(names or any(environment.get(each) for each in _ENDPOINTS))


def make_provider(environment: Mapping[str, str]) -> Any:
    """Make a ``TracerProvider`` of this agent's own; the variables say what it exports to, samples and is called.

    Raises ``MissingDependency`` and ``UsageError``, which name the variable.
    """
    try:
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise MissingDependency(
            f"{_asking(environment)} asks for spans, and OpenTelemetry's SDK cannot be imported ({error})",
            remedy=_INSTALL,
        ) from None
    named = "service.name" in OTELResourceDetector().detect().attributes
    resource = Resource.create({} if named else {"service.name": "rdzv-run"})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)  # the agent does that itself
    for name in _names(environment) or ["otlp"]:
        provider.add_span_processor(BatchSpanProcessor(_exporter(name, environment)()))
    return provider


def _names(environment: Mapping[str, str]) -> list[str]:
    return [each.strip() for each in environment.get(_EXPORTER, "").split(",") if each.strip()]


def _asking(environment: Mapping[str, str]) -> str:
    """The variable that asks for spans."""
    return next(each for each in (_EXPORTER, *_ENDPOINTS) if environment.get(each))


def _exporter(name: str, environment: Mapping[str, str]) -> Any:
    """The class of an exporter, by its name in the variable."""
    entry = name
    if name == "otlp":
        protocol = environment.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or environment.get(_PROTOCOL)
        entry = _BY_PROTOCOL.get((protocol or "http/protobuf").strip(), "")
        if not entry:
            raise UsageError(f"{_PROTOCOL}={protocol} is no protocol", remedy=f"One of {', '.join(_BY_PROTOCOL)}.")
    found = importlib.metadata.entry_points(group="opentelemetry_traces_exporter", name=entry)
    if not found:
        raise MissingDependency(
            f"{_asking(environment)} asks for spans, and their exporter {entry!r} is not installed", remedy=_INSTALL
        )
    return next(iter(found)).load()


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
