"""Limits of what a node serves are options of its job, and hold at each thing that it serves."""

from __future__ import annotations

from pathlib import Path

import pytest
from kits.eventually import eventually
from kits.launcher.elastic_kit import Job, Meeting, outputs, parallel_only
from kits.launcher.tiered_kit import root_of

from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.errors import EndpointUnreachable
from rdzv_plugins.kvstore.native.framing import ask_statistics

pytestmark = pytest.mark.thorough

LIMITS = {"run_sessions": 2, "run_keys": 1234, "watches": 77, "pending_per_address": 99, "handshake_bytes": 2048}


@parallel_only
def test_a_node_that_serves_has_the_limits_that_it_was_given(meeting: Meeting, tmp_path: Path) -> None:
    conf = ",".join(f"{name}={value}" for name, value in LIMITS.items())
    stop = tmp_path / "stop"
    job = Job(
        meeting,
        "1:2",
        script="holds_on.py",
        args=("wait", stop, 0),
        conf="store=tiered,last_call_timeout=60",
        flags=["-v"],
    )
    first = job.node(conf=conf)
    meeting.wait_listening()
    nodes = [first, job.node(conf=conf)]
    for node in nodes:
        eventually(node.reports, lambda: outputs(nodes))
    store = root_of(nodes).port
    proxies = [report["MASTER_PORT"] for node in nodes for report in node.reports()]
    for port in (meeting.port, store, *proxies):
        limits = ask_statistics(Endpoint("127.0.0.1", int(port)), 60)["limits"]
        assert {name: limits[name] for name in LIMITS} == LIMITS

    third = job.node()
    assert third.wait() == EndpointUnreachable.exit_code
    stop.touch()
    assert [node.wait() for node in nodes] == [0, 0], outputs(nodes)
