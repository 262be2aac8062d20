"""One parser for ``host:port``, for every backend; and which jobs meet where only one machine can."""

import pytest

from rdzv_plugins.endpoints import Endpoint, parse_endpoint
from rdzv_plugins.errors import UsageError
from rdzv_plugins.interfaces import Request
from rdzv_plugins.registry.rendezvous import meets_locally


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("node-1", "node-1", 29400),
        ("node-1:", "node-1", 29400),
        ("node_1.cluster.local:1", "node_1.cluster.local", 1),
        (" 10.0.0.1:65535 ", "10.0.0.1", 65535),
        ("localhost:0", "localhost", 0),
        ("[::1]", "::1", 29400),
        ("[fe80::1%eth0]:29500", "fe80::1%eth0", 29500),
    ],
)
def test_host_and_port_are_split(text, host, port):
    assert parse_endpoint(text, 29400) == Endpoint(host, port)


@pytest.mark.parametrize(
    ("texts", "said", "remedy"),
    [
        (["::1", "fe80::1:29500", "2001:db8::1"], "needs brackets", "[{}]:PORT"),
        (["tcp://node:29400", "http://10.0.0.1:29400/x"], "//", "Write HOST:PORT."),  # no IPv6 address
        (["[::1", "[node]:29500", "[::1]29500", "[]:29500", "[10.0.0.1]:29500"], "IPv6 address in brackets", ""),
        (["", ":29500", "my node:29500", "/tmp/dir", "user@node"], "no valid host name", ""),
        ([f"node:{port}" for port in ("65536", "-1", "http", "1.5", "0x10")], "out of range", "from 0 to 65535"),
        (["node"], "'node' has no port", "Write node:PORT."),  # where there is no default
    ],
)
def test_what_is_no_endpoint_is_refused_with_what_to_write_and_the_option_that_it_is_about(texts, said, remedy):
    for text in texts:
        with pytest.raises(UsageError, match=r"^--master-addr: ") as caught:
            parse_endpoint(text, None, what="--master-addr")
        assert said in str(caught.value)
        assert remedy.format(text) in caught.value.remedy


@pytest.mark.parametrize(
    ("host", "loopback"),
    [("localhost", True), ("127.8.0.1", True), ("::1", True), ("10.0.0.1", False), ("node", False)],
)
def test_loopback_is_recognised(host, loopback):
    assert Endpoint(host, 1).is_loopback is loopback


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
