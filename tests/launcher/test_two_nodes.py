"""Two agents by two workers over gloo: ranks, sizes, addresses, a restart in a fresh store; by rdzv-run and torchrun.

With a worker each, and given ranks, by every backend: the conformance suite's launches.
"""

from __future__ import annotations

import re

import pytest
from kits.launcher.harness import Agent, Cluster


def check_world(reports: list[dict[str, str]], nodes: int, nproc: int) -> str:
    """All ranks, sizes and addresses of a round are right; returns the port of its store."""
    world = nodes * nproc
    shared = {"WORLD_SIZE": world, "ROLE_WORLD_SIZE": world, "LOCAL_WORLD_SIZE": nproc, "GROUP_WORLD_SIZE": nodes}
    for rank, report in enumerate(sorted(reports, key=lambda each: int(each["RANK"]))):
        own = {"RANK": rank, "ROLE_RANK": rank, "LOCAL_RANK": rank % nproc, "GROUP_RANK": rank // nproc}
        expected = {name: str(value) for name, value in (shared | own).items()} | {"MASTER_ADDR": "127.0.0.1"}
        assert {name: report[name] for name in expected} == expected
        assert report["SUM"] == sum(range(world))
    assert len(reports) == world
    (port,) = {report["MASTER_PORT"] for report in reports}
    return port


@pytest.mark.parametrize("backend", ["static", "c10d", "parallel"])
def test_two_agents_by_two_workers_and_a_crash_restarts_all_in_one_fresh_round(cluster: Cluster, backend: str) -> None:
    options = ["--rdzv-id=job7"]
    agents = cluster.pair("report.py", "crash", 1, 3, backend=backend, nproc=2, restarts=1, options=options)
    assert [agent.wait() for agent in agents] == [0, 0], agents[0].text + agents[1].text
    assert [len(agent.reports()) for agent in agents] == [4, 4]
    rounds = [[r for agent in agents for r in agent.reports()[first : first + 2]] for first in (0, 2)]
    assert {report["TORCHELASTIC_RUN_ID"] for reports in rounds for report in reports} == {"job7"}
    assert len({check_world(reports, 2, 2) for reports in rounds}) == 2, "each round has a store of its own"
    assert cluster.processes() == {}


def torchrun(cluster: Cluster, backend: str, *script: object, conf: str = "") -> Agent:
    command = ["torchrun", "--nnodes=2", "--max-restarts=1", f"--rdzv-backend=rdzv-plugins.{backend}"]
    command += [f"--rdzv-endpoint={cluster.endpoint}", *([f"--rdzv-conf={conf}"] if conf else [])]
    name, *args = script
    return cluster.start([*command, cluster.script(str(name)), *args])


@pytest.mark.parametrize("backend", ["parallel", pytest.param("static", marks=pytest.mark.thorough)])
def test_our_backends_from_plain_torchrun(cluster: Cluster, backend: str) -> None:
    confs = [f"rank={rank}" if backend == "static" else "" for rank in (0, 1)]
    agents = [torchrun(cluster, backend, "report.py", "crash", 1, 3, conf=conf) for conf in confs]
    assert [agent.wait() for agent in agents] == [0, 0], agents[0].text + agents[1].text
    ports = [[report["MASTER_PORT"] for report in agent.reports()] for agent in agents]
    assert ports[0] == ports[1]
    assert len(set(ports[0])) == 2, "a store of its own for each round"


@pytest.mark.thorough
def test_static_from_torchrun_needs_a_rank_and_says_how_to_give_it(cluster: Cluster) -> None:
    """At the end of a traceback that is torch's, down to where it calls us."""
    cluster.warm = False
    agent = torchrun(cluster, "static", "plain.py", "sleep")
    assert agent.wait() != 0
    assert "rank=0" in agent.text.splitlines()[-1]
    assert len(re.findall(r'^  File ".*/rdzv_plugins/', agent.text, re.MULTILINE)) <= 1, agent.text


@pytest.mark.thorough
def test_a_failed_node_of_plain_torchrun_ends_the_job_of_the_other(cluster: Cluster) -> None:
    command = ["torchrun", "--nnodes=2", "--rdzv-backend=rdzv-plugins.parallel", f"--rdzv-endpoint={cluster.endpoint}"]
    scripts = ("sleep 1; exit 3", "sleep 600")
    agents = [cluster.start([*command, "--no-python", "/bin/sh", "-c", script]) for script in scripts]
    assert [agent.wait() for agent in agents] == [1, 1], agents[0].text + agents[1].text
    assert "PeerFailed" in agents[1].text
    cluster.check_gone()
