"""Two agents by two workers over gloo: ranks, sizes, addresses; restarts; joining; ends.

With a worker each, and given ranks, by every backend: the conformance suite's launches.
"""

from __future__ import annotations

import pytest
from kits.launcher.harness import WORKERS, Agent, Cluster, free_port


def check_world(agents: list[Agent], nodes: int, nproc: int, *, before: int = 0) -> list[dict[str, str]]:
    """All ranks, sizes and addresses are right in the last round, or as many before it; its reports by rank."""
    ends = [len(agent.reports()) - before * nproc for agent in agents]
    reports = [r for agent, end in zip(agents, ends, strict=True) for r in agent.reports()[end - nproc : end]]
    world = nodes * nproc
    reports.sort(key=lambda r: int(r["RANK"]))
    assert [r["RANK"] for r in reports] == [str(rank) for rank in range(world)]
    assert {r["SUM"] for r in reports} == {sum(range(world))}
    for report in reports:
        rank = int(report["RANK"])
        assert report["WORLD_SIZE"] == report["ROLE_WORLD_SIZE"] == str(world)
        assert report["LOCAL_WORLD_SIZE"] == str(nproc)
        assert report["LOCAL_RANK"] == str(rank % nproc)
        assert report["GROUP_RANK"] == str(rank // nproc)
        assert report["GROUP_WORLD_SIZE"] == str(nodes)
        assert report["ROLE_RANK"] == str(rank)
        assert report["MASTER_ADDR"] == "127.0.0.1"
    assert len({r["MASTER_PORT"] for r in reports}) == 1
    return reports


@pytest.mark.parametrize("ours_first", [True, pytest.param(False, marks=pytest.mark.thorough)])
def test_c10d_with_a_plain_torchrun_node(cluster: Cluster, ours_first: bool) -> None:
    def ours() -> Agent:
        return cluster.run("report.py", backend="c10d", nnodes=2, nproc=2)

    def plain() -> Agent:
        backend = ["--rdzv-backend=c10d", f"--rdzv-endpoint={cluster.endpoint}"]
        return cluster.start(["torchrun", "--nnodes=2", "--nproc-per-node=2", *backend, WORKERS / "report.py"])

    first = ours() if ours_first else plain()
    agents = [first, plain() if ours_first else ours()]
    assert [agent.wait() for agent in agents] == [0, 0], agents[0].text + agents[1].text
    reports = [r for agent in agents for r in agent.reports()]
    assert sorted(r["RANK"] for r in reports) == ["0", "1", "2", "3"]
    assert {r["SUM"] for r in reports} == {6.0}
    assert len({(r["MASTER_ADDR"], r["MASTER_PORT"]) for r in reports}) == 1


@pytest.mark.parametrize("backend", ["static", "c10d", "parallel"])
def test_two_agents_by_two_workers_and_a_crash_restarts_all_in_one_fresh_round(cluster: Cluster, backend: str) -> None:
    options = ["--rdzv-id=job7"]
    agents = cluster.pair("report.py", "crash", 1, 3, backend=backend, nproc=2, restarts=1, options=options)
    assert [agent.wait() for agent in agents] == [0, 0], agents[0].text + agents[1].text
    assert [len(agent.reports()) for agent in agents] == [4, 4]
    rounds = [check_world(agents, 2, 2, before=before) for before in (1, 0)]
    assert {r["TORCHELASTIC_RUN_ID"] for reports in rounds for r in reports} == {"job7"}
    ports = {r["MASTER_PORT"] for reports in rounds for r in reports}
    assert len(ports) == 2, "each round has a store of its own"
    assert cluster.processes() == {}


@pytest.mark.thorough
def test_a_third_node_joins_and_everyone_restarts_at_three(cluster: Cluster) -> None:  # by c10d
    go_on = cluster.directory / "go-on"
    conf = "last_call_timeout=10"
    agents = [cluster.run("report.py", "wait", go_on, backend="c10d", nnodes="2:3", conf=conf) for _ in range(2)]
    for agent in agents:
        agent.wait_for(r'"WORLD_SIZE": "2"')
    third = cluster.run("report.py", "wait", go_on, backend="c10d", nnodes="2:3", conf=conf)
    for agent in [*agents, third]:
        agent.wait_for(r'"WORLD_SIZE": "3"')
    go_on.touch()
    assert [agent.wait() for agent in [*agents, third]] == [0, 0, 0]
    check_world([*agents, third], 3, 1)


@pytest.mark.thorough
def test_static_agent_started_again_takes_its_old_place(cluster: Cluster) -> None:
    go_on = cluster.directory / "go-on"
    conf = "linger=5"  # in the end the host waits in vain for the one that was killed
    first, second = cluster.pair("report.py", "wait", go_on, backend="static", restarts=3, conf=conf)
    for agent in (first, second):
        agent.wait_for(r'"WORLD_SIZE": "2"')
    for pid in (second.pid, *cluster.workers(second, "report.py")):
        cluster.kill(pid)
    again = cluster.run("report.py", "wait", go_on, backend="static", nnodes=2, rank=1, restarts=3)
    report = again.wait_for(r'\{"RANK": "(\d)"')
    assert report.group(1) == "1"
    go_on.touch()
    assert [first.wait(), again.wait()] == [0, 0], first.text + again.text
    assert {r["MASTER_PORT"] for r in again.reports()} == {first.reports()[-1]["MASTER_PORT"]}


@pytest.mark.thorough
def test_node_that_is_done_runs_again_with_the_one_that_is_not(cluster: Cluster) -> None:
    agents = cluster.pair("uneven.py", backend="static", restarts=1)
    assert [agent.wait() for agent in agents] == [0, 0], agents[0].text + agents[1].text
    assert [agent.text.count("joined") for agent in agents] == [2, 2]


@pytest.mark.thorough
def test_c10d_on_a_shared_file(cluster: Cluster) -> None:
    backend = ["--rdzv-backend=c10d", f"--rdzv-endpoint={cluster.directory}/state", "--rdzv-conf=store_type=file"]
    command = ["rdzv-run", "--nnodes=2", *backend, "--local-addr=127.0.0.1", cluster.script("report.py")]
    agents = [cluster.start([*command, "late", "2"]) for _ in range(2)]
    assert [agent.wait() for agent in agents] == [0, 0], agents[0].text + agents[1].text
    check_world(agents, 2, 1)


@pytest.mark.parametrize(
    "backend", ["parallel", *(pytest.param(x, marks=pytest.mark.thorough) for x in ("static", "c10d"))]
)
def test_worker_ports_confine_the_workers_store(cluster: Cluster, backend: str) -> None:
    port = free_port()
    agents = cluster.pair("report.py", "crash", 0, 3, backend=backend, restarts=1, conf=f"worker_ports={port}")
    assert [agent.wait() for agent in agents] == [0, 0], agents[0].text + agents[1].text
    assert {r["MASTER_PORT"] for agent in agents for r in agent.reports()} == {str(port)}
