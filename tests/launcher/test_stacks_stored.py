"""Where workers are is stored before they are killed, and when others wait for them in vain."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from kits.launcher.harness import Agent, Cluster

from rdzv_plugins.errors import Preempted

pytestmark = pytest.mark.thorough


def stored(agent: Agent) -> str:
    """The text of the file that it names."""
    return Path(agent.wait_for(r"where they are is in (\S+\.log): ")[1]).read_text()


def test_a_worker_that_does_not_end_is_stored_before_it_is_killed(cluster: Cluster, tmp_path: Path) -> None:
    agent = cluster.run(
        "stands.py",
        "--plain",
        "1=ignore_sigterm",
        nproc=2,
        options=["--shutdown-timeout=20", f"--log-dir={tmp_path / 'logs'}"],
    )
    agent.wait_for("rank 0 stands")
    agent.wait_for("rank 1 stands")
    os.kill(agent.pid, signal.SIGTERM)
    assert agent.wait() == 128 + signal.SIGTERM, agent.text
    text = stored(agent)
    assert "in ignore_sigterm" in text
    assert "rank 0 (node 0" in text
    assert list((tmp_path / "logs").rglob("stacks-*.log"))


def test_a_worker_that_outlives_a_notice_is_stored_before_its_grace_ends(cluster: Cluster, tmp_path: Path) -> None:
    options = ["--shutdown-timeout=600", "--preempt-grace=20", f"--log-dir={tmp_path / 'logs'}"]
    agent = cluster.run("stands.py", "--plain", "0=ignore_sigterm", options=options)
    agent.wait_for("rank 0 stands")
    os.kill(agent.pid, signal.SIGTERM)
    agent.wait_for("lose node 0")
    os.kill(agent.pid, signal.SIGTERM)  # it is not to wait until there is time left to save
    assert "in ignore_sigterm" in stored(agent)
    assert agent.wait() == Preempted.exit_code, agent.text


def test_who_waits_too_long_in_the_exit_barrier_stores_where_the_others_are(cluster: Cluster, tmp_path: Path) -> None:
    options = ["--exit-barrier-timeout=12", f"--log-dir={tmp_path / 'logs'}"]
    agents = [
        cluster.run(
            "stands.py", "--plain", "0=end", "1=wait_for_lock", backend="parallel", nnodes=2, rank=rank, options=options
        )
        for rank in range(2)
    ]
    assert "in wait_for_lock" in stored(agents[0])
