"""Slurm's host list expressions, as `scontrol show hostnames` expands them."""

from __future__ import annotations

import pytest

from rdzv_plugins.schedulers.facts import expand


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("node1", ["node1"]),
        ("a,b.example.org,10.0.0.7", ["a", "b.example.org", "10.0.0.7"]),
        ("node[001-003,7]", ["node001", "node002", "node003", "node7"]),
        ("node[9-11]", ["node9", "node10", "node11"]),
        ("node[08-10]-ib", ["node08-ib", "node09-ib", "node10-ib"]),
        ("r[1-2]n[1,3],login", ["r1n1", "r1n3", "r2n1", "r2n3", "login"]),
        ("node[3,1-2]", ["node3", "node1", "node2"]),
        ("[1-2]", ["1", "2"]),
    ],
)
def test_names_come_in_their_order(text: str, hosts: list[str]) -> None:
    assert expand(text) == hosts


@pytest.mark.parametrize(
    "text",
    ["", "a,", ",a", "a,,b", "a[1-2", "a1-2]", "a[]", "a[2-1]", "a[x]", "a[1-]", "a b", "a[[1]]", "a[1,]", "é\n"],
)
def test_what_is_no_host_list_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        expand(text)


@pytest.mark.parametrize("text", ["a[0-99999999]", "a[0-9999]b[0-9999]", "a[0-999999],b[0-999999]"])
def test_too_many_are_refused_at_once(text: str) -> None:
    with pytest.raises(ValueError, match="more than 1000000 hosts"):
        expand(text)
