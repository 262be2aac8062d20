from __future__ import annotations

import pytest

from rdzv_plugins.backends.etcd.members import parse_members
from rdzv_plugins.endpoints import Endpoint, is_only_local
from rdzv_plugins.errors import UsageError


@pytest.mark.parametrize(
    ("text", "members", "scheme"),
    [
        ("h1", [("h1", 2379)], ""),
        ("h1:1, h2:2,h3", [("h1", 1), ("h2", 2), ("h3", 2379)], ""),
        ("https://h1:1/,https://[::1]:2", [("h1", 1), ("::1", 2)], "https"),
        ("http://h1,h2", [("h1", 2379), ("h2", 2379)], "http"),
        ("h1:1,h1:1,", [("h1", 1)], ""),
    ],
)
def test_members_are_parsed(text, members, scheme):
    assert parse_members(text) == (tuple(Endpoint(*each) for each in members), scheme)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", "needs to know where etcd is"),
        (" , ", "needs to know where etcd is"),
        ("h1:1,h2:x", "port x is out of range"),
        ("h1:1,::1", "ambiguous"),
        ("h1,h2:0", "'h2:0' has port 0"),
        ("unix:///tmp/s", "neither http:// nor https://"),
        ("http://h1,https://h2", "mixes"),
        ("h1:1/path", "no valid host"),
    ],
)
def test_what_is_no_list_of_members_is_refused(text, match):
    with pytest.raises(UsageError, match=match) as caught:
        parse_members(text)
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("text", "local"),
    [
        ("localhost:1,http://127.0.0.1:2,[::1]:3", True),
        ("localhost:1,h2:1", False),
        ("", False),
        ("/a/file", False),
        ("unix:///tmp/s", False),
    ],
)
def test_endpoints_that_only_this_machine_can_reach(text, local):
    assert is_only_local(text) is local
