"""/healthz and /readyz of real agents, in all that an agent does for long; the server itself: tests/unit."""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from kits.eventually import eventually
from kits.launcher.harness import Agent, Cluster, plug_in

from rdzv_plugins.testing.harness import free_port

STANDS = """
import os, time
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from rdzv_plugins import Backend, hookimpl

@dataclass(frozen=True)
class Info:
    rank: int = 0
    world_size: int = 1
    store: Any = None
    bootstrap_store_info: Any = None

class Handler:
    use_agent_store = False

    def __init__(self, request):
        self._request = request

    def get_backend(self):
        return "stands"

    def next_rendezvous(self):
        return Info()

    def num_nodes_waiting(self):
        while Path(os.environ["TEST_STANDS_WHILE"]).exists():
            time.sleep(0.01)
        return 0

    def is_closed(self):
        return False

    def set_closed(self):
        pass

    def get_run_id(self):
        return self._request.run_id

    def shutdown(self):
        return True

@hookimpl
def rdzv_register_backends():
    return [Backend(name="stands", summary="its agent may stand still", create=Handler)]
"""
"""The agent asks its handler ten times a second whether the nodes change: this one does not always answer."""


def ask(port: int, path: str) -> tuple[int, str]:
    """(status, text); status 0: nobody answers."""
    try:
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=20)) as connection:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
    except ConnectionRefusedError:
        return 0, ""


def wait_said(port: int, path: str, status: int, pattern: str, *agents: Agent) -> str:
    """Until it is answered so; returns the answer."""
    said: list[tuple[int, str]] = [(0, "")]

    def is_said() -> bool:
        said[0] = ask(port, path)
        return said[0][0] == status and re.search(pattern, said[0][1]) is not None

    eventually(is_said, lambda: f"{path} says {said[0]}, not {status} {pattern!r}: {[each.text for each in agents]}")
    return said[0][1]


def node(cluster: Cluster, nnodes: int, rank: int, port: int, done: str) -> Agent:
    ranks = rank if nnodes == 2 else None
    stop = cluster.directory / "stop"
    options = [f"--health-port={port}"] if port else []
    return cluster.run(
        "waits.py", stop, done, backend="parallel", nnodes=nnodes, rank=ranks, options=options, conf="linger=30"
    )


def test_from_the_wait_for_other_nodes_to_the_exit_barrier(cluster: Cluster) -> None:
    port, other = free_port(), free_port()
    first = node(cluster, 2, 0, port, done="0")
    wait_said(port, "/readyz", 503, "missing: node rank 1", first)
    assert ask(port, "/healthz")[0] == 200
    second = node(cluster, 2, 1, other, done="0")
    agents = first, second
    eventually(lambda: "done: " in ask(port, "/readyz")[1] + ask(other, "/readyz")[1], lambda: str(agents))
    done, works = (port, other) if "done: " in ask(port, "/readyz")[1] else (other, port)
    wait_said(done, "/readyz", 200, "done: node 0 of 2", *agents)
    wait_said(works, "/readyz", 200, "works: node 1 of 2", *agents)
    assert (ask(done, "/healthz")[0], ask(works, "/healthz")[0]) == (200, 200)
    (cluster.directory / "stop").touch()
    assert [each.wait() for each in agents] == [0, 0], [each.text for each in agents]
    assert ask(port, "/healthz")[0] == 0


@pytest.mark.thorough
def test_a_spare_lives_and_is_not_ready(cluster: Cluster) -> None:
    port = free_port()
    works = node(cluster, 1, 0, 0, done="")
    works.wait_for("rank 0 begins")
    spare = node(cluster, 1, 1, port, done="")
    wait_said(port, "/readyz", 503, "this node is a spare", works, spare)
    assert ask(port, "/healthz")[0] == 200
    (cluster.directory / "stop").touch()
    assert [works.wait(), spare.wait()] == [0, 0]


@pytest.fixture
def stands(cluster: Cluster, tmp_path: Path) -> Callable[..., Agent]:
    site = plug_in(tmp_path, "rdzv_test_stands", STANDS)

    def start(*options: str, conf: str = "health_timeout=1", **env: str) -> Agent:
        command = ["rdzv-run", "--rdzv-backend=stands", f"--rdzv-conf={conf}", *options]
        env |= {"PYTHONPATH": site, "TEST_STANDS_WHILE": str(tmp_path / "still"), "TORCH_ELASTIC_WORKER_IDENTICAL": "1"}
        return cluster.start([*command, cluster.script("waits.py"), tmp_path / "stop", "-1"], **env)

    return start


@pytest.mark.thorough
def test_a_main_loop_that_stands_still_is_said_with_its_place(stands: Callable[..., Agent], tmp_path: Path) -> None:
    """By the variable that torchrun has for it."""
    port = free_port()
    agent = stands(TORCHELASTIC_HEALTH_CHECK_PORT=str(port))
    wait_said(port, "/readyz", 200, "works: node 0 of 1", agent)
    wait_said(port, "/healthz", 200, "alive: works", agent)
    (tmp_path / "still").touch()
    place = r"main thread has stood still for \d+ s, at \S+rdzv_test_stands\.py:\d+ \(num_nodes_waiting\)"
    wait_said(port, "/healthz", 503, place, agent)
    assert ask(port, "/readyz")[0] == 200, "its workers work on"
    (tmp_path / "still").unlink()
    wait_said(port, "/healthz", 200, "alive: works", agent)
    os.kill(agent.pid, signal.SIGTERM)
    assert agent.wait() == 143


@pytest.mark.thorough
def test_a_port_that_is_taken_costs_a_sentence_and_not_the_job(stands: Callable[..., Agent]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        agent = stands(conf=f"health_port={port}")
        agent.wait_for("rank 0 begins")
        agent.wait_for(f"--health-port={port}")
        os.kill(agent.pid, signal.SIGTERM)
        assert agent.wait() == 143
