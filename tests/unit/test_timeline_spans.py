"""The events of a timeline as spans, in the memory of this process; and where spans cannot go, or nobody wants them."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Mapping
from typing import Any
from unittest.mock import Mock

import pytest
from kits.unit.timelines import Node, together

from rdzv_launcher.run.timeline import Spans, make_provider, spans_wanted
from rdzv_plugins.errors import MissingDependency, UsageError

pytest.importorskip("opentelemetry.sdk", reason="the extra otel")

from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

HERE = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://here"}


def spans_of(processor: SpanProcessor, variables: Mapping[str, str]) -> Spans:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(processor)
    return Spans(variables, lambda _: provider)


def test_a_span_for_the_agent_and_one_for_each_phase() -> None:
    node = Node("a", wall=1_700_000_000.0, mono=100.0)
    node.open(0.0)
    together((node,), 1, 1.0)
    node.note(5.0, "failed", "rank 0 ended with exit code 3", exit_code=3)
    node.note(5.5, "stopping")
    node.note(6.0, "left", outcome="failed")
    node.note(6.25, "ended", exit_code=3)
    exporter = InMemorySpanExporter()
    trace, parent = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
    spans = spans_of(SimpleSpanProcessor(exporter), {"TRACEPARENT": f"00-{trace}-{parent}-01"})
    for record in node.records:
        spans.take(record)
    spans.close()
    found = {each.name: each for each in exporter.get_finished_spans()}
    names = "opening joining connecting completing starting working ending stopping leaving agent"
    assert list(found) == names.split()
    agent = found["agent"]
    parents = {each.parent.span_id for each in found.values() if each.parent and each is not agent}
    assert agent.parent is not None
    assert (agent.context.trace_id, agent.parent.span_id) == (int(trace, 16), int(parent, 16))
    assert parents == {agent.context.span_id}
    assert (agent.start_time, agent.end_time) == pytest.approx((1_700_000_000e9, 1_700_000_006.25e9), abs=1000)
    working, ending = found["working"], found["ending"]
    assert working.end_time == ending.start_time == pytest.approx(1_700_000_005e9, abs=1000)
    facts = {"run": "job", "host": "a", "agent": "agent-a", "node": 0, "round": 1}
    assert dict(working.attributes or {}) == {f"rdzv.{name}": value for name, value in facts.items()}
    assert (ending.status.status_code, ending.status.description) == (StatusCode.ERROR, "rank 0 ended with exit code 3")
    [event] = [each for each in ending.events if each.attributes]
    assert (event.name, event.attributes["rdzv.exit_code"]) == ("failed", 3)  # type: ignore[index]


OPENED = Node("a")
OPENED.open(0.0)


def test_a_collector_that_does_not_answer_does_not_hold_up_the_end(caplog: pytest.LogCaptureFixture) -> None:
    entered, free = threading.Event(), threading.Event()
    stuck = Mock(export=lambda spans: (entered.set(), free.wait(60)))
    spans = spans_of(BatchSpanProcessor(stuck), {})
    with caplog.at_level(logging.WARNING):
        spans.take(OPENED.records[0])
        spans.close()  # returns, or this test does not
    assert "the last spans of the timeline may be lost" in caplog.text
    assert entered.wait(60)
    free.set()


def test_spans_are_made_only_where_it_is_said_where_they_go() -> None:
    wanted: list[tuple[Mapping[str, str], bool]] = [
        ({"OTEL_SERVICE_NAME": "mine"}, False),
        ({"OTEL_TRACES_EXPORTER": "none"}, False),
        ({"OTEL_TRACES_EXPORTER": "console"}, True),
        (HERE, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://here"}, True),
        (HERE | {"OTEL_SDK_DISABLED": "True"}, False),
        (HERE | {"OTEL_TRACES_EXPORTER": "none"}, False),
    ]
    assert [(each, spans_wanted(each)) for each, _ in wanted] == wanted


@pytest.mark.parametrize(
    ("variables", "kind", "named"),
    [
        ({"OTEL_TRACES_EXPORTER": "zipkin"}, MissingDependency, "'zipkin'"),
        (HERE | {"OTEL_EXPORTER_OTLP_PROTOCOL": "smoke"}, UsageError, "OTEL_EXPORTER_OTLP_PROTOCOL=smoke"),
        ({"OTEL_TRACES_EXPORTER": "otlp", "-": "no SDK"}, MissingDependency, "OTEL_TRACES_EXPORTER asks for spans"),
    ],
)
def test_what_cannot_be_is_one_sentence(
    variables: Mapping[str, str], kind: type, named: str, caplog: pytest.LogCaptureFixture, monkeypatch: Any
) -> None:
    if "-" in variables:
        monkeypatch.setitem(sys.modules, "opentelemetry.sdk.resources", None)
    with pytest.raises(kind, match=named):
        make_provider(variables)
    spans = Spans(variables)
    with caplog.at_level(logging.WARNING):
        spans.take(OPENED.records[0])
        spans.take(OPENED.records[0])
        spans.close()
    [said] = caplog.messages
    assert named in said
