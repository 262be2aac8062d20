"""Where spans go: OpenTelemetry's variables (OTEL_*) say so, and its SDK reads them. Without them there are none."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping
from typing import Any

from rdzv_plugins.errors import MissingDependency, UsageError

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
