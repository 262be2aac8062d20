"""Nodes of a c10d job with other settings: who differs in what, at once, and those who wait hear it."""

from __future__ import annotations

import contextlib

import pytest
from kits.eventually import eventually
from kits.launcher.harness import Agent, Cluster, error_of

from rdzv_plugins.assemble.create import with_options
from rdzv_plugins.errors import RdzvError, SettingsDiffer
from rdzv_plugins.host import PluginHost
from rdzv_plugins.interfaces import Request
from rdzv_plugins.run_status import RunStatus

pytestmark = pytest.mark.thorough

LONG = "join_timeout=500"
"""Longer than a test may take: who is told by a time-out is not told at all."""
PATIENCE_S = 60


def node(cluster: Cluster, nnodes: object) -> Agent:
    options = ["--rdzv-id=mine"]
    return cluster.run("plain.py", "sleep", backend="c10d", nnodes=nnodes, conf=LONG, options=options)


def seen(endpoint: str) -> RunStatus:
    entry = PluginHost.load().catalog.find("c10d")
    request = Request("c10d", "mine", endpoint, 1, 1, 1, given=frozenset({"run_id"}))
    assert entry.backend.status is not None
    with contextlib.suppress(RdzvError):
        return entry.backend.status(with_options(entry, request), PATIENCE_S)
    return RunStatus()


def wait_joined(cluster: Cluster, nodes: int) -> None:
    """So many nodes are in torch's state: from before that on they hear of others."""
    eventually(lambda: len(seen(cluster.endpoint).nodes) == nodes, lambda: str(seen(cluster.endpoint)))


def test_another_number_of_nodes_is_refused_by_name_and_the_others_go_on(cluster: Cluster) -> None:
    first = report(cluster)
    wait_joined(cluster, 1)
    for _ in range(2):  # every one is heard of, not only the first
        other = node(cluster, 3)
        message = error_of(other, SettingsDiffer.exit_code)
        assert all(each in message for each in (f"pid {first.pid}", cluster.endpoint, "--nnodes"))
        told = first.wait_for(rf"\(pid {other.pid}\) has come .*").group()
        assert "--nnodes" in told
    second = report(cluster)
    assert [first.wait(), second.wait()] == [0, 0], first.text + second.text


def report(cluster: Cluster) -> Agent:
    return cluster.run("report.py", backend="c10d", nnodes=2, conf=LONG, options=["--rdzv-id=mine"])


def test_two_runs_at_one_store_do_not_compare_their_settings(cluster: Cluster) -> None:
    node(cluster, 2)
    wait_joined(cluster, 1)
    other = cluster.run("report.py", backend="c10d", nnodes=1, options=["--rdzv-id=other"])
    assert other.wait() == 0, other.text
    assert seen(cluster.endpoint).members == 1
