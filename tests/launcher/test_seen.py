"""What can be seen of a job from outside: /healthz, /readyz, /metrics, ``rdzv top`` and the timeline.

One real job waits, works, restarts a worker, loses a node and ends. The server of health and metrics, the screen of
``rdzv top`` and clocks that are wrong are in tests/unit.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import socket
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from kits.eventually import eventually
from kits.launcher.elastic_kit import Job, Meeting, in_one_round
from kits.launcher.harness import AgentProcess, Said
from kits.unit.timelines import lines
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from rdzv_launcher.run.timeline import INTERRUPTING, TimelineRecord, parse
from rdzv_plugins.clock import now
from rdzv_plugins.testing.harness import free_port
from rdzv_plugins.testing.launched import outputs

Figures = Mapping[str, float]
"""By name, with the value of a label: ``rdzv_agent_rounds_total{lost}``."""


def get(port: int, path: str) -> tuple[int, str]:
    """(status, text); status 0: nobody answers."""
    try:
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
    except ConnectionRefusedError:
        return 0, ""


def wait_ready(port: int, status: int, pattern: str, *agents: AgentProcess) -> None:
    """Until /readyz says that."""

    def is_said() -> bool:
        found, text = get(port, "/readyz")
        return found == status and re.search(pattern, text) is not None

    eventually(is_said, lambda: f"not {status} {pattern!r}: {get(port, '/readyz')}\n{outputs(agents)}")


def scrape(port: int) -> Figures:
    status, text = get(port, "/metrics")
    assert status == 200
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return {name + (f"{{{','.join(labels.values())}}}" if labels else ""): value for name, labels, value, *_ in samples}


def rounds(figures: Figures) -> dict[str, float]:
    """How many there were, by what began each."""
    found = {name.partition("{")[2][:-1]: count for name, count in figures.items() if "_rounds_total" in name}
    return {cause: count for cause, count in found.items() if count}


def wait_figures(port: int, wanted: Mapping[str, float], *agents: AgentProcess) -> Figures:
    """Until these are told; the last scrape."""
    return eventually(
        lambda: found if wanted.items() <= (found := scrape(port)).items() else None,
        lambda: f"not {wanted}: {scrape(port)}\n{outputs(agents)}",
    )


def nodes_shown(meeting: Meeting, rdzv: Callable[..., Said]) -> list[tuple[int, int, str, list[int]]]:
    """Of ``rdzv top``: rank, pid, state and the workers' pids of each node."""
    found = rdzv("top", f"--rdzv-endpoint={meeting.endpoint}", f"--rdzv-id={meeting.run_id}", "--json").out
    nodes = json.loads(found)["jobs"][0]["nodes"] if found else []
    return [(n["rank"], n["pid"], n["state"], [worker["pid"] for worker in n["workers"]]) for n in nodes]


def test_a_job_that_restarts_a_worker_and_loses_a_node(
    meeting: Meeting, tmp_path: Path, rdzv: Callable[..., Said]
) -> None:
    serves, stays, goes, timeline = free_port(), free_port(), free_port(), tmp_path / "not" / "there yet"
    server = meeting.start(["rdzv", "serve", f"--rdzv-endpoint={meeting.endpoint}", f"--metrics-port={serves}"])
    server.wait_for("serving a store")
    job = Job(meeting, "1:2", script="says.py", restarts=1, conf="ttl=60,last_call_timeout=80")
    first = job.node(0, flags=[f"--health-port={stays}", f"--timeline={timeline}"], MY_SECRET="hunter2")
    wait_ready(stays, 503, "1 of 1:2 nodes", first)
    assert get(stays, "/healthz")[0] == 200
    second = job.node(1, flags=[f"--health-port={goes}"], RDZV_TIMELINE=str(timeline))
    reports = in_one_round(first, second)
    for rank, port in enumerate((stays, goes)):
        wait_ready(port, 200, f"works: node {rank} of 2", first, second)

    begun = {"rdzv_agent_rounds_total{first}": 1}
    before = {port: wait_figures(port, begun, first, second) for port in (stays, goes)} | {serves: scrape(serves)}
    served = [port for port in (stays, goes) if before[port].get("rdzv_store_connections{workers}")]
    assert served == [stays], "rank 0 serves the workers' store"
    assert not any("rendezvous" in name for name in before[stays])
    for port in (stays, goes):
        assert rounds(before[port]) == {"first": 1}
        assert before[port]["rdzv_agent_round_nodes"] == 2
        assert before[port]["rdzv_agent_stage{working}"] == before[port]["rdzv_agent_workers"] == 1
    assert before[serves]["rdzv_store_sessions{serve}"] == 2
    assert before[serves]["rdzv_store_runs{serve}"] == 1
    assert before[serves]["rdzv_store_requests_total{serve,open_session}"] >= 2
    shown = [(rank, node.pid, "works", [reports[rank]["PID"]]) for rank, node in enumerate((first, second))]
    eventually(lambda: nodes_shown(meeting, rdzv) == shown, lambda: f"{nodes_shown(meeting, rdzv)}, not {shown}")

    (victim,) = job.workers(second)
    worker_killed = now()
    os.kill(victim, signal.SIGKILL)
    reports = in_one_round(first, second, after=reports)
    again = now()
    failed = wait_figures(goes, {"rdzv_agent_rounds_total{failure}": 1}, second)
    peer = wait_figures(stays, {"rdzv_agent_rounds_total{peer}": 1}, first)
    assert rounds(failed) == {"first": 1, "failure": 1}
    assert rounds(peer) == {"first": 1, "peer": 1}
    assert (failed["rdzv_agent_restarts_total"], peer["rdzv_agent_restarts_total"]) == (1, 0)

    def written() -> bool:
        whole = [parse(line.encode()) for line in lines(timeline) if line.endswith("}")]
        return sum((each.event, each.round) == ("started", 2) for each in whole) == 2

    eventually(written, lambda: outputs([first, second]))  # by threads of their own
    node_killed = now()
    job.kill_node(second)
    in_one_round(first, after=reports)
    alone = now()
    figures = wait_figures(stays, {"rdzv_agent_rounds_total{lost}": 1, "rdzv_agent_round_nodes": 1}, first)
    assert rounds(figures) == {"first": 1, "peer": 1, "lost": 1}
    assert figures["rdzv_agent_missing_nodes"] == 1
    assert figures["rdzv_agent_restarts_total"] == 0, "a node that is lost uses up no restart"
    assert figures["process_resident_memory_bytes"] > 2**20

    with socket.create_connection(("127.0.0.1", meeting.port)) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
        stranger.recv(1)
    refused = "rdzv_store_refused_clients_total{not a store client,serve}"
    wait_figures(serves, {"rdzv_store_sessions{serve}": 1, refused: 1}, server)
    job.finish(first)
    assert get(stays, "/healthz")[0] == 0
    check_timeline(timeline, rdzv, [(worker_killed, again, victim), (node_killed, alone, second.pid)])


def check_timeline(directory: Path, rdzv: Callable[..., Said], kills: list[tuple[float, float, int]]) -> None:
    """Two interruptions, by the death of a worker and of a node: (before, after, pid) each."""
    told = sorted((parse(line.encode()) for line in lines(directory)), key=lambda each: each.mono)
    data = json.loads(rdzv("timeline", "--json", directory).out)
    assert [each["kind"] for each in data["interruptions"]] == ["start", "restart", "restart"]
    assert data["left_out"] == []
    assert [each["phase"] for each in data["interruptions"][1]["phases"]] == [
        *("noticing", "stopping", "deciding", "meeting", "connecting", "completing")
    ]
    for number, (begun, ended, pid) in enumerate(kills, 1):
        each = data["interruptions"][number]
        assert f"pid {pid})" in each["cause"]
        assert (each["after"], each["until"]) == (number, number + 1)
        signs = [r.mono for r in told if r.event in INTERRUPTING and begun < r.mono < ended]
        complete = max(r.mono for r in told if r.event == "complete" and r.round == each["until"])
        assert begun < min(signs) < complete < ended
        assert sum(phase["seconds"] for phase in each["phases"]) >= 0.95 * (complete - min(signs))
        assert each["seconds"] == pytest.approx(complete - min(signs), abs=1e-4)
        assert each["first_line_after"] is not None

    def agents_with(test: Callable[[TimelineRecord], bool]) -> set[str]:
        return {each.agent for each in told if test(each)}

    ended = agents_with(lambda each: each.event == "ended")
    assert ended == agents_with(lambda each: each.event == "lost"), "the killed one has no end, the survivor says so"
    text = "".join(lines(directory))
    assert "hunter2" not in text, "neither variables"
    assert "stop-none" not in text, "nor arguments are written down"


def test_top_says_that_nobody_is_there_or_that_it_has_no_terminal(rdzv: Callable[..., Said]) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        endpoint = f"127.0.0.1:{nobody.getsockname()[1]}"
        found = rdzv("top", f"--rdzv-endpoint={endpoint}", "--once", "--timeout=1")
        assert (found.code, endpoint in found.err) == (68, True)
        assert rdzv("top", f"--rdzv-endpoint={endpoint}").code == 2
