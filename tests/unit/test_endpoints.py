"""One parser for ``host:port``: every backend refuses the same mistakes in the same words."""

import pytest

from rdzv_plugins.endpoints import Endpoint, check_port, parse_endpoint
from rdzv_plugins.errors import UsageError


def refusal(text, default_port=29400):
    with pytest.raises(UsageError) as caught:
        parse_endpoint(text, default_port)
    return str(caught.value), caught.value.remedy


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


@pytest.mark.parametrize("text", ["node:29500", "10.0.0.1:0", "[::1]:29500"])
def test_printed_form_is_parsed_to_the_same(text):
    assert str(parse_endpoint(text, None)) == text


@pytest.mark.parametrize("text", ["::1", "fe80::1:29500", "2001:db8::1"])
def test_ipv6_without_brackets_is_refused_with_the_brackets(text):
    message, remedy = refusal(text)
    assert "needs brackets" in message
    assert f"[{text}]:PORT" in remedy


@pytest.mark.parametrize("text", ["tcp://node:29400", "http://10.0.0.1:29400/x"])
def test_url_is_not_taken_for_an_ipv6_address(text):
    message, remedy = refusal(text)
    assert "IPv6" not in message
    assert remedy == "Write HOST:PORT."


@pytest.mark.parametrize("text", ["[::1", "[node]:29500", "[::1]29500", "[]:29500", "[10.0.0.1]:29500"])
def test_bad_brackets_are_refused(text):
    assert "IPv6 address in brackets" in refusal(text)[0]


@pytest.mark.parametrize("text", ["", ":29500", "my node:29500", "/tmp/dir", "user@node"])
def test_bad_host_is_refused(text):
    assert "no valid host name" in refusal(text)[0]


@pytest.mark.parametrize("port", ["65536", "-1", "http", "1.5", "0x10"])
def test_bad_port_is_refused(port):
    message, remedy = refusal(f"node:{port}")
    assert message == f"--rdzv-endpoint: port {port} is out of range"
    assert remedy == "Ports go from 0 to 65535."


def test_missing_port_is_refused_where_there_is_no_default():
    message, remedy = refusal("node", default_port=None)
    assert "'node' has no port" in message
    assert remedy == "Write node:PORT."


def test_message_names_the_option_that_it_is_about():
    with pytest.raises(UsageError, match=r"^--master-addr: "):
        parse_endpoint("::1", None, what="--master-addr")


@pytest.mark.parametrize(("port", "number"), [(0, 0), ("29500", 29500), (65535, 65535)])
def test_port_in_range_is_accepted(port, number):
    assert check_port(port, what="--master-port") == number


@pytest.mark.parametrize(
    ("host", "loopback"),
    [("localhost", True), ("127.8.0.1", True), ("::1", True), ("10.0.0.1", False), ("node", False)],
)
def test_loopback_is_recognised(host, loopback):
    assert Endpoint(host, 1).is_loopback is loopback
