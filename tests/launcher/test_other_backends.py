"""Nodes of one job, or of two, with different backends at one endpoint: who comes second is told at once what is there.

"At once" is that its message is not the one of a time-out, which is long here.
"""

from __future__ import annotations

import contextlib

import pytest
from kits.etcd import etcd_kit
from kits.eventually import eventually
from kits.launcher.harness import Agent, Cluster, error_of

from rdzv_plugins.errors import RdzvError
from rdzv_plugins.host import PluginHost
from rdzv_plugins.interfaces import Request

pytestmark = pytest.mark.thorough

NATIVE = ("parallel", "tiered")
LONG_S = 500
"""Longer than a test may take."""
PATIENCE_S = 60


def node(cluster: Cluster, backend: str, rank: int) -> Agent:
    given = rank if backend == "static" else None
    conf, flags = f"timeout={LONG_S}", ["--rdzv-id=mine"]
    return cluster.run("plain.py", "sleep", backend=backend, nnodes=2, rank=given, conf=conf, options=flags)


def first(cluster: Cluster, backend: str) -> Agent:
    """The one that serves, and waits for the other; it has said who it is."""
    agent = node(cluster, backend, 0)
    cluster.wait_listening()
    recognise = PluginHost.load().catalog.find(backend).backend.recognise
    request = Request(backend, "mine", cluster.endpoint, 1, 1, 1)
    assert recognise is not None

    def told() -> str:
        with contextlib.suppress(RdzvError, OSError):
            return recognise(request, PATIENCE_S)
        return ""

    eventually(lambda: f"(pid {agent.pid})" in told() and f" by {backend}" in told(), told)
    return agent


@pytest.mark.parametrize(("there", "second"), [("parallel", "tiered"), ("parallel", "static"), ("c10d", "parallel")])
def test_second_of_another_backend_is_told_what_is_there(cluster: Cluster, there: str, second: str) -> None:
    host = first(cluster, there)
    message = error_of(node(cluster, second, 1), 78 if {there, second} == set(NATIVE) else 68)
    if {there, second} == set(NATIVE):
        assert "--rdzv-backend" in message
    else:
        named = (cluster.endpoint, f"by {there}", f"(pid {host.pid})", f"--rdzv-backend={second}")
        assert all(each in message for each in named), message


@pytest.mark.parametrize("second", ["parallel", "static"])  # a native client, and one of torch's store
def test_second_at_an_etcd_is_told_so(one_etcd: etcd_kit.Cluster, cluster: Cluster, second: str) -> None:
    cluster.port = one_etcd.endpoints[0].port
    message = error_of(node(cluster, second, 1), 68)
    assert all(each in message for each in (cluster.endpoint, "etcd 3.", f"--rdzv-backend={second}")), message


def test_etcds_client_is_told_what_is_there(cluster: Cluster) -> None:
    host = first(cluster, "parallel")
    message = error_of(node(cluster, "etcd", 1), 68)
    assert all(each in message for each in ("by parallel", f"(pid {host.pid})", "--rdzv-backend=etcd")), message
