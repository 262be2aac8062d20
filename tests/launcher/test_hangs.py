"""--hang-timeout: real jobs that hang, each in another way, and one that only takes long."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from kits.launcher.harness import Cluster

pytestmark = pytest.mark.thorough

HANGS = {
    1: (1, "stop_here", "is stopped at stands.py:"),
    2: (2, "endless_loop", "runs at stands.py:"),
    3: (0, "wait_for_lock", "is at stands.py:"),
    4: (1, "wait_for_child", "is in run, called at stands.py:"),
    5: (2, "skip_collective", "is in barrier, called at stands.py:"),
}
"""By round: the rank that is different, what it does, and what is said of it."""


def test_each_hang_is_named_and_the_job_restarts_until_none_is_left(cluster: Cluster, tmp_path: Path) -> None:
    """On every screen the summary of the last one is the last that is said, and every node has stored its stacks."""
    places = [f"{rank}@{round_}={place}" for round_, (rank, place, _) in HANGS.items()]
    options = ["--shutdown-timeout=2", "--hang-timeout=2", "--preload=quick_torch,torch.distributed"]
    agents = [
        cluster.run(
            "stands.py",
            *places,
            backend="parallel",
            nnodes=2,
            nproc=nproc,
            restarts=9,
            conf="job_restarts=4,restart_delay=0,linger=30",
            options=[*options, f"--log-dir={tmp_path / str(node)}"],
            PYTHONPATH=str(cluster.script("")),
        )
        for node, nproc in enumerate((1, 2))
    ]
    assert [agent.wait(240) for agent in agents] == [80, 80], "\n".join(agent.text for agent in agents)
    both = "\n".join(agent.text for agent in agents)
    who = r"(\d\d:\d\d:\d\d) rdzv-run error: rank (\d) \(node \d on .*?, pid (\d+)\)"
    error = rf"{who} (.*), and no worker of the job has made"
    found = sorted(re.findall(error, both), key=lambda each: each[0])  # either node may be the one that says it
    named = {pid: (rank, said) for _, rank, pid, said in found}.values()
    assert [(int(rank), said[: len(HANGS[each][2])]) for each, (rank, said) in enumerate(named, 1)] == [
        (rank, said) for rank, _, said in HANGS.values()
    ]
    for node, agent in enumerate(agents):
        assert "rank 2 (node " in agent.text.rpartition("rdzv-run: the job failed: it hung.\n")[2]
        stored = [path.read_text() for path in (tmp_path / str(node)).rglob("stacks-*.log")]
        assert sum("hang" in text.partition("\n")[0] for text in stored) >= len(HANGS)
        assert any("in stop_here" in text for text in stored)


def test_what_takes_longer_than_the_time_out_is_no_hang(cluster: Cluster) -> None:
    agents = cluster.pair("takes_long.py", 5, backend="parallel", conf="hang_timeout=3.5,linger=30")
    assert [agent.wait(240) for agent in agents] == [0, 0], "\n".join(agent.text for agent in agents)
