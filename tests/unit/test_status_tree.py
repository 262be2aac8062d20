"""rdzv status shows the proxies below a store as a tree, whatever they say of themselves."""

from __future__ import annotations

from typing import Any

import pytest

from rdzv_launcher.tools.status.tree import SHOWN, only_ahead, proxy, tree


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


def test_store_without_proxies_has_no_tree():
    assert tree({"name": "workers-1"}) == tree({"trunks": []}) == []


def test_each_node_has_a_line_in_the_order_of_numbers():
    told = lines(*(trunk(f"node {rank}", report(f"node {rank}")) for rank in (10, 2)))
    assert told == [
        "  2 proxies here: 16 clients, 2000 operations, 500 came here (75% saved), 80 from caches",
        "    node 2 at 10.0.0.8:41200: 8 clients, 1000 operations, 250 sent up (75% saved), 40 from its cache",
        "    node 10 at 10.0.0.8:41200: 8 clients, 1000 operations, 250 sent up (75% saved), 40 from its cache",
    ]


def test_who_waits_for_what_longest_first():
    waits = [wait(f"/{second}", second) for second in (1, 5, 3, 118, 2)]
    assert lines(trunk("a", report("a", waiting=waits)))[2:] == [
        "      waits for /118: 3 client(s) since 1 min 58 s",
        "      waits for /5: 3 client(s) since 5.0 s",
        "      waits for /3: 3 client(s) since 3.0 s",
        "      and for 2 more keys",
    ]


def test_children_stand_below_their_parent_and_count_in_the_whole():
    grandchild = report("c", workers=1, requests=10, upstream=10, waiting=[wait("/k", 1, 1)])
    parent = trunk("a", report("a", children=[report("b", children=[grandchild])]))
    assert lines(parent) == [
        "  1 proxy here, 2 below them: 17 clients, 2010 operations, 250 came here (88% saved), 120 from caches",
        "    a at 10.0.0.8:41200: 8 clients, 1000 operations, 250 sent up, with those from below, 40 from its cache",
        "      b: 8 clients, 1000 operations, 250 sent up, with those from below, 40 from its cache",
        "        c: 1 client, 10 operations, 10 sent up (none saved), 40 from its cache",
        "          waits for /k: 1 client(s) since 1.0 s",
    ]


def test_a_node_that_is_cut_off_is_said_to_be():
    told = lines(trunk("a", report("a"), attached=False), trunk("b", {}, attached=False), trunk("c", None))
    assert told[1].endswith("from its cache; CUT OFF, as of its last report")
    assert told[2] == "    b at 10.0.0.8:41200: cut off before it has reported"
    assert told[3] == "    c at 10.0.0.8:41200: has not reported yet"


def test_of_many_nodes_those_in_trouble_are_shown():
    many = [trunk(f"node {rank}", report(f"node {rank}", waiting=[wait("/k", 1)])) for rank in range(1000)]
    many[990] = trunk("node 990", report("node 990", waiting=[wait("/k", 99)]))
    many[995] = trunk("node 995", {}, attached=False)
    nodes = [line.split(" at ")[0].strip() for line in lines(*many)[1:] if line.startswith("    node ")]
    assert nodes[:3] == ["node 995", "node 990", "node 0"]
    assert len(nodes) == SHOWN
    assert lines(*many)[-1] == f"    and {1000 - SHOWN} more (--json has them all)"


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
    assert proxy({"proxy": own}) == [
        "proxy of the store at 10.0.0.7:43127: connected, 1 reconnection(s), 100 B sent and not confirmed",
        "sent up: forward 3, follow 10",
        "saved: waits 90",
        "cached: 12 keys, 2.0 KiB; 4 keys followed ahead of their readers",
    ]
    assert ": cut off from it, " in proxy({"proxy": own | {"attached": False}})[0]
    assert proxy({}) == []
