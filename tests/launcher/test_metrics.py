"""/metrics of agents and of ``rdzv serve``, scraped while a job restarts a worker and loses a node; of an agent that
serves the place where its nodes meet, too."""

from __future__ import annotations

import http.client
import os
import socket
from collections.abc import Mapping

import pytest
from kits.eventually import eventually
from kits.launcher.elastic_kit import Job, Meeting, in_one_round, outputs, parallel_only
from kits.launcher.harness import Agent
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from rdzv_plugins.testing.harness import free_port

Figures = Mapping[str, float]
"""By name, with the value of a label: ``rdzv_agent_rounds_total{lost}``."""


def scrape(port: int) -> Figures:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", "/metrics")
    answer = connection.getresponse()
    assert answer.status == 200
    assert answer.getheader("Content-Type", "").startswith("application/openmetrics-text; version=1.0.0")
    families = text_string_to_metric_families(answer.read().decode())
    samples = [sample for family in families for sample in family.samples]
    return {name + (f"{{{','.join(labels.values())}}}" if labels else ""): value for name, labels, value, *_ in samples}


def rounds(figures: Figures) -> dict[str, float]:
    found = {name.partition("{")[2][:-1]: count for name, count in figures.items() if "_rounds_total" in name}
    return {cause: count for cause, count in found.items() if count}


def wait_figures(port: int, wanted: Mapping[str, float], *agents: Agent) -> Figures:
    """Until these are told; the last scrape."""
    last: list[Figures] = []

    def told() -> bool:
        last[:] = [scrape(port)]
        return wanted.items() <= last[0].items()

    eventually(told, lambda: f"not {wanted}: {last}\n{outputs(agents)}")
    return last[0]


@parallel_only
def test_figures_of_a_job_that_restarts_a_worker_and_loses_a_node(meeting: Meeting) -> None:
    serves, stays, goes = free_port(), free_port(), free_port()
    server = meeting.start(["rdzv", "serve", f"--rdzv-endpoint={meeting.endpoint}", f"--metrics-port={serves}"])
    server.wait_for("serving a store")
    job = Job(meeting, "1:2", script="says.py", restarts=1)
    first = job.node(flags=[f"--health-port={stays}"])
    second = job.node(flags=[f"--health-port={goes}"])
    reports = in_one_round(first, second)
    begun = {"rdzv_agent_rounds_total{first}": 1}
    before = {port: wait_figures(port, begun, first, second) for port in (stays, goes)} | {serves: scrape(serves)}
    served = [port for port in (stays, goes) if before[port].get("rdzv_store_connections{workers}")]
    assert len(served) == 1, "one of them serves the workers' store"
    assert not any("rendezvous" in name for name in before[served[0]])
    for port in (stays, goes):
        assert rounds(before[port]) == {"first": 1}
        assert before[port]["rdzv_agent_round_nodes"] == 2
        assert before[port]["rdzv_agent_stage{working}"] == before[port]["rdzv_agent_workers"] == 1
    assert before[serves]["rdzv_store_sessions{serve}"] == 2
    assert before[serves]["rdzv_store_runs{serve}"] == 1
    assert before[serves]["rdzv_store_requests_total{serve,open_session}"] >= 2

    [worker] = job.workers(second)
    os.kill(worker, 9)
    reports = in_one_round(first, second, after=reports)
    failed = wait_figures(goes, {"rdzv_agent_rounds_total{failure}": 1}, second)
    peer = wait_figures(stays, {"rdzv_agent_rounds_total{peer}": 1}, first)
    assert rounds(failed) == {"first": 1, "failure": 1}
    assert rounds(peer) == {"first": 1, "peer": 1}
    assert (failed["rdzv_agent_restarts_total"], peer["rdzv_agent_restarts_total"]) == (1, 0)

    job.kill_node(second)
    in_one_round(first, after=reports)
    alone = wait_figures(stays, {"rdzv_agent_rounds_total{lost}": 1, "rdzv_agent_round_nodes": 1}, first)
    assert rounds(alone) == {"first": 1, "peer": 1, "lost": 1}
    assert alone["rdzv_agent_missing_nodes"] == 1
    assert alone["rdzv_agent_restarts_total"] == 0, "a node that is lost uses up no restart"
    assert alone["process_resident_memory_bytes"] > 2**20

    with socket.create_connection(("127.0.0.1", meeting.port)) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
        stranger.recv(1)
    refused = "rdzv_store_refused_clients_total{not a store client,serve}"
    wait_figures(serves, {"rdzv_store_sessions{serve}": 1, refused: 1}, server)
    taken = meeting.start(["rdzv", "serve", "--rdzv-endpoint=127.0.0.1:0", f"--metrics-port={serves}"])
    assert taken.wait() == 68
    job.finish(first)


@pytest.mark.thorough
@parallel_only
def test_an_agent_that_serves_the_endpoint_tells_what_the_server_does(meeting: Meeting) -> None:
    port = free_port()
    job = Job(meeting, 1, script="says.py")
    node = job.node(flags=[f"--health-port={port}"])
    in_one_round(node)
    with socket.create_connection(("127.0.0.1", meeting.port)) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
        stranger.recv(1)
    told = wait_figures(port, {"rdzv_store_refused_clients_total{not a store client,rendezvous}": 1}, node)
    assert told["rdzv_store_sessions{rendezvous}"] == 1
    job.finish(node)
