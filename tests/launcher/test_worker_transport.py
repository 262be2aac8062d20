"""Unmodified scripts on the Unix socket of their node's proxy, and everything that must not change for others."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
from kits.launcher.harness import WORKERS, Cluster
from kits.wire.processes import outputs, spawned
from kits.wire.unix_kit import Reached, reached, unused

from rdzv_launcher.run.keeper.in_worker import asked, hooked


def job(server: Reached, *own: dict[str, str]) -> tuple[list[dict[str, Any]], list[str]]:
    """What the workers of a job reported, and all that they printed."""
    shared = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(server.port),
        "WORLD_SIZE": str(len(own)),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }
    command = [sys.executable, WORKERS / "over_socket.py"]
    environments = [hooked({"RANK": str(rank), **each, **asked(each)}) for rank, each in enumerate(own)]
    with spawned([command] * len(own), environments, **shared) as workers:
        texts = outputs(workers)
    reports = [json.loads(line) for text in texts for line in text.splitlines() if line.startswith("{")]
    assert len(reports) == len(own), texts
    for rank, report in enumerate(reports):
        everyone = list(range(len(own)))
        assert report["rank"] == rank
        assert report["sum"] == sum(everyone)
        assert report["all"] == everyone
        assert report["said"] == [str(each) for each in everyone]
    return reports, texts


@pytest.mark.thorough
def test_unmodified_workers_use_the_socket_and_mix_with_others() -> None:
    with reached() as server:
        given = {"RDZV_STORE_SOCKET": server.path, "RDZV_STORE_PORT": str(server.port)}
        reports, texts = job(server, given, {})
    assert [report["by"] for report in reports] == [["unix"], ["tcp"]]
    assert not any("rdzv-plugins" in text for text in texts)


@pytest.mark.thorough
def test_a_socket_that_cannot_be_used_is_one_line_and_loopback() -> None:
    nobody = unused()
    with reached() as server:
        # rank 1: a job in a job, whose store is not the one that the socket leads to
        unusable = {"RDZV_STORE_SOCKET": nobody, "RDZV_STORE_PORT": str(server.port)}
        reports, texts = job(server, unusable, {"RDZV_STORE_SOCKET": server.path, "RDZV_STORE_PORT": "1"})
        where = f"127.0.0.1:{server.port}"
    assert [report["by"] for report in reports] == [["tcp"], ["tcp"]]
    said = [[line for line in text.splitlines() if "rdzv-plugins" in line] for text in texts]
    assert [len(each) for each in said] == [1, 0]
    assert all(each in said[0][0] for each in (where, nobody))


@pytest.mark.parametrize("backend", ["static", "tiered"])
def test_in_a_plain_job_nothing_of_ours_is_in_a_worker(backend: str, cluster: Cluster) -> None:
    cluster.warm = False
    agent = cluster.run("plain_modules.py", backend=backend, nproc=2)
    assert agent.wait() == 0, agent.text
    assert [report["ours"] for report in agent.reports()] == [[], []]
    assert [report["plain"] for report in agent.reports()] == [True, True]


def test_what_a_job_asks_for_is_in_its_workers_alone(cluster: Cluster) -> None:
    cluster.warm = False
    conf = "worker_transport=unix,answered_writes=true"
    agent = cluster.run("plain_modules.py", backend="tiered", conf=conf)
    assert agent.wait() == 0, agent.text
    (report,) = agent.reports()
    assert not report["plain"]
    assert "rdzv_plugins.torch_bridge.worker_transport" in report["ours"]


def test_agents_give_their_workers_a_socket(cluster: Cluster) -> None:
    agents = cluster.pair("over_socket.py", backend="tiered", conf="store=tiered,worker_transport=unix")
    assert [agent.wait() for agent in agents] == [0, 0], agents[0].text + agents[1].text
    reports = [report for agent in agents for report in agent.reports()]
    assert [report["by"] for report in reports] == [["unix"]] * len(reports)
