"""rdzv-run imports neither torch nor numpy, through starts, restarts, losses and ends; and what its keeper does."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest
from kits.launcher.elastic_kit import Job, Meeting, in_one_round, outputs, parallel_only
from kits.launcher.harness import Cluster, comm_of, parent_of

HOOK = """
import os, sys

class Refuses:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "numpy"):
            raise AssertionError(f"{name} is imported by an agent")

if "RANK" not in os.environ:  # a worker may
    sys.meta_path.insert(0, Refuses())
"""


@pytest.fixture
def refuses(tmp_path: Path) -> dict[str, str]:
    """Variables of an agent that cannot import torch."""
    place = tmp_path / "refuses"
    place.mkdir()
    (place / "sitecustomize.py").write_text(HOOK)
    return {"PYTHONPATH": str(place)}


def test_refusal_works(cluster: Cluster, refuses: dict[str, str]) -> None:
    agent = cluster.run("plain.py", "env", "RANK", backend="c10d", **refuses)
    assert agent.wait() != 0
    assert "is imported by an agent" in agent.text


def test_static(cluster: Cluster, refuses: dict[str, str]) -> None:
    """A crash, a restart, and the end by a failure; then one that ends well."""
    options = ["--tee=3", "--redirects=3", f"--log-dir={cluster.directory}/logs"]
    agent = cluster.run("plain.py", "fail", 4, nproc=2, restarts=1, options=options, **refuses)
    assert agent.wait() == 4, agent.text
    assert "restart 1 of 1" in agent.text
    agent = cluster.run("plain.py", "env", "WORLD_SIZE", nproc=2, options=options, **refuses)
    assert agent.wait() == 0, agent.text
    assert agent.text.count("WORLD_SIZE=2") == 2


@parallel_only  # over etcd the same agent
def test_elastic(meeting: Meeting, refuses: dict[str, str]) -> None:
    """Rank 0's node is lost, and with it the store of the other's worker; another comes, and all ends well."""
    meeting.serve()
    job = Job(meeting, "1:2", script="meets.py", conf="last_call_timeout=80")
    first, second = job.node(0, **refuses), job.node(1, **refuses)
    in_one_round(first, second)
    job.kill_node(first)
    in_one_round(second)
    third = job.node(0, **refuses)
    in_one_round(third, second)
    job.finish(third, second)
    assert "is imported by an agent" not in outputs([first, second, third])


def keeper_of(cluster: Cluster, agent: int) -> int:
    (keeper,) = (
        pid
        for pid in map(int, filter(str.isdecimal, os.listdir("/proc")))
        if parent_of(pid) == agent and comm_of(pid) == "rdzv-keeper"
    )
    return keeper


def test_a_keeper_that_is_killed_takes_the_workers_along_and_is_replaced(cluster: Cluster) -> None:
    """It is told, and uses up a restart, like any other death of all workers."""
    stop = cluster.directory / "stop"
    agent = cluster.run("says.py", stop, 0, nproc=2, restarts=1)
    agent.wait_for('(?s)"PID".*"PID"')
    workers = cluster.workers(agent, "says.py")
    os.kill(keeper_of(cluster, agent.pid), signal.SIGKILL)
    agent.wait_for(r"the process that keeps this node's workers \(pid \d+\) was ended by SIGKILL")
    agent.wait_for('(?s)"TORCHELASTIC_RESTART_COUNT": "1".*"TORCHELASTIC_RESTART_COUNT": "1"')
    assert not set(workers) & set(cluster.processes())
    stop.touch()
    assert agent.wait() == 0, agent.text


@pytest.mark.thorough
def test_preloaded_workers_run_as_if_they_were_not(cluster: Cluster) -> None:
    """Of every round; where it cannot be done, workers start as always, and it is said why."""
    shown = {}
    for preload in ("", "--preload=csv", "--preload=no_such_module"):
        agent = cluster.run("preloads.py", "a", nproc=2, restarts=1, options=[preload] if preload else [])
        assert agent.wait() == 3, agent.text
        shown[preload] = re.findall(r"^has (.*)$", agent.text, re.MULTILINE)
        assert len(shown[preload]) >= 2, agent.text
        assert ("no_such_module could not be imported" in agent.text) == ("no_such" in preload), agent.text
    assert {line.partition(" ")[0] for line in shown["--preload=csv"]} == {"csv"}
    rest = {preload: {line.partition(" ")[2] for line in lines} for preload, lines in shown.items()}
    assert rest[""] == rest["--preload=csv"] == rest["--preload=no_such_module"]
    assert {line.partition(" ")[0] for line in [*shown[""], *shown["--preload=no_such_module"]]} == {"nothing"}
