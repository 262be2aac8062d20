"""Launches without flags, as a scheduler starts them: real agents and workers, with the variables of its tasks.

The agents have no terminal, as slurmstepd starts a task: those of tests are forks of a program in a session of its own.
"""

from __future__ import annotations

import json
import re
import socket
import sys

import pytest
from kits.launcher.harness import Agent, Cluster

pytestmark = pytest.mark.thorough

SHELL = (sys.executable, "-c", "import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))")
"""On a terminal of its own."""


def step(cluster: Cluster, node: int, **also: str) -> dict[str, str]:
    """The variables of a task of srun, on one of two nodes; both are this machine."""
    here = socket.gethostname()
    return {
        "SLURM_JOB_ID": str(cluster.port),  # the derived port, too, is one of this test
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NUM_NODES": "2",
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_STEP_NODELIST": f"{here},{here}",
        "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
        "SLURM_PROCID": str(node),
        "SLURM_NODEID": str(node),
        "SLURM_LOCALID": "0",
    } | also


def told(agent: Agent) -> list[dict[str, str]]:
    """What the workers of an agent were given."""
    return [json.loads(line) for line in re.findall(r"^\{.*\}$", agent.text, re.MULTILINE)]


@pytest.mark.parametrize("backend", [[], ["--rdzv-backend=parallel"]], ids=["static", "parallel"])
def test_tasks_of_a_step_meet_without_flags(cluster: Cluster, backend: list[str]) -> None:
    agents = [
        cluster.start(
            ["rdzv-run", *backend, cluster.script("report.py")],
            **step(cluster, node, SLURM_GPUS_ON_NODE=str(node + 1)),
        )
        for node in (0, 1)
    ]
    for node, agent in enumerate(agents):
        assert agent.wait() == 0, agent.text
        assert [(each["WORLD_SIZE"], each["GROUP_RANK"]) for each in told(agent)] == [("3", str(node))] * (node + 1)
        assert told(agent)[0]["TORCHELASTIC_RUN_ID"] == f"slurm-{cluster.port}.0-0"


def test_in_a_shell_of_a_step_a_launch_stays_on_its_machine(cluster: Cluster) -> None:
    agent = cluster.start(["rdzv-run", cluster.script("asked.py")], before=SHELL, **step(cluster, 1))
    assert agent.wait() == 0, agent.text
    assert '"WORLD_SIZE": "1"' in agent.text
    assert "slurm" not in agent.text


def test_one_task_of_a_node_is_its_agent_and_the_others_end(cluster: Cluster) -> None:
    one_node = {
        "SLURM_STEP_NUM_NODES": "1",
        "SLURM_STEP_NODELIST": socket.gethostname(),
        "SLURM_STEP_TASKS_PER_NODE": "2",
    }
    agents = [
        cluster.start(
            ["rdzv-run", cluster.script("report.py")],
            **step(cluster, 0, SLURM_PROCID=str(task), SLURM_LOCALID=str(task), **one_node),
        )
        for task in (0, 1)
    ]
    assert [agent.wait() for agent in agents] == [0, 0], [agent.text for agent in agents]
    assert sorted(each["LOCAL_RANK"] for each in told(agents[0])) == ["0", "1"]
    assert told(agents[1]) == []


def test_plain_torchrun_meets_where_the_step_says(cluster: Cluster) -> None:
    """torchrun has the number of nodes and of workers; the place and the rank come from the plug-in."""
    stop = cluster.directory / "stop"
    stop.touch()  # the workers meet in their store, and end
    worker = [cluster.script("meets.py"), stop]
    agents = [
        cluster.start(
            ["torchrun", "--rdzv-backend=rdzv-plugins.parallel", "--nnodes=2", *worker], **step(cluster, node)
        )
        for node in (0, 1)
    ]
    for node, agent in enumerate(agents):
        assert agent.wait() == 0, agent.text
        assert [(each["WORLD_SIZE"], each["GROUP_RANK"]) for each in told(agent)] == [("2", str(node))]
