"""Several nodes at 127.0.0.1: agents on one machine, or a mistake that would train once on each of several."""

from __future__ import annotations

import pytest
from kits.launcher.harness import Cluster

WARNING = "nodes, and none on another machine can join it"


@pytest.mark.parametrize("backend", ["parallel", "c10d"])
def test_a_round_with_room_that_no_other_machine_can_join(cluster: Cluster, backend: str) -> None:
    agent = cluster.run("plain.py", "env", "RANK", backend=backend, nnodes="1:2", conf="last_call_timeout=1")
    assert agent.wait() == 0, agent.text
    said = f"warning: this round has 1 of 1:2 {WARNING}: there, {cluster.endpoint} is a job of its own"
    assert agent.text.count(said) == 1, agent.text


def test_agents_on_one_machine_hear_nothing_of_it(cluster: Cluster) -> None:
    """All are there, and then one is lost."""
    agents = [
        cluster.run("trains.py", cluster.directory / "stop", backend="parallel", nnodes="1:2", rank=rank)
        for rank in (0, 1)
    ]
    for agent in agents:
        agent.wait_for('"WORLD_SIZE": "2"')
    other, stays = sorted(agents, key=cluster.listens)
    cluster.kill(other.pid)
    stays.wait_for('"WORLD_SIZE": "1"')
    (cluster.directory / "stop").touch()
    assert stays.wait() == 0, stays.text
    assert WARNING not in stays.text + other.text


@pytest.mark.parametrize(("machines", "code"), [("2", 2), ("1", 0)])
def test_srun_on_several_machines_is_refused(cluster: Cluster, machines: str, code: int) -> None:
    options = {"backend": "parallel", "nnodes": "1:2", "conf": "last_call_timeout=1", "rank": 0}
    agent = cluster.run("plain.py", "env", "RANK", **options, SLURM_STEP_NUM_NODES=machines, SLURM_JOB_NUM_NODES="2")
    assert agent.wait() == code, agent.text
    assert (f"srun has started this command on 2 machines, and {cluster.endpoint} is" in agent.text) == (code == 2)
    assert ("rdzv-run: Give --rdzv-endpoint=HOST:PORT, the same on all" in agent.text) == (code == 2)
