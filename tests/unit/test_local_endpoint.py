"""Which jobs meet where only one machine can."""

import pytest

from rdzv_plugins.assemble.local_endpoint import meets_locally
from rdzv_plugins.interfaces import Request


@pytest.mark.parametrize(
    ("nodes", "meets_at", "endpoint", "local"),
    [
        (2, "node", "localhost:29500", True),
        (2, "node", "[::1]:29500", True),
        (1, "node", "127.0.0.1:29500", False),  # nobody else is meant
        (2, "node", "node0:29500", False),
        (2, "service", "127.0.0.1:2379", False),  # etcd's gateway is on each machine
        (2, "", "127.0.0.1:1", False),  # a plug-in's: nobody knows what is there
        (2, "node", "", False),
    ],
)
def test_meets_locally(nodes: int, meets_at: str, endpoint: str, local: bool):
    request = Request("any", "run", endpoint, min_nodes=1, max_nodes=nodes, nproc_per_node=1)
    assert meets_locally(request, meets_at) is local
