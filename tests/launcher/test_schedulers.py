"""Launches without flags, as a scheduler starts them: real agents and workers, with the variables of its tasks.

The agents have no terminal, as slurmstepd starts a task: those of tests are forks of a program in a session of its own.
"""

from __future__ import annotations

import json
import re
import socket

import pytest
from kits.launcher.harness import Agent, Cluster

pytestmark = pytest.mark.thorough


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
