"""torch's debug server, which workers start, finds all ranks by the store at MASTER_ADDR: here their node's proxy."""

from __future__ import annotations

import re

import pytest
from kits.launcher.elastic_kit import Meeting, outputs
from kits.launcher.tiered_kit import tiered

from rdzv_plugins.testing.harness import free_port

pytestmark = pytest.mark.thorough


@pytest.mark.parametrize("backend", ["tiered"], indirect=True)
def test_it_shows_the_ranks_and_the_keys_of_all_nodes(meeting: Meeting) -> None:
    job = tiered(meeting, 2, script="debugged.py", args=(free_port(),), nproc=2)
    nodes = [job.node(0), job.node(1)]
    assert [node.wait() for node in nodes] == [0, 0], outputs(nodes)
    (shown,) = [report for node in nodes for report in node.reports()]
    written = dict(re.findall(r"^ *(\S*debug_server\S*): .*(http://[^&']+)", shown["tcpstore"], re.MULTILINE))
    assert len(written) == 4, shown["tcpstore"]
    assert all(f"Rank {rank}: {written[key]}" in shown["stacks"] for rank, key in enumerate(sorted(written)))
