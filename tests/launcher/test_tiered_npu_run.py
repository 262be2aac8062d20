"""torch_npu_run's own examples as they stand, with rdzv-run in its place: script, address and port are filled in.

Its documentation has a single node, two nodes, and two nodes with tiers; a single node with tiers is ours.
"""

from __future__ import annotations

import re
import shutil
from typing import Any

import pytest
from kits import TESTS
from kits.launcher.elastic_kit import outputs
from kits.launcher.harness import BIN, WORKERS, Agent, Cluster

pytestmark = pytest.mark.thorough

ENVIRONMENT = """
export MASTER_IP_ADDR={address}
export MASTER_PORT={port}
"""
COMMAND = "torch_npu_run --rdzv_backend=parallel --master_addr=$MASTER_IP_ADDR --master_port=$MASTER_PORT"
SINGLE = f"{COMMAND} --nnodes=1 --nproc_per_node=8 ddp_test.py"
TWO_TIERED = (
    f"{COMMAND} --nnodes=2 --node_rank {{rank}} --nproc_per_node=8 --enable_tiered_parallel_tcpstore=true ddp_test.py"
)


def launch(cluster: Cluster, line: str, rank: int) -> Agent:
    shell = ENVIRONMENT.format(address="127.0.0.1", port=cluster.port)
    shell += re.sub(r"^torch_npu_run\b", "exec rdzv-run", line).format(rank=rank)
    path = f"{BIN}:{cluster.env['PATH']}"
    return cluster.start(["/bin/bash", "-ec", shell], PATH=path, PYTHONPATH=str(TESTS), RDZV_DEBUG="1")


@pytest.mark.parametrize(("line", "nodes", "tiers"), [(SINGLE, 1, False), (TWO_TIERED, 2, True)])
def test_command_line_runs_as_it_stands(cluster: Cluster, line: str, nodes: int, tiers: bool) -> None:
    shutil.copy(WORKERS / "ddp_test.py", cluster.directory)
    agents = [launch(cluster, line, rank) for rank in range(nodes)]
    assert [agent.wait(200) for agent in agents] == [0] * nodes, outputs(agents)
    reports: list[dict[str, Any]] = [report for agent in agents for report in agent.reports()]
    world = 8 * nodes
    assert sorted(int(report["RANK"]) for report in reports) == list(range(world)), outputs(agents)
    assert {report["TOTAL"] for report in reports} == {sum(range(world))}
    assert [report["GLOO"] for report in reports if "GLOO" in report] == [2.0, 2.0]
    for rank, agent in enumerate(agents):
        assert {report["GROUP_RANK"] for report in agent.reports()} == {str(rank)}, "the given rank is honoured"
        assert ("this node's proxy is at 127.0.0.1:" in agent.text) == tiers
    stores = {report["MASTER_PORT"] for report in reports}
    assert len(stores) == (nodes if tiers else 1)
    assert str(cluster.port) not in stores
    assert {report["ROOT"] for report in reports} == ({"127.0.0.1"} if tiers else {"none"})
    assert cluster.processes() == {}
