"""Metrics without a job: their names, the text that is told of them, the dashboard and alerts that ask for them."""

from __future__ import annotations

import json
import re
import socket
import sys
from contextlib import ExitStack
from functools import partial
from itertools import count
from pathlib import Path
from typing import Literal
from unittest.mock import Mock

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from rdzv_launcher.run.agent import events, steps
from rdzv_launcher.run.agent.loop import MainThreadHeartbeat
from rdzv_launcher.run.agent.state_machine import AgentStateMachine, Limits
from rdzv_launcher.run.agent_metrics import AGENT, AgentFigures
from rdzv_launcher.run.health import Health, metrics_alone
from rdzv_launcher.run.metrics import STORE, MetricsPage
from rdzv_launcher.run.workers.worker_group import Worker, WorkerGroup
from rdzv_plugins.interfaces import Failure, Request, RoundEvent
from rdzv_plugins.kvstore.native.limits import StoreLimits
from rdzv_plugins.kvstore.native.server import Servers, StoreServer
from rdzv_plugins.runtime import SYSTEM

ALL = (*AGENT, *STORE)
EXAMPLES = Path(__file__).parents[2] / "examples"
DASHBOARD, ALERTS = EXAMPLES / "grafana/rdzv-plugins.json", EXAMPLES / "prometheus/alerts.yml"
GROUP = WorkerGroup(0, 2, (Worker(0, 0, 0, 1, 1),), None)


def request(run: str) -> Request:
    return Request("parallel", run, "", 1, 2, 1)


def test_what_a_stranger_has_written_breaks_no_line() -> None:
    """A run's id is told as a label: here it is text that would end the line, and begin another metric."""
    figures = AgentFigures(request('a"} 1\nrdzv_agent_restarts_total 99\n\x1b[2J'), 0)
    decisions = AgentStateMachine(Limits(workers=1), host="a", pid=1)
    text = MetricsPage(AGENT, lambda: figures.read(decisions, None)).text()
    families = {each.name: each for each in text_string_to_metric_families(text)}
    assert families["rdzv_agent_restarts"].samples[0].value == 0
    assert families["rdzv_agent"].samples[0].labels["run"].startswith('a"} 1')
    assert "\x1b" not in text


def test_an_agent_tells_of_the_stores_that_it_serves_and_two_for_one_purpose_are_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Several endpoints may be one machine's; metrics with the same labels twice would be no metrics."""
    SYSTEM.forget(Servers)  # what other tests have left open
    moment = count(0.0, 2.0)  # what is younger than a second is told again
    monkeypatch.setattr("time.monotonic", lambda: next(moment))
    figures, health = AgentFigures(request("a"), 0), Health(MainThreadHeartbeat(), 1.0)
    figures.publish(health, lambda: (AgentStateMachine(Limits(workers=1), host="a", pid=1), None), str)

    def told(purpose: str) -> dict[str, float]:
        answer = health.answer("/metrics")
        assert answer.status == 200, answer.text
        samples = [each for family in text_string_to_metric_families(answer.text) for each in family.samples]
        here = [each for each in samples if each.labels.get("store") == purpose]
        assert len({(each.name, *each.labels.items()) for each in here}) == len(here)
        return {each.name + each.labels.get("reason", ""): each.value for each in here}

    assert told("rendezvous") == told("workers") == {}
    with ExitStack() as open_now:
        serve = partial(StoreServer, "127.0.0.1", threads=1, limits=StoreLimits(connections=10))
        first, second = (open_now.enter_context(serve(name="rendezvous")) for _ in range(2))
        workers = open_now.enter_context(serve(name="workers-1", purpose="workers"))
        for server in (first, second, second, workers, workers, workers):
            with socket.create_connection(("127.0.0.1", server.port)) as stranger:
                stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
                stranger.recv(1)
        refused = "rdzv_store_refused_clients_totalnot a store client"
        assert [told(each)[refused] for each in ("rendezvous", "workers")] == [3, 3]
        assert told("rendezvous")["rdzv_store_connections_limit"] == 10
        assert told("rendezvous")["rdzv_store_oldest_wait_seconds"] == 0
        assert told("rendezvous")["rdzv_store_info"] == 1
    assert told("rendezvous") == told("workers") == {}


def test_a_flood_reads_the_figures_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    moment, read = [100.0], Mock(return_value=())
    monkeypatch.setattr("time.monotonic", lambda: moment[0])
    page = MetricsPage(STORE, read)
    assert len({page.text() for _ in range(100)}) == read.call_count == 1
    moment[0] += 1.0
    page.text()
    assert read.call_count == 2


def test_what_cannot_be_told_is_a_sentence_and_costs_this_answer_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = metrics_alone(MetricsPage(STORE, Mock(side_effect=KeyError("loops"))))
    assert answer("/metrics").status == 500
    assert "KeyError: 'loops'" in answer("/metrics?x=1").text
    assert answer("/healthz").status == 404
    monkeypatch.setitem(sys.modules, "prometheus_client", None)  # type: ignore[arg-type]
    without = metrics_alone(MetricsPage((), tuple))("/metrics")
    assert (without.status, "pip install 'rdzv-plugins[metrics]'" in without.text) == (501, True)


FAILURE = Failure(0, "a", 0, 0, 1, 1)


@pytest.mark.parametrize(
    ("heard", "over", "cause"),
    [
        ([events.WorkerEnded(1, 0, 3), events.GroupEnded(1), events.PeersAnswered(False)], "", "failure"),
        ([events.WorkerEnded(1, 0, 3), events.GroupEnded(1), events.PeersAnswered(True)], "lost", "lost"),
        ([events.WorkerEnded(1, 0, 3), events.GroupEnded(1), events.PeersAnswered(True)], "", "lost"),
        ([events.GroupEnded(1), events.PeersAnswered(False)], "", "failure"),
        ([events.Hung(1, FAILURE), events.GroupEnded(1), events.PeersAnswered(False)], "", "hang"),
        ([events.Fenced(), events.GroupEnded(1), events.PeersAnswered(True)], "lost", "fenced"),
        ([events.NodesWait(), events.GroupEnded(1)], "lost", "lost"),
        ([events.NodesWait(), events.GroupEnded(1)], "asked", "peer"),
        ([events.NodesWait(), events.GroupEnded(1)], "came", "joined"),
        ([events.NodesWait(), events.GroupEnded(1)], "", "unknown"),
        ([events.WorkerEnded(1, 0, 0), events.MustRunAgain(), events.GroupEnded(1)], "asked", "peer"),
    ],
)
def test_a_round_is_counted_under_what_led_to_it(
    heard: list[events.Event], over: Literal["", "lost", "asked", "came"], cause: str
) -> None:
    figures = AgentFigures(request("a"), 3)
    decisions = AgentStateMachine(Limits(workers=1, max_restarts=3), host="a", pid=1)
    decisions.begin()
    for event in [events.Joined(0), *heard, events.RestartAllowed(), events.Joined(0)]:
        todo = decisions.handle(event, 0.0)
        figures.decided(event, decisions)
        if any(isinstance(step, steps.StartWorkers) for step in todo):
            figures.started(GROUP)
        if over and isinstance(event, events.GroupEnded):  # it may be told later than the agent has asked
            figures.saw(RoundEvent("over", 1, cause=over))
            figures.saw(RoundEvent("placed", 2, 0, 2))
    assert decisions.generation == 2, "the events lead to another round"
    rounds = {
        labels["cause"]: value for metric, value, labels in figures.read(decisions, None) if "rounds" in metric.name
    }
    assert {name: count for name, count in rounds.items() if count} == {"first": 1, cause: 1}


def test_a_node_that_stays_without_a_place_is_in_no_round() -> None:
    figures, decisions = AgentFigures(request("a"), 0), AgentStateMachine(Limits(workers=1), host="a", pid=1)
    decisions.begin()
    for told, nodes in (
        ([events.Joined(0)], 2),
        ([events.NodesWait(), events.GroupEnded(1)], 0),
        ([events.DoneWithout()], 0),
    ):
        for event in told:
            decisions.handle(event, 0.0)
            figures.decided(event, decisions)
        found = {metric.name: value for metric, value, _ in figures.read(decisions, GROUP)}
        assert [value for name, value in found.items() if name.endswith("round_nodes")] == [nodes]
    assert decisions.stage == "staying"


def test_the_dashboard_and_the_alerts_ask_for_what_there_is() -> None:
    from prometheus_client import CollectorRegistry, ProcessCollector

    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    known = {each.sample for each in ALL} | {sample.name for each in registry.collect() for sample in each.samples}
    dashboard = DASHBOARD.read_text()
    alerts = re.findall(r"\brdzv_[a-z_]+", ALERTS.read_text())
    asked = set(re.findall(r"\b(?:rdzv|process)_[a-z_]+", dashboard))
    assert (asked | set(alerts)) - {"rdzv_plugins"} <= known
    assert (len(alerts) > 5, len(asked) > 15) == (True, True)
    labels = {label for each in ALL for label in each.labels} | {"job", "instance"}
    for panel in json.loads(dashboard)["panels"]:
        for target in panel["targets"]:
            grouped = re.findall(r"(?:by|on) \(?([a-z, ]+)\)", target["expr"]) + re.findall(r"(\w+)=~", target["expr"])
            assert {each.strip() for group in grouped for each in group.split(",")} <= labels
