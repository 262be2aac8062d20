"""--rdzv-conf store=parallel: the workers' store is the native one, fresh in every round, and ends with the agent."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from kits.eventually import eventually
from kits.launcher.harness import (
    BIN,
    FEW_FILES,
    Agent,
    Cluster,
    few_files,
    file_limit,
    free_port,
)
from kits.wire.wire_client import WAIT, Raw, keyed

import rdzv_launcher
import rdzv_plugins


def status(endpoint: str, *options: str) -> subprocess.CompletedProcess[str]:
    command = [str(BIN / "rdzv"), "status", f"--rdzv-endpoint={endpoint}", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def statistics(endpoint: str) -> dict[str, Any]:
    answer = status(endpoint, "--json")
    assert answer.returncode == 0, answer.stderr
    data: dict[str, Any] = json.loads(answer.stdout)
    return data


@pytest.mark.parametrize("backend", ["c10d", pytest.param("static", marks=pytest.mark.thorough)])
def test_workers_of_two_agents_train_with_our_store(cluster: Cluster, backend: str) -> None:
    go_on = cluster.directory / "go-on"
    with few_files():
        agents = cluster.pair(
            "report.py", "wait", go_on, backend=backend, conf="store=parallel,store_threads=3", options=["-v"]
        )
    for agent in agents:
        agent.wait_for(r'"SUM": 1.0')
    [report] = agents[0].reports()
    endpoint = f"{report['MASTER_ADDR']}:{report['MASTER_PORT']}"

    stats = statistics(endpoint)
    host, other = sorted(agents, key=lambda agent: agent.pid != stats["server"]["pid"])
    assert stats["server"]["pid"] == host.pid
    assert stats["server"]["threads"] == 3
    [keyspace] = stats["keyspaces"]
    assert (keyspace["name"], str(keyspace["port"])) == ("workers-1", report["MASTER_PORT"])
    assert keyspace["connections"] >= 2, "both workers"
    assert stats["requests"]["get"] > 0
    assert file_limit(host) > FEW_FILES == file_limit(other), "every worker of the job is an open file"
    go_on.touch()
    assert [agent.wait() for agent in agents] == [0, 0]
    assert cluster.processes() == {}


@pytest.mark.parametrize(
    ("backend", "ports"),
    [("parallel", "any"), *(pytest.param(x, "one", marks=pytest.mark.thorough) for x in ("static", "c10d"))],
)
def test_who_survives_a_round_is_cut_off_from_the_next(cluster: Cluster, backend: str, ports: str) -> None:
    port, conf = free_port(), "store=parallel"
    if ports == "one":
        agents = cluster.pair("holds_on.py", "survive", backend=backend, restarts=1, conf=f"{conf},worker_ports={port}")
    else:
        agents = [cluster.run("holds_on.py", "survive", backend=backend, restarts=1, conf=conf)]
    assert [agent.wait() for agent in agents] == [0] * len(agents), agents[0].text + agents[-1].text
    reports = [report for agent in agents for report in agent.reports()]
    assert len(reports) == len(agents)
    for report in reports:
        workers = [key for key in report["KEYS"] if backend != "parallel" or not key.startswith("/agents/")]
        assert workers == [], "the new round's store is empty, but for what the agents of that round use"
        assert report["VALUE"] == "round"
        assert not report["POISONED"], "written from the first round"
        assert report["LEFT_BEHIND"]["told"] == "", "read from the first round"
        assert report["LEFT_BEHIND"].get("again") == ("refused" if ports == "any" else None)
        assert ports == "any" or report["MASTER_PORT"] == port


@pytest.mark.thorough
def test_store_that_moves_to_another_agent_is_closed_where_it_was(cluster: Cluster) -> None:
    """c10d ranks by address, so that whoever joins may take over rank 0."""
    go_on = cluster.directory / "go-on"

    def start(address: str) -> Agent:
        options: dict[str, Any] = {"conf": "store=parallel,last_call_timeout=1", "options": [f"--local-addr={address}"]}
        return cluster.run("holds_on.py", "wait", go_on, 0, backend="c10d", nnodes="1:2", **options)

    first = start("localhost")
    first.wait_for("MASTER_PORT")
    with Raw(first.reports()[0]["MASTER_PORT"]) as held:
        second = start("127.0.0.1")
        held.socket.settimeout(90)  # it imports torch
        assert held.until_close() == b""

    def together() -> dict[str, Any] | None:
        """What both have said of the newest round: c10d may form one of a single node first."""
        last = [agent.reports()[-1] for agent in (first, second) if agent.reports()]
        same = len(last) == 2 and last[0]["MASTER_PORT"] == last[1]["MASTER_PORT"]
        return last[1] if same and last[1]["MASTER_ADDR"] == "127.0.0.1" else None

    report = eventually(together, lambda: first.text + second.text)
    assert statistics(f"127.0.0.1:{report['MASTER_PORT']}")["server"]["pid"] == second.pid
    go_on.touch()
    assert [first.wait(), second.wait()] == [0, 0], first.text + second.text


@pytest.mark.thorough
def test_store_ends_with_the_agent(cluster: Cluster) -> None:
    go_on = cluster.directory / "go-on"
    agent = cluster.run("holds_on.py", "wait", go_on, 4, backend="static", conf="store=parallel")
    agent.wait_for("MASTER_PORT")
    [report] = agent.reports()
    with Raw(report["MASTER_PORT"]) as idle, Raw(report["MASTER_PORT"]) as waiting:
        waiting.send(keyed(WAIT, [b"/never"]))
        go_on.touch()
        assert agent.wait() == 4, agent.text
        assert idle.until_close() == waiting.until_close() == b""
    with pytest.raises(ConnectionRefusedError):
        Raw(report["MASTER_PORT"])


@pytest.mark.thorough
def test_torchrun_has_it_too(cluster: Cluster) -> None:
    command = ["torchrun", "--nnodes=2", "--max-restarts=1", "--rdzv-backend=rdzv-plugins.static"]
    command += [f"--rdzv-endpoint={cluster.endpoint}"]
    script = [cluster.script("holds_on.py"), "survive"]
    agents = [cluster.start([*command, f"--rdzv-conf=store=parallel,rank={rank}", *script]) for rank in (0, 1)]
    assert [agent.wait() for agent in agents] == [0, 0], agents[0].text + agents[1].text
    reports = [report for agent in agents for report in agent.reports()]
    assert [report["KEYS"] for report in reports] == [[], []]


@pytest.fixture(scope="module")
def without_native_part(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The package as it is where it could not be compiled, for PYTHONPATH."""
    copy = tmp_path_factory.mktemp("installed")
    for package in (rdzv_launcher, rdzv_plugins):
        source = Path(package.__file__).parent
        shutil.copytree(source, copy / source.name, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    return str(copy)


def test_every_node_refuses_at_once_without_the_native_part(cluster: Cluster, without_native_part: str) -> None:
    """The second of two nodes, of which the first never comes."""
    agent = cluster.run(
        *("plain.py", "env", "X"),
        backend="static",
        nnodes=2,
        rank=1,
        conf="store=parallel,timeout=1000",
        PYTHONPATH=without_native_part,
    )
    assert agent.wait() == 69, agent.text
    assert "store=torch" in agent.text


@pytest.mark.thorough
def test_torchs_store_needs_no_native_part(cluster: Cluster, without_native_part: str) -> None:
    agent = cluster.run("plain.py", "env", "PYTHONPATH", backend="static", PYTHONPATH=without_native_part)
    assert agent.wait() == 0, agent.text
    assert f"PYTHONPATH={without_native_part}" in agent.text
