"""What `rdzv bench rendezvous` touches inside of torch is there, and does what the benchmark takes it to do."""

from __future__ import annotations

from datetime import timedelta

import pytest

from rdzv_launcher.bench.backends import TORCH_C10D
from rdzv_launcher.bench.rendezvous.targets import references
from rdzv_launcher.bench.rendezvous.torch_nodes import TorchDynamicNode
from rdzv_plugins.testing.harness import free_port

pytestmark = pytest.mark.thorough


def test_requests_of_torch_s_nodes_are_counted_and_their_last_call_is_shortened() -> None:
    (target,) = references(TORCH_C10D)
    endpoint = f"127.0.0.1:{free_port()}"
    request = target.harness.request(endpoint, run_id="alone", local_addr="127.0.0.1")
    node = TorchDynamicNode(0, request, 60)
    try:
        assert node.facts()["asked"] == {}
        node.join()
        assert node.rank == 0
        assert node.facts()["asked"].keys() == {"get", "compare_set"}
        assert node._handler.settings.timeout.last_call == timedelta(seconds=60)
        node.again()
        assert node._handler.settings.timeout.last_call == timedelta(seconds=1)
        assert node._handler.settings.timeout.join == timedelta(seconds=60)
    finally:
        node._handler.shutdown()
