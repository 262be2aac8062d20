"""A slow way to the endpoint, 50 ms in each direction: nothing is asked more often because of it, or given up."""

from __future__ import annotations

import pytest
from kits import KITS
from kits.hosts.fleet import PORT, Fleet

pytestmark = pytest.mark.thorough


def test_eight_nodes_ask_no_more_of_an_endpoint_far_away(fleet: Fleet) -> None:
    alpha, beta = fleet.lan.add("alpha", "beta")
    near, far = fleet.serve(alpha), f"{alpha.address}:{PORT + 1}"
    fleet.relay(alpha, (PORT + 1, near))
    handlers = fleet.start(beta, ["python", KITS / "hosts" / "handlers.py", near, far])
    assert handlers.wait() == 0, handlers.text
    by_near, by_far = handlers.reports()
    assert by_far["quickest"] >= 0.1, "there and back"
    assert by_near["ranks"] == by_far["ranks"] == [list(range(8))] * 2
    assert by_near["asked"] == by_far["asked"]
