"""--rdzv-conf store=parallel: the workers' store is the native one, fresh in every round, and ends with the agent."""

from __future__ import annotations

import pytest
from kits.launcher.harness import FEW_FILES, Cluster, few_files, file_limit, free_port

from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.kvstore.native.framing import ask_statistics


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
    stats = ask_statistics(Endpoint(report["MASTER_ADDR"], int(report["MASTER_PORT"])), 60)
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
