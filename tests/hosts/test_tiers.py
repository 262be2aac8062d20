"""Two tiers of proxies on hosts: a parent is dialled where the way to the store begins, not where its host is named."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from kits.eventually import eventually
from kits.hosts.fleet import PORT, Fleet

from rdzv_plugins.endpoints import parse_endpoint
from rdzv_plugins.errors import AccessRefused
from rdzv_plugins.testing.launched import outputs

pytestmark = pytest.mark.thorough

CONNECTED = r"this node's proxy is at 127\.0\.0\.1:\d+; it has its connection to the store at (\S+)"


def test_second_tier_reaches_its_parents_on_other_hosts(fleet: Fleet, tmp_path: Path) -> None:
    """The second parent is where the endpoint is, which it reaches by loopback, as Debian's hosts files have it."""
    names = ("alpha", "beta", "gamma", "delta")
    alpha, beta, gamma, delta = fleet.lan.add(*names, debian=["alpha"])
    file = tmp_path / "token"
    file.touch(0o600)
    file.write_text("0123456789abcdef\n")
    conf = f"store=tiered,fanout=2,worker_ports=29501-29510,token_file={file}"
    agents = [
        fleet.node(host, f"alpha:{PORT}", 4, rank=rank, conf=conf, flags=["-v"])
        for rank, host in enumerate((beta, alpha, gamma, delta))
    ]
    for agent in agents:
        agent.wait_for(CONNECTED)
        eventually(agent.reports, lambda: outputs(agents))
    above = [parse_endpoint(re.findall(CONNECTED, agent.text)[-1], None) for agent in agents]
    assert [each.host for each in above] == [beta.address, beta.address, beta.address, alpha.address]
    root = above[0].port
    assert above[1].port == root
    assert above[2].port != root, "that of the first parent's proxy"
    assert {each.port for each in above} <= set(range(29501, 29511))
    assert alpha.listens(above[3].port)
    assert beta.listens(above[2].port)
    assert {report["MASTER_ADDR"] for agent in agents for report in agent.reports()} == {"127.0.0.1"}
    for port in (PORT, root, above[2].port, above[3].port):  # of the rendezvous, the store and both parents
        host = beta if port in (root, above[2].port) else alpha
        asked = fleet.start(gamma, ["rdzv", "status", f"--rdzv-endpoint={host.address}:{port}"])
        assert asked.wait() == AccessRefused.exit_code, asked.text
    fleet.finish(*agents)
