"""The workers' store: fresh in every round, the native one, or reached by a proxy on each node."""

from __future__ import annotations

import json
import re
import shutil
import sys
from typing import Any

import pytest
from kits.eventually import eventually
from kits.launcher.elastic_kit import Job, Meeting, root_of
from kits.launcher.harness import BIN, FEW_FILES, WORKERS, AgentProcess, Cluster, few_files, file_limit, free_port
from kits.wire import processes
from kits.wire.unix_kit import Reached, reached, unused

from rdzv_launcher.run.supervisor.in_worker import asked, hooked
from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.errors import EndpointUnreachable
from rdzv_plugins.kvstore.native.framing import ask_statistics
from rdzv_plugins.testing.launched import outputs

by_tiered = pytest.mark.parametrize("backend", ["tiered"], indirect=True)


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
        agents = cluster.pair("holds_on.py", backend=backend, restarts=1, conf=f"{conf},worker_ports={port}")
    else:
        agents = [cluster.run("holds_on.py", backend=backend, restarts=1, conf=conf)]
    assert [agent.wait() for agent in agents] == [0] * len(agents), outputs(agents)
    told = [report for agent in agents for report in agent.reports()]
    assert len(told) == len(agents)
    for report in told:
        workers = [key for key in report["KEYS"] if backend != "parallel" or not key.startswith("/agents/")]
        assert workers == [], "the new round's store is empty, but for what the agents of that round use"
        assert report["VALUE"] == "round"
        assert not report["POISONED"], "written from the first round"
        assert report["LEFT_BEHIND"]["told"] == "", "read from the first round"
        assert report["LEFT_BEHIND"].get("again") == ("refused" if ports == "any" else None)
        assert ports == "any" or report["MASTER_PORT"] == port


LIMITS = {"run_sessions": 2, "run_keys": 1234, "watches": 77, "pending_per_address": 99, "handshake_bytes": 2048}


@pytest.mark.parametrize("backend", ["tiered", pytest.param("etcd", marks=pytest.mark.thorough)], indirect=True)
def test_workers_train_over_gloo_by_their_nodes_proxy(meeting: Meeting) -> None:
    """With the limits of the job at everything that it serves."""
    go_on, serves = meeting.directory / "go-on", meeting.backend == "tiered"
    limits = [f"{name}={value}" for name, value in LIMITS.items()] if serves else ["store=tiered"]
    conf = ",".join(["ttl=60", "trunk_grace=60", *limits])
    job = Job(meeting, 2, script="report.py", args=("wait", go_on), nproc=2, conf=conf, flags=["-v"])
    nodes = [job.node(0), job.node(1)]
    for node in nodes:
        node.wait_for(r'("SUM": 6.0[^$]*){2}')
    root = root_of(nodes)
    proxies = [{report["MASTER_PORT"] for report in node.reports()} for node in nodes]
    assert [len(ports) for ports in proxies] == [1, 1]
    assert len({str(root.port), *proxies[0], *proxies[1]}) == 3, "one for each node, and none is the store"
    assert {report["MASTER_ADDR"] for node in nodes for report in node.reports()} == {"127.0.0.1"}

    def keyspace() -> dict[str, Any]:
        (found,) = ask_statistics(root, 60)["keyspaces"]
        return dict(found)

    def is_saved() -> bool:
        """Also: the clients are the proxies and who asks, neither workers nor agents."""
        found = keyspace()
        told = [trunk["report"] for trunk in found["trunks"] if trunk["attached"] and trunk.get("report")]
        names = sorted(trunk["name"].partition(" on ")[0] for trunk in found["trunks"])
        saves = all(0 < report["upstream"] < report["requests"] for report in told)
        workers = len(told) == 2 and all(report["workers"] >= 2 for report in told)  # agents come and go
        return workers and (names, saves, found["connections"]) == (["node 0", "node 1"], True, 3)

    eventually(is_saved, lambda: str(keyspace()))
    if serves:
        for port in (meeting.port, root.port, *map(int, proxies[0] | proxies[1])):
            found = ask_statistics(Endpoint("127.0.0.1", port), 60)["limits"]
            assert {name: found[name] for name in LIMITS} == LIMITS
        assert job.node().wait() == EndpointUnreachable.exit_code, "there are two sessions"

    go_on.touch()
    assert [node.wait() for node in nodes] == [0, 0], outputs(nodes)
    assert meeting.processes() == {}


@by_tiered
def test_in_a_plain_job_nothing_of_ours_is_in_a_worker(meeting: Meeting) -> None:
    meeting.warm = False
    agent = meeting.run("over_socket.py", backend="tiered")
    assert agent.wait() == 0, agent.text
    (report,) = agent.reports()
    assert (report["ours"], report["plain"], report["by"]) == ([], True, ["tcp"])


def test_what_a_job_asks_for_is_in_its_workers_alone(cluster: Cluster) -> None:
    """A Unix socket, and answers to its writes."""
    cluster.warm = False
    agents = cluster.pair("over_socket.py", backend="tiered", conf="worker_transport=unix,answered_writes=true")
    assert [agent.wait() for agent in agents] == [0, 0], outputs(agents)
    told = [report for agent in agents for report in agent.reports()]
    assert [(report["by"], report["plain"], report["sum"]) for report in told] == [(["unix"], False, 1)] * 2
    assert all("rdzv_plugins.torchrun.worker_transport" in report["ours"] for report in told)


def workers_at(server: Reached, *own: dict[str, str]) -> tuple[list[dict[str, Any]], list[str]]:
    """What workers reported that were told this, and what each printed about us."""
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(server.port), "WORLD_SIZE": str(len(own))}
    command = [sys.executable, WORKERS / "over_socket.py"]
    environments = [hooked({"RANK": str(rank), **each, **asked(each)}) for rank, each in enumerate(own)]
    with processes.spawned([command] * len(own), environments, **shared, TORCHELASTIC_USE_AGENT_STORE="True") as there:
        texts = processes.outputs(there)
    found = [json.loads(line) for text in texts for line in text.splitlines() if line.startswith("{")]
    everyone = list(range(len(own)))
    for rank, report in enumerate(found):
        assert (report["rank"], report["sum"], report["all"]) == (rank, sum(everyone), everyone)
        assert report["said"] == [str(each) for each in everyone]
    return found, [line for text in texts for line in text.splitlines() if "rdzv-plugins" in line]


@pytest.mark.thorough
def test_workers_mix_and_one_whose_socket_cannot_be_used_says_so_in_a_line() -> None:
    nobody = unused()
    with reached() as server:
        given = {"RDZV_STORE_SOCKET": server.path, "RDZV_STORE_PORT": str(server.port)}
        found, said = workers_at(server, given, {})
    assert [report["by"] for report in found] == [["unix"], ["tcp"]]
    assert said == []
    with reached() as server:  # rank 1: a job in a job, whose store is not the one that the socket leads to
        given = {"RDZV_STORE_SOCKET": server.path, "RDZV_STORE_PORT": str(server.port)}
        found, said = workers_at(server, given | {"RDZV_STORE_SOCKET": nobody}, given | {"RDZV_STORE_PORT": "1"})
    assert [report["by"] for report in found] == [["tcp"], ["tcp"]]
    (line,) = said
    assert f"127.0.0.1:{server.port}" in line
    assert nobody in line


COMMAND = "torch_npu_run --rdzv_backend=parallel --master_addr=$MASTER_IP_ADDR --master_port=$MASTER_PORT"
SINGLE = f"{COMMAND} --nnodes=1 --nproc_per_node=8 ddp_test.py"
TIERED = (
    f"{COMMAND} --nnodes=2 --node_rank {{rank}} --nproc_per_node=8 --enable_tiered_parallel_tcpstore=true ddp_test.py"
)


def launch(cluster: Cluster, line: str, rank: int) -> AgentProcess:
    shell = f"export MASTER_IP_ADDR=127.0.0.1\nexport MASTER_PORT={cluster.port}\n"
    shell += re.sub(r"^torch_npu_run\b", "exec rdzv-run", line).format(rank=rank)
    return cluster.start(["/bin/bash", "-ec", shell], PATH=f"{BIN}:{cluster.env['PATH']}", RDZV_DEBUG="1")


@pytest.mark.thorough
@pytest.mark.parametrize(("line", "nodes", "tiers"), [(SINGLE, 1, False), (TIERED, 2, True)])
def test_command_line_of_torch_npu_run_runs_as_it_stands(cluster: Cluster, line: str, nodes: int, tiers: bool) -> None:
    """Of its documentation, with rdzv-run in its place: address and port are filled in."""
    shutil.copy(WORKERS / "environ.py", cluster.directory / "ddp_test.py")
    agents = [launch(cluster, line, rank) for rank in range(nodes)]
    assert [agent.wait() for agent in agents] == [0] * nodes, outputs(agents)
    told = [report for agent in agents for report in agent.reports()]
    assert sorted(int(report["RANK"]) for report in told) == list(range(8 * nodes)), outputs(agents)
    for rank, agent in enumerate(agents):
        assert {report["GROUP_RANK"] for report in agent.reports()} == {str(rank)}, "the given rank is honoured"
        assert ("this node's proxy is at 127.0.0.1:" in agent.text) == tiers
    stores = {report["MASTER_PORT"] for report in told}
    assert len(stores) == (nodes if tiers else 1)
    assert str(cluster.port) not in stores
    assert {report.get("RDZV_ROOT_ADDR") for report in told} == {"127.0.0.1" if tiers else None}
