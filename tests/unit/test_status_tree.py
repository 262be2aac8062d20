"""rdzv status shows the proxies below a store as a tree, whatever they say of themselves."""

from __future__ import annotations

from typing import Any

import pytest
from kits.messages import check_message

from rdzv_launcher.tools.status.tree import only_ahead, proxy, tree


def report(name: str, *, waiting: Any = (), children: Any = (), **figures: int) -> dict[str, Any]:
    """What a proxy says of itself."""
    known = {"workers": 8, "requests": 1000, "upstream": 250, "saved": 750, "hits": 40}
    return {"name": name, **known, **figures, "waiting": list(waiting), "children": list(children)}


def trunk(name: str, said: Any, *, attached: bool = True, address: str = "10.0.0.8:41200") -> dict[str, Any]:
    """What the root says of a proxy."""
    return {"name": name, "address": address, "attached": attached, "follows": 0, "report": said}


def wait(key: str, oldest_s: float, waiters: int = 3) -> dict[str, Any]:
    return {"key": key, "waiters": waiters, "oldest_s": oldest_s}


def lines(*trunks: dict[str, Any]) -> list[str]:
    return tree({"name": "workers-1", "trunks": list(trunks)})


def test_each_node_has_a_line_and_what_it_waits_for_and_those_below_it() -> None:
    waits = [wait(f"/{second}", second) for second in (1, 5, 3, 118, 2)]
    grandchild = report("c", workers=1, requests=10, upstream=10, waiting=[wait("/k", 1, 1)])
    told = lines(
        *(trunk(f"node {rank}", report(f"node {rank}")) for rank in (10, 2)),
        trunk("waits", report("waits", waiting=waits)),
        trunk("parent", report("a", children=[report("b", children=[grandchild])])),
        trunk("cut off", report("a"), attached=False),
        trunk("cut off early", {}, attached=False),
        trunk("new", None),
    )
    check_message("status: proxies of a store", "\n".join(told))


A, B = "10.0.0.8:1", "10.0.0.9:1"


@pytest.mark.parametrize(
    ("waiters", "addresses", "waits", "ahead"),
    [
        (2, [A, B], [], True),
        (2, [A, B], [wait("/4", 1)], True),
        (2, [A, B], [wait("/3", 1, 1)], False),  # a worker of node b
        (2, [A, "10.0.0.7:5"], [], False),  # a client of the store itself
        (30, [A, B], [], False),  # clients that are not listed
        (2, [A, B], [wait(f"/{100 + n}", 1) for n in range(10)], False),  # the report has no room for more
    ],
)
def test_a_key_that_only_proxies_ask_for_is_told_apart(waiters, addresses, waits, ahead):
    keyspace = {"trunks": [trunk("a", report("a"), address=A), trunk("b", report("b", waiting=waits), address=B)]}
    clients = [{"address": address, "pid": 0, "waiting_s": 1.0} for address in addresses]
    waited = [{"key": "/3", "waiters": waiters, "oldest_s": 1.0, "clients": clients}]
    assert only_ahead(keyspace | {"waited": waited}) == ({"/3"} if ahead else set())


def test_what_children_ask_for_ahead_is_not_what_the_parent_waits_for():
    clients = [{"address": A, "pid": 0, "waiting_s": 1.0}]
    waited = {"key": "/3", "waiters": 1, "oldest_s": 1.0, "clients": clients}

    def ahead(waiters: int, *waits: dict[str, Any]) -> bool:
        below = [report("c"), report("d", waiting=waits)]
        said = report("a", children=below, waiting=[wait("/3", 1, waiters)])
        told = lines(trunk("a", said))
        found = only_ahead({"trunks": [trunk("a", said, address=A)], "waited": [waited]})
        assert bool(found) == (f"      waits for /3: {waiters} client(s) since 1.0 s" not in told)
        return bool(found)

    assert ahead(2)
    assert not ahead(3), "a worker of the parent's own"
    assert not ahead(2, wait("/3", 1, 1)), "a child's worker"
    assert not ahead(1, *(wait(f"/{100 + n}", 1) for n in range(10))), "there may be more"


@pytest.mark.parametrize(
    "said",
    [
        "text",
        [],
        {"workers": "many", "requests": None},
        {"waiting": [3, {}], "children": [None, {}, "x"]},
        {"waiting": {}, "children": {"name": "x"}},
    ],
)
def test_reports_of_another_form_hurt_nobody(said: Any):
    told = lines(trunk("a", said), trunk("b", report("b")))
    assert any(line.startswith("    b at ") for line in told)


def test_what_a_proxy_says_when_it_is_asked_itself():
    own = {
        "root": "10.0.0.7:43127",
        "attached": True,
        "reconnects": 1,
        "upstream": {"forward": 3, "follow": 10, "unfollow": 0},
        "saved": {"waits": 90, "hits": 0},
        "ahead": 4,
        "cached": {"keys": 12, "bytes": 2048},
        "unacknowledged": 100,
    }
    check_message("status: a proxy of itself", "\n".join(proxy({"proxy": own})))
    assert ": cut off from it, " in proxy({"proxy": own | {"attached": False}})[0]
    assert proxy({}) == []
