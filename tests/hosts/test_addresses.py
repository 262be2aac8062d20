"""Who serves, and which addresses the workers get: decided by sockets, never by what a host calls itself."""

from __future__ import annotations

import pytest
from kits.hosts.fleet import PORT, Fleet
from kits.launcher.elastic_kit import in_one_round


@pytest.mark.parametrize(
    "endpoint", ["10.77.1.1", *(pytest.param(each, marks=pytest.mark.thorough) for each in ("[fd00:1::1]", "alpha"))]
)
def test_two_hosts_train_and_the_one_that_can_bind_the_address_serves(fleet: Fleet, endpoint: str) -> None:
    """By name the first reaches itself by loopback, as Debian has it, and the other has to be told better."""
    names = ("alpha", "beta")
    alpha, beta = fleet.lan.add(*names, debian=names)
    for host in (alpha, beta):
        host.default_route()
    agents = [
        fleet.node(host, f"{endpoint}:{PORT}", 2, script="trains.py", GLOO_SOCKET_IFNAME="eth0")
        for host in (beta, alpha)  # not decided by who comes first
    ]
    reports = in_one_round(*reversed(agents))
    assert alpha.listens(PORT)
    assert not beta.listens(PORT)
    master = alpha.address6 if ":" in endpoint else alpha.address
    assert {report["MASTER_ADDR"] for report in reports} == {master}
    fleet.finish(*agents)


@pytest.mark.thorough
def test_address_is_that_of_the_interface_that_leads_to_the_endpoint(fleet: Fleet) -> None:
    """The host names and the default route lead to the first network, the endpoint is in the second."""
    alpha, beta = fleet.lan.add("alpha", "beta", networks=(1, 2))
    beta.default_route()
    endpoint = f"{alpha.address_in(2)}:{PORT}"
    agents = [fleet.node(host, endpoint, 2, rank=rank, flags=["-v"]) for rank, host in enumerate((beta, alpha))]
    reports = in_one_round(*agents)
    assert beta.address != beta.address_in(2)
    assert {report["MASTER_ADDR"] for report in reports} == {beta.address_in(2)}
    fleet.finish(*agents)
