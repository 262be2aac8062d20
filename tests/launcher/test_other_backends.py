"""Nodes of one job, or of two, with different backends at one endpoint: who comes second is told at once what is there.

Every order of the built-in backends. "At once" is that its message is not the one of a time-out, which is long here.
"""

from __future__ import annotations

import contextlib
import itertools
import socket

import pytest
from kits.etcd import etcd_kit
from kits.launcher.harness import Agent, Cluster, error_of, wait_until

from rdzv_plugins.errors import EndpointUnreachable, RdzvError
from rdzv_plugins.host import PluginHost
from rdzv_plugins.interfaces import Request
from rdzv_plugins.kvstore.tcpstore import wire
from rdzv_plugins.kvstore.tcpstore.greeting import greet_store

BACKENDS = ["parallel", "tiered", "static", "c10d"]
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

    wait_until(lambda: f"(pid {agent.pid})" in told() and f" by {backend}" in told(), PATIENCE_S, told)
    return agent


def is_named(message: str, cluster: Cluster, there: str, agent: Agent, given: str) -> None:
    assert f"at {cluster.endpoint} is the rendezvous of run 'mine' by {there}, " in message
    assert f"{socket.gethostname()} (pid {agent.pid})" in message
    assert f"this node was given --rdzv-backend={given}" in message
    assert "the same --rdzv-backend" in message


@pytest.mark.parametrize(("there", "second"), list(itertools.permutations(BACKENDS, 2)))
def test_second_of_another_backend_is_told_what_is_there(cluster: Cluster, there: str, second: str) -> None:
    host = first(cluster, there)
    message = error_of(node(cluster, second, 1), 78 if {there, second} == set(NATIVE) else 68)
    if {there, second} == set(NATIVE):
        assert f"--rdzv-backend: here {second}, there {there}" in message
    else:
        is_named(message, cluster, there, host, second)


@pytest.mark.parametrize("there", [each for each in BACKENDS if each != "static"])
def test_second_that_is_to_serve_is_told_who_serves(cluster: Cluster, there: str) -> None:
    host = first(cluster, there)
    message = error_of(node(cluster, "static", 0), 68)
    assert f"cannot listen on port {cluster.port}" in message
    is_named(message, cluster, there, host, "static")


@pytest.mark.parametrize("second", BACKENDS)
def test_second_at_an_etcd_is_told_so(one_etcd: etcd_kit.Cluster, cluster: Cluster, second: str) -> None:
    cluster.port = one_etcd.endpoints[0].port
    message = error_of(node(cluster, second, 1), 68)
    assert f"at {cluster.endpoint} is etcd 3." in message
    assert f"this node was given --rdzv-backend={second}" in message


@pytest.mark.parametrize("pid", [0x0A05, 0x0B05])
def test_an_etcd_that_hangs_up_is_told_as_well(one_etcd: etcd_kit.Cluster, monkeypatch, pid: int) -> None:
    """It waits for the end of a line, and a greeting has the process id in it: one in a hundred has such a byte."""
    monkeypatch.setattr(wire.os, "getpid", lambda: pid)
    known = EndpointUnreachable("it is an etcd")
    with (
        socket.create_connection(("127.0.0.1", one_etcd.endpoints[0].port), PATIENCE_S) as connection,
        pytest.raises(EndpointUnreachable, match="it is an etcd"),
    ):
        greet_store(connection, lambda: known)


@pytest.mark.parametrize("there", BACKENDS)
def test_etcds_client_is_told_what_is_there(cluster: Cluster, there: str) -> None:
    host = first(cluster, there)
    message = error_of(node(cluster, "etcd", 1), 68)
    assert f"it is the rendezvous of run 'mine' by {there}, " in message
    assert f"{socket.gethostname()} (pid {host.pid})" in message
    assert "this node was given --rdzv-backend=etcd" in message
