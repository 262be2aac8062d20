"""What ``c10d`` alone does: settings compared, shared files, torchrun's nodes. The rest: the conformance suite."""

from __future__ import annotations

import contextlib

import pytest
from kits.eventually import eventually
from kits.launcher.harness import Agent, Cluster, error_of

from rdzv_plugins.assemble.create import with_options
from rdzv_plugins.errors import RdzvError, RendezvousFailed, SettingsDiffer
from rdzv_plugins.host import PluginHost
from rdzv_plugins.interfaces import Request, RunStatus

pytestmark = pytest.mark.thorough

LONG = "join_timeout=500"
"""Longer than a test may take: who is told by a time-out is not told at all."""


def node(cluster: Cluster, nnodes: object, script: str = "report.py", *args: object) -> Agent:
    return cluster.run(script, *args, backend="c10d", nnodes=nnodes, conf=LONG, options=["--rdzv-id=mine"])


def seen(endpoint: str) -> RunStatus:
    entry = PluginHost.load().catalog.find("c10d")
    request = Request("c10d", "mine", endpoint, 1, 1, 1, given=frozenset({"run_id"}))
    assert entry.backend.status is not None
    with contextlib.suppress(RdzvError):
        return entry.backend.status(with_options(entry, request), 60)
    return RunStatus()


def test_another_number_of_nodes_is_refused_by_name_and_the_others_go_on(cluster: Cluster) -> None:
    first = node(cluster, 2)
    eventually(lambda: len(seen(cluster.endpoint).nodes) == 1, lambda: str(seen(cluster.endpoint)))
    for _ in range(2):  # every one is heard of, not only the first
        other = node(cluster, 3, "plain.py", "sleep")
        message = error_of(other, SettingsDiffer.exit_code)
        assert all(each in message for each in (f"pid {first.pid}", cluster.endpoint, "--nnodes"))
        assert "--nnodes" in first.wait_for(rf"\(pid {other.pid}\) has come .*").group()
    another_run = cluster.run("report.py", backend="c10d", nnodes=1, options=["--rdzv-id=other"])
    assert another_run.wait() == 0, another_run.text
    second = node(cluster, 2)
    assert [first.wait(), second.wait()] == [0, 0], first.text + second.text


def test_two_nodes_meet_in_a_shared_file(cluster: Cluster) -> None:
    backend = ["--rdzv-backend=c10d", f"--rdzv-endpoint={cluster.directory}/state", "--rdzv-conf=store_type=file"]
    command = ["rdzv-run", "--nnodes=2", *backend, "--local-addr=127.0.0.1", cluster.script("report.py")]
    agents = [cluster.start([*command, "late", "2"]) for _ in range(2)]
    assert [agent.wait() for agent in agents] == [0, 0], agents[0].text + agents[1].text
    reports = [report for agent in agents for report in agent.reports()]
    assert sorted((report["RANK"], report["SUM"]) for report in reports) == [("0", 1.0), ("1", 1.0)]


def test_restart_of_a_job_with_a_node_of_torchruns_says_what_is_wrong(cluster: Cluster) -> None:
    """torch publishes the workers' store once: documented in docs/how-to/coming-from-torchrun.md."""
    shared = ["--nnodes=2", "--max-restarts=1", "--rdzv-backend=c10d", f"--rdzv-endpoint={cluster.endpoint}"]
    script = [cluster.script("report.py"), "crash", 0, 3]
    plain = cluster.start(["torchrun", *shared, "--local-addr=127.0.0.1", *script])  # first in torch's order: rank 0
    ours = cluster.start(["rdzv-run", *shared, "--rdzv-conf=read_timeout=5", "--local-addr=localhost", *script])
    assert ours.wait() == RendezvousFailed.exit_code, ours.text + plain.text
    assert "plain torchrun" in ours.text.partition("rdzv-run: error: ")[2]
