"""rdzv status for people: every figure has its place, who waits for what is a sentence, proxies are a tree."""

from __future__ import annotations

import argparse
import json
import socket
import struct
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from kits.messages import check_message

from rdzv_launcher.tools.status import as_text, only_ahead, proxy, run, tree
from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.errors import EndpointUnreachable
from rdzv_plugins.kvstore.native.framing import parse_statistics
from rdzv_plugins.plain_text import many

HERE = Endpoint("10.0.0.7", 29500)
WORKERS = {"name": "workers-2", "port": 29501, "connections": 3, "keys": 7, "queues": 1, "queued": 2, "bytes": 100}
IDLE: dict[str, Any] = {
    "server": {"version": "0.1.0", "pid": 812, "threads": 4, "uptime_s": 131.4},
    "connections": {"open": 3, "peak": 5, "accepted": 9, "closed": 6, "limit": 19936},
    "requests": {"validate": 9, "set": 12, "get": 0, "framed": 1},
    "refused": {},
    "bytes": {"received": 1023, "sent": 1024, "buffered": 5 * 2**20, "stored": 3 * 2**30, "stored_limit": 2**33},
    "keyspaces": [WORKERS | {"waited_keys": 0, "waited": []}],
    "runs": [],
}


def client(number: int, pid: int) -> dict[str, Any]:
    return {"address": f"10.0.0.{number}:4000", "pid": pid, "waiting_s": 1.0}


def wait(key: str, oldest_s: float, waiters: int = 3, *clients: dict[str, Any]) -> dict[str, Any]:
    return {"key": key, "waiters": waiters, "oldest_s": oldest_s, "clients": list(clients)}


def keyspace(name: str, *waited: dict[str, Any], waited_keys: int = 0, **changes: Any) -> dict[str, Any]:
    return IDLE["keyspaces"][0] | {"name": name, "waited": waited, "waited_keys": waited_keys or len(waited), **changes}


def report(name: str, *, waiting: Any = (), children: Any = (), **figures: int) -> dict[str, Any]:
    """What a proxy says of itself."""
    known = {"workers": 8, "requests": 1000, "upstream": 250, "saved": 750, "hits": 40}
    return {"name": name, **known, **figures, "waiting": list(waiting), "children": list(children)}


def trunk(name: str, said: Any, *, attached: bool = True, address: str = "10.0.0.8:41200") -> dict[str, Any]:
    """What the root says of a proxy."""
    return {"name": name, "address": address, "attached": attached, "follows": 0, "report": said}


ONE, ALL = client(1, 901), [client(number, number) for number in (1, 2, 3, 4)]
UNKNOWN = client(1, 0)
REPORT = report("node 1", requests=9, upstream=3, hits=0, waiting=[wait("/a", 2.0, 8)])
TRUNK = trunk("node 1", REPORT, address="10.0.0.1:4000")
AHEAD = [wait(key, 2.0, 1, UNKNOWN) for key in ("/a", "/b")]
RUN = {"sessions": 3, "keys": 12, "watches": 7, "revision": 88, "bytes": 2048}
BUSY = {
    "keyspaces": [
        keyspace("one client waits for two keys", wait("/a", 118.2, 1, ONE), wait("/b", 0.26, 1, ONE)),
        keyspace("one has not said its pid, and keys are not listed", wait("/a", 1, 1, UNKNOWN), waited_keys=131),
        keyspace("many clients wait", wait("/a", 1, 3, *ALL[:3]), wait("/b", 1, 1000, *ALL)),
        keyspace("a proxy waits, and asks ahead", *AHEAD, trunks=[TRUNK]),
        keyspace("nothing"),
    ],
    "refused": {"no handshake": 2, "half-sent request": 1},
    "runs": [{"name": name, **RUN} for name in ("a", "b")],
    "runs_forgotten": 0,
}
SHOWN: dict[str, dict[str, Any]] = {
    "a store where nobody waits": {},
    "a store where much goes on": BUSY,
    "runs that have gone": {"runs": [], "runs_forgotten": 3},
}


@pytest.mark.parametrize("case", SHOWN)
def test_every_figure_has_its_place(case: str) -> None:
    check_message(f"status: {case}", as_text(HERE, IDLE | SHOWN[case]))


@pytest.mark.parametrize("answer", [b"{}", b"[]", json.dumps(IDLE | {"connections": None}).encode()])
def test_a_peer_with_our_hello_and_other_statistics_is_an_endpoint_that_cannot_be_used(answer: bytes):
    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(9, socket.MSG_WAITALL)
            connection.sendall(b"RDZV" + struct.pack("<I", 1))
            connection.recv(9, socket.MSG_WAITALL)
            connection.sendall(struct.pack("<IIB", 5 + len(answer), 1, 0) + answer)

    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:
        served = pool.submit(serve)
        where = {"rdzv_endpoint": "127.0.0.1:{1}".format(*listener.getsockname()), "rdzv_backend": "", "rdzv_id": ""}
        with pytest.raises(EndpointUnreachable, match="did not answer with statistics"):
            run(argparse.Namespace(**where, rdzv_conf="", json=False, timeout=60.0))
        served.result(60)


@pytest.mark.parametrize(
    "text", [b"[]", b"{", b'{"runs": 5}', b'{"runs": [5]}', b'{"runs": [{}]}', b'{"keyspaces": [5]}', b"[" * 100_000]
)
def test_what_is_no_statistics_is_refused_when_it_comes(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"instead of an object|cannot be read|Expecting property|nested too deeply"):
        parse_statistics(text)


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


A, B, MORE = "10.0.0.8:1", "10.0.0.9:1", [wait(f"/{100 + n}", 1) for n in range(10)]


@pytest.mark.parametrize(
    ("waiters", "addresses", "waits", "ahead"),
    [
        (2, [A, B], [], True),
        (2, [A, B], [wait("/4", 1)], True),
        (2, [A, B], [wait("/3", 1, 1)], False),  # a worker of node b
        (2, [A, "10.0.0.7:5"], [], False),  # a client of the store itself
        (30, [A, B], [], False),  # clients that are not listed
        (2, [A, B], MORE, False),  # the report has no room for more
    ],
)
def test_a_key_that_only_proxies_ask_for_is_told_apart(waiters, addresses, waits, ahead):
    keyspace = {"trunks": [trunk("a", report("a"), address=A), trunk("b", report("b", waiting=waits), address=B)]}
    waited = [wait("/3", 1.0, waiters, *(UNKNOWN | {"address": address} for address in addresses))]
    assert only_ahead(keyspace | {"waited": waited}) == ({"/3"} if ahead else set())


@pytest.mark.parametrize(
    ("waiters", "waits", "ahead"),
    [(2, [], True), (3, [], False), (2, [wait("/3", 1, 1)], False), (1, MORE, False)],
    ids=["ahead", "a worker of the parent's own", "a child's worker", "there may be more"],
)
def test_what_children_ask_for_ahead_is_not_what_the_parent_waits_for(waiters, waits, ahead):
    said = report("a", children=[report("c"), report("d", waiting=waits)], waiting=[wait("/3", 1, waiters)])
    waited = [wait("/3", 1.0, 1, UNKNOWN | {"address": A})]
    assert bool(only_ahead({"trunks": [trunk("a", said, address=A)], "waited": waited})) == ahead
    assert (f"      waits for /3: {many(waiters, 'client')} for 1.0 s" in lines(trunk("a", said))) != ahead


def test_reports_of_another_form_hurt_nobody():
    odd = ["text", [], {"workers": "many", "requests": None}, {"waiting": {}, "children": {"name": "x"}}]
    for said in [*odd, {"waiting": [3, {}], "children": [None, {}, "x"]}]:
        assert any(line.startswith("    b at ") for line in lines(trunk("a", said), trunk("b", report("b"))))


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
    assert ": disconnected, " in proxy({"proxy": own | {"attached": False}})[0]
    assert proxy({}) == []
