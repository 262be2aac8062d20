"""Nodes of a c10d job with other settings: who differs in what, at once, and those who wait hear it."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from kits.launcher.harness import Agent, Cluster, error_of, free_port, wait_until
from torch.distributed import TCPStore
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import DynamicRendezvousHandler

from rdzv_plugins.assemble.create import create_handler, with_options
from rdzv_plugins.assemble.hosted_handler import HostedHandler
from rdzv_plugins.errors import RdzvError, RendezvousTimeout, SettingsDiffer
from rdzv_plugins.host import PluginHost
from rdzv_plugins.interfaces import Outcome, Request
from rdzv_plugins.run_status import RunStatus

HOST = socket.gethostname()
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
    wait_until(lambda: len(seen(cluster.endpoint).nodes) == nodes, PATIENCE_S, lambda: str(seen(cluster.endpoint)))


@pytest.mark.parametrize(("mine", "theirs"), [("2", "3"), ("3", "2"), ("2:4", "4")])
def test_another_number_of_nodes_is_refused_by_name_and_those_who_wait_are_told(
    cluster: Cluster, mine: str, theirs: str
) -> None:
    first = node(cluster, mine)
    wait_joined(cluster, 1)
    for _ in range(2):  # every one is heard of, not only the first
        other = node(cluster, theirs)
        message = error_of(other, 78)
        by = f"{HOST} (pid {first.pid}), the first node of the job at {cluster.endpoint}"
        assert f"this node was started with other settings than {by}: --nnodes: here {theirs}, there {mine}" in message
        told = first.wait_for(rf"{HOST} \(pid {other.pid}\) has come and was refused: .*").group()
        assert f"--nnodes: there {theirs}, here {mine}" in told


def test_the_others_go_on_without_the_refused_node(cluster: Cluster) -> None:
    first = cluster.run("report.py", backend="c10d", nnodes=2, conf=LONG, options=["--rdzv-id=mine"])
    wait_joined(cluster, 1)
    error_of(node(cluster, 3), 78)
    second = cluster.run("report.py", backend="c10d", nnodes=2, conf=LONG, options=["--rdzv-id=mine"])
    assert [first.wait(), second.wait()] == [0, 0], first.text + second.text


@contextlib.contextmanager
def handler(port: int, nnodes: int, seconds: int) -> Iterator[HostedHandler]:
    """A node in this process."""
    host = PluginHost.load()
    entry = host.catalog.find("c10d")
    conf = {"join_timeout": str(seconds), "last_call_timeout": "1"}
    request = Request("c10d", "mine", f"127.0.0.1:{port}", nnodes, nnodes, 1, conf=conf, given=frozenset({"run_id"}))
    made = create_handler(host, entry, with_options(entry, request))
    try:
        yield made
    finally:
        made.leave(Outcome("lost"))
        made.shutdown()


def test_the_time_out_names_the_node_that_was_refused() -> None:
    port = free_port()
    with handler(port, 2, 25) as first, ThreadPoolExecutor() as pool:
        ended = pool.submit(first.next_rendezvous)
        wait_until(lambda: len(seen(f"127.0.0.1:{port}").nodes) == 1, PATIENCE_S, lambda: "it does not join")
        with handler(port, 3, 60) as other, pytest.raises(SettingsDiffer):
            other.next_rendezvous()
        error = ended.exception(PATIENCE_S)
    assert isinstance(error, RendezvousTimeout)
    assert "1 of 2 nodes are in round 0" in str(error)
    assert f"; {HOST} (pid {os.getpid()}) has come and was refused: " in str(error)


def test_a_plain_torchrun_node_that_says_nothing_of_its_settings_is_what_the_time_out_speaks_of() -> None:
    port = free_port()
    with handler(port, 2, 25) as first, ThreadPoolExecutor() as pool:
        ended = pool.submit(first.next_rendezvous)
        wait_until(lambda: len(seen(f"127.0.0.1:{port}").nodes) == 1, PATIENCE_S, lambda: "it does not join")
        store = TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
        backend = C10dRendezvousBackend(store, "mine")
        torchs = DynamicRendezvousHandler.from_backend("mine", store, backend, 3, 3, local_addr="127.0.0.1")
        waiting = pool.submit(torchs.next_rendezvous)
        error = ended.exception(PATIENCE_S)
        first.set_closed()
        assert waiting.exception(PATIENCE_S) is not None, "it waits for a third node"
    assert isinstance(error, RendezvousTimeout)
    assert "2 of 2 nodes are in round 0" in str(error)
    assert "one of them was started with another --nnodes" in error.remedy


def test_two_runs_at_one_store_do_not_compare_their_settings(cluster: Cluster) -> None:
    first = node(cluster, 2)
    wait_joined(cluster, 1)
    other = cluster.run("report.py", backend="c10d", nnodes=1, options=["--rdzv-id=other"])
    assert other.wait() == 0, other.text
    assert "refused" not in first.text
    assert seen(cluster.endpoint).members == 1
