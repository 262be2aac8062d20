"""Standard streams that are not what one expects: gone, closed, non-blocking, or kept by a process left behind."""

from __future__ import annotations

import os
import signal
import subprocess

import pytest
from kits.launcher.harness import BIN, Cluster

pytestmark = pytest.mark.thorough


def run_in_shell(cluster: Cluster, command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, env=cluster.env, cwd=cluster.directory, check=False
    )


def test_exit_code_survives_a_reader_that_has_gone(cluster: Cluster) -> None:
    command = f"{BIN}/rdzv-run {cluster.script('plain.py')} fail 7 2> >(exec 0<&-; sleep 0)"
    assert run_in_shell(cluster, command).returncode == 7


def test_closed_stderr_is_not_somebody_elses_socket(cluster: Cluster) -> None:
    command = f"{BIN}/rdzv-run {cluster.script('plain.py')} fail 7 2>&-"
    ended = run_in_shell(cluster, command)
    assert ended.returncode == 7
    assert ended.stdout == "started rank 0\n", "and stdout has no part of it"


def test_stuck_non_blocking_stderr_does_not_keep_the_agent(cluster: Cluster) -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with open(writer, "wb") as stderr:
        agent = cluster.start(["rdzv-run", cluster.script("plain.py"), "flood"], stderr=stderr)
        agent.wait_for("ready")
        os.kill(agent.pid, signal.SIGTERM)
        assert agent.wait() == 143
    os.close(reader)
    assert cluster.processes() == {}


def test_process_left_behind_by_a_worker_may_go_on_writing(cluster: Cluster) -> None:
    """As under torchrun: a logging helper outlives the restart of the worker that started it."""
    agent = cluster.run("leaves_child.py", restarts=1)
    assert agent.wait() == 0, agent.text
    assert (cluster.directory / "child").read_text() == "ok"
    assert "from the child" in agent.text
