"""A fresh keyspace every round: no rank ever meets a key of an earlier one. And the harness can fail."""

from __future__ import annotations

from pathlib import Path

import pytest
from kits.launcher.harness import WORKERS, Cluster

pytestmark = pytest.mark.thorough


def read(log: Path) -> list[str]:
    return log.read_text().splitlines()


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("backend", "store", "restarts"),
    [
        ("static", "torch", 4),
        ("c10d", "torch", 4),
        ("parallel", "parallel", 5),
    ],
)  # torch's own fails in two of three restarts: what was as wrong would pass four of them once in eighty runs
def test_no_restart_meets_a_stale_key(cluster: Cluster, backend: str, store: str, restarts: int) -> None:
    log, rounds, conf = cluster.directory / "rounds", restarts + 1, f"store={store}"
    agents = cluster.pair("stale.py", log, rounds, 60, backend=backend, restarts=3 * rounds, conf=conf)
    assert [agent.wait(800) for agent in agents] == [0, 0], agents[0].text
    # one more than asked for where gloo reports the peer that has just succeeded, and left, as lost
    assert set(read(log)) == {"ok"}
    assert len(read(log)) >= rounds


@pytest.mark.timeout(600)
def test_the_same_harness_makes_plain_torchrun_fail(cluster: Cluster) -> None:
    log = cluster.directory / "rounds"
    common = ["torchrun", "--nnodes=2", "--max-restarts=12", "--rdzv-backend=c10d"]
    agents = [
        cluster.start([*common, f"--rdzv-endpoint={cluster.endpoint}", WORKERS / "stale.py", log, 12, 6])
        for _ in range(2)
    ]
    ended = "torch has repaired it: is FreshDynamicHandler still needed?"
    for agent in agents:
        agent.wait(500)
    assert "failed" in log.read_text(), f"{ended}\n{agents[0].text}"
