"""--rdzv-conf store=parallel: the workers' store is the native one, fresh in every round, and ends with the agent."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest
from kits.launcher.harness import (
    BIN,
    FEW_FILES,
    Agent,
    Cluster,
    few_files,
    file_limit,
    free_port,
    threads_of,
    wait_until,
)
from kits.wire.wire_client import WAIT, Raw, keyed

import rdzv_launcher
import rdzv_plugins

BACKENDS = ["static", "c10d"]


def status(endpoint: str, *options: str) -> subprocess.CompletedProcess[str]:
    command = [str(BIN / "rdzv"), "status", f"--rdzv-endpoint={endpoint}", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def statistics(endpoint: str) -> dict[str, Any]:
    answer = status(endpoint, "--json")
    assert answer.returncode == 0, answer.stderr
    data: dict[str, Any] = json.loads(answer.stdout)
    return data


def store_threads(agent: Agent) -> list[str]:
    """The names of the agent's threads that serve a native store."""
    return [name for name in threads_of(agent.pid) if re.fullmatch(r"rdzv-store-\d+", name)]


@pytest.mark.parametrize("backend", BACKENDS)
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
    control = ["rdzv-store-0"] if backend == "static" else []  # the agents' store, which has one thread
    assert sorted(store_threads(host)) == sorted(["rdzv-store-0", "rdzv-store-1", "rdzv-store-2", *control])
    assert store_threads(other) == [], "one node serves"
    [keyspace] = stats["keyspaces"]
    assert (keyspace["name"], str(keyspace["port"])) == ("workers-1", report["MASTER_PORT"])
    assert keyspace["connections"] >= 2, "both workers"
    assert stats["requests"]["get"] > 0
    assert file_limit(host) > FEW_FILES == file_limit(other), "every worker of the job is an open file"
    assert f"rdzv status --rdzv-endpoint={endpoint})" in host.text

    with Raw(int(report["MASTER_PORT"]), validated=False) as stranger:
        stranger.send(b"GET / HTTP/1.1\r\n\r\n")
        assert stranger.until_close() == b""
    host.wait_for(r"warning: keyspace 'workers-1': closed a connection from 127.0.0.1:\d+: not a store client")

    go_on.touch()
    assert [agent.wait() for agent in agents] == [0, 0]
    assert cluster.processes() == {}


@pytest.mark.parametrize("ports", ["any", "one"])
@pytest.mark.parametrize("backend", [*BACKENDS, "parallel"])
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

    report = wait_until(together, 90, lambda: first.text + second.text)
    assert statistics(f"127.0.0.1:{report['MASTER_PORT']}")["server"]["pid"] == second.pid
    go_on.touch()
    assert [first.wait(), second.wait()] == [0, 0], first.text + second.text


@pytest.mark.parametrize(("backend", "conf"), [("static", "store=torch"), ("c10d", "store=torch")])
def test_torchs_own_store_remains(cluster: Cluster, backend: str, conf: str) -> None:
    go_on = cluster.directory / "go-on"
    agent = cluster.run("holds_on.py", "wait", go_on, 0, backend=backend, conf=conf)
    agent.wait_for("MASTER_PORT")
    [report] = agent.reports()
    answer = status(f"127.0.0.1:{report['MASTER_PORT']}", "--timeout=60")
    assert answer.returncode == 68
    assert "A workers' store has statistics with --rdzv-conf store=parallel" in answer.stderr
    assert store_threads(agent) == []
    go_on.touch()
    assert agent.wait() == 0


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("how", ["failure", "SIGTERM"])
def test_store_ends_with_the_agent(cluster: Cluster, backend: str, how: str) -> None:
    go_on = cluster.directory / "go-on"
    agent = cluster.run("holds_on.py", "wait", go_on, 4, backend=backend, conf="store=parallel")
    agent.wait_for("MASTER_PORT")
    [report] = agent.reports()
    with Raw(report["MASTER_PORT"]) as idle, Raw(report["MASTER_PORT"]) as waiting:
        waiting.send(keyed(WAIT, [b"/never"]))
        if how == "failure":
            go_on.touch()
        else:
            os.kill(agent.pid, signal.SIGTERM)
        assert agent.wait() == (4 if how == "failure" else 143), agent.text
        assert idle.until_close() == waiting.until_close() == b""
    assert "Traceback" not in agent.text
    assert cluster.processes() == {}
    with pytest.raises(ConnectionRefusedError):
        Raw(report["MASTER_PORT"])


def test_port_of_the_store_in_use_names_its_holder(cluster: Cluster) -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
        agent = cluster.run("plain.py", "sleep", backend="c10d", conf=f"store=parallel,worker_ports={port}")
        assert agent.wait() == 68, agent.text
    assert f"port {port} of this machine ({socket.gethostname()}): in use by pid {os.getpid()} (" in agent.text
    assert "started" not in agent.text


def test_torchrun_has_it_too(cluster: Cluster) -> None:
    command = ["torchrun", "--nnodes=2", "--max-restarts=1", "--rdzv-backend=rdzv-plugins.static"]
    command += [f"--rdzv-endpoint={cluster.endpoint}"]
    script = [cluster.script("holds_on.py"), "survive"]
    agents = [cluster.start([*command, f"--rdzv-conf=store=parallel,rank={rank}", *script]) for rank in (0, 1)]
    assert [agent.wait() for agent in agents] == [0, 0], agents[0].text + agents[1].text
    reports = [report for agent in agents for report in agent.reports()]
    assert [report["KEYS"] for report in reports] == [[], []]


def test_c10d_says_that_it_is_not_used_where_torch_shares_no_store(cluster: Cluster) -> None:
    conf = "store=parallel"
    agent = cluster.run("plain.py", "env", "X", backend="c10d", conf=conf, TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1")
    assert agent.wait() == 0, agent.text
    assert agent.text.count("warning: store=parallel is not used: TORCH_DISABLE_SHARE_RDZV_TCP_STORE") == 1


@pytest.mark.parametrize(
    ("conf", "accepted"),
    [("store=native", "store takes one of torch, parallel."), ("store=parallel,store_threads=65", "from 0 to 64")],
)
def test_what_is_not_a_store_is_refused_by_name(cluster: Cluster, conf: str, accepted: str) -> None:
    agent = cluster.run("plain.py", "env", "X", backend="c10d", conf=conf)
    assert agent.wait() == 2, agent.text
    assert f"--rdzv-conf: {conf.rpartition(',')[2]} is not accepted by backend 'c10d'" in agent.text
    assert accepted in agent.text
    assert "started" not in agent.text


@pytest.fixture(scope="module")
def without_native_part(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The package as it is where it could not be compiled, for PYTHONPATH."""
    copy = tmp_path_factory.mktemp("installed")
    for package in (rdzv_launcher, rdzv_plugins):
        source = Path(package.__file__).parent
        shutil.copytree(source, copy / source.name, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    return str(copy)


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_node_refuses_at_once_without_the_native_part(
    cluster: Cluster, backend: str, without_native_part: str
) -> None:
    """The second of two nodes, of which the first never comes."""
    agent = cluster.run(
        *("plain.py", "env", "X"),
        backend=backend,
        nnodes=2,
        rank=1 if backend == "static" else None,
        conf="store=parallel,timeout=1000",
        PYTHONPATH=without_native_part,
    )
    assert agent.wait() == 69, agent.text
    assert "rdzv-run: error: the native store is not part of this installation of rdzv-plugins" in agent.text
    assert "--rdzv-conf store=torch" in agent.text
    assert "started" not in agent.text
    assert "joining" not in agent.text
    assert "Traceback" not in agent.text


def test_torchs_store_needs_no_native_part(cluster: Cluster, without_native_part: str) -> None:
    agent = cluster.run("plain.py", "env", "PYTHONPATH", backend="static", PYTHONPATH=without_native_part)
    assert agent.wait() == 0, agent.text
    assert f"PYTHONPATH={without_native_part}" in agent.text
