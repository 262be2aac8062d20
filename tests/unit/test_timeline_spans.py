"""The events of a timeline as spans, in the memory of this process; and where spans cannot go, or nobody wants them."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from collections.abc import Mapping
from typing import Any

import pytest
from kits.unit.timelines import Node, together

from rdzv_launcher.run.timeline_spans import Spans, make_provider, spans_wanted
from rdzv_plugins.errors import MissingDependency, UsageError

pytest.importorskip("opentelemetry.sdk", reason="the extra otel")

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode


def provider_of(exporter: SpanExporter) -> TracerProvider:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return provider


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
    spans = Spans({"TRACEPARENT": f"00-{trace}-{parent}-01"}, lambda _: provider_of(exporter))
    for record in node.records:
        spans.take(record)
    spans.close()
    found = {each.name: each for each in exporter.get_finished_spans()}
    assert list(found) == [
        *("opening", "joining", "connecting", "completing", "starting", "working", "ending", "stopping"),
        *("leaving", "agent"),
    ]
    agent = found["agent"]
    assert agent.parent is not None
    assert (agent.context.trace_id, agent.parent.span_id) == (int(trace, 16), int(parent, 16))
    assert {each.parent.span_id for each in found.values() if each.parent and each is not agent} == {
        agent.context.span_id
    }
    assert (agent.start_time, agent.end_time) == pytest.approx((1_700_000_000e9, 1_700_000_006.25e9), abs=1000)
    working, ending = found["working"], found["ending"]
    assert working.end_time == ending.start_time == pytest.approx(1_700_000_005e9, abs=1000)
    names = {"run": "job", "host": "a", "agent": "agent-a", "node": 0, "round": 1}
    assert dict(working.attributes or {}) == {f"rdzv.{name}": value for name, value in names.items()}
    assert (ending.status.status_code, ending.status.description) == (StatusCode.ERROR, "rank 0 ended with exit code 3")
    assert [(each.name, each.attributes["rdzv.exit_code"]) for each in ending.events if each.attributes] == [
        ("failed", 3)
    ]


class Stuck(SpanExporter):
    """Does not return before it is let go."""

    def __init__(self) -> None:
        self.entered, self.free = threading.Event(), threading.Event()

    def export(self, spans: Any) -> Any:
        self.entered.set()
        assert self.free.wait(60)

    def shutdown(self) -> None:
        pass


def test_a_collector_that_does_not_answer_does_not_hold_up_the_end(caplog: pytest.LogCaptureFixture) -> None:
    stuck = Stuck()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(stuck))
    spans = Spans({}, lambda _: provider)
    node = Node("a")
    node.open(0.0)
    with caplog.at_level(logging.WARNING):
        spans.take(node.records[0])
        spans.close()  # returns, or this test does not
    assert "the last spans of the timeline may be lost" in caplog.text
    assert stuck.entered.wait(60)
    stuck.free.set()


def test_spans_are_made_only_where_it_is_said_where_they_go() -> None:
    here = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://here"}
    wanted: list[tuple[Mapping[str, str], bool]] = [
        ({"OTEL_SERVICE_NAME": "mine"}, False),
        ({"OTEL_TRACES_EXPORTER": "none"}, False),
        ({"OTEL_TRACES_EXPORTER": "console"}, True),
        (here, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://here"}, True),
        (here | {"OTEL_SDK_DISABLED": "True"}, False),
        (here | {"OTEL_TRACES_EXPORTER": "none"}, False),
    ]
    assert [(each, spans_wanted(each)) for each, _ in wanted] == wanted


@pytest.mark.parametrize(
    ("variables", "kind", "said"),
    [
        ({"OTEL_TRACES_EXPORTER": "zipkin"}, MissingDependency, "their exporter 'zipkin' is not installed"),
        (
            {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://here", "OTEL_EXPORTER_OTLP_PROTOCOL": "smoke"},
            UsageError,
            "OTEL_EXPORTER_OTLP_PROTOCOL=smoke is no protocol",
        ),
    ],
)
def test_what_cannot_be_is_one_sentence(
    variables: Mapping[str, str], kind: type, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(kind, match=said):
        make_provider(variables)
    spans = Spans(variables)
    node = Node("a")
    node.open(0.0)
    with caplog.at_level(logging.WARNING):
        spans.take(node.records[0])
        spans.take(node.records[0])
        spans.close()
    assert len(caplog.messages) == 1
    assert said in caplog.messages[0]


def test_without_the_sdk_there_is_a_sentence_and_without_the_wish_no_import() -> None:
    script = """
import sys
import rdzv_launcher.run.timeline
from rdzv_launcher.run import timeline_spans
assert not [each for each in sys.modules if each.startswith("opentelemetry")]
sys.modules["opentelemetry.sdk"] = None
try:
    timeline_spans.make_provider({"OTEL_TRACES_EXPORTER": "otlp"})
except Exception as error:
    assert "OTEL_TRACES_EXPORTER asks for spans, and OpenTelemetry's SDK cannot be imported" in str(error), error
    assert "rdzv-plugins[otel]" in error.remedy
else:
    raise AssertionError
"""
    subprocess.run([sys.executable, "-c", script], check=True)
