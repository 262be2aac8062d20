"""rdzv status for people: every figure has its place, and who waits for what is a sentence."""

from __future__ import annotations

import argparse
import copy
import json
import socket
import struct
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from rdzv_launcher.tools.status.command import as_text, run
from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.errors import EndpointUnreachable
from rdzv_plugins.kvstore.native.server import StoreServer
from rdzv_plugins.kvstore.native.statistics import parse_statistics

HERE = Endpoint("10.0.0.7", 29500)
IDLE: dict[str, Any] = {
    "server": {"version": "0.1.0", "pid": 812, "threads": 4, "uptime_s": 131.4},
    "connections": {"open": 3, "peak": 5, "accepted": 9, "closed": 6, "limit": 19936},
    "requests": {"validate": 9, "set": 12, "get": 0, "framed": 1},
    "refused": {},
    "bytes": {"received": 1023, "sent": 1024, "buffered": 5 * 2**20, "stored": 3 * 2**30, "stored_limit": 2**33},
    "pushes": 0,
    "events": 0,
    "loops": [],
    "keyspaces": [
        {
            "name": "workers-2",
            "port": 29501,
            "connections": 3,
            "keys": 7,
            "queues": 1,
            "queued": 2,
            "bytes": 100,
            "waited_keys": 0,
            "waited": [],
        }
    ],
    "runs": [],
}


def client(number: int, pid: int) -> dict[str, Any]:
    return {"address": f"10.0.0.{number}:4000", "pid": pid, "waiting_s": 1.0}


def waiting(*keys: tuple[str, int, float, list[dict[str, Any]]], waited_keys: int | None = None) -> list[str]:
    """The lines about the keyspace when these keys are waited for: key, waiters, since when, clients listed."""
    stats = copy.deepcopy(IDLE)
    names = ("key", "waiters", "oldest_s", "clients")
    stats["keyspaces"][0]["waited"] = [dict(zip(names, key, strict=True)) for key in keys]
    stats["keyspaces"][0]["waited_keys"] = len(keys) if waited_keys is None else waited_keys
    lines = as_text(HERE, stats).splitlines()
    return lines[lines.index("keyspace 'workers-2', port 29501: 7 keys, 1 queues, 100 B") + 1 :]


def first_line(uptime_s: float) -> str:
    stats = copy.deepcopy(IDLE)
    stats["server"]["uptime_s"] = uptime_s
    return as_text(HERE, stats).splitlines()[0]


def test_store_where_nobody_waits():
    assert as_text(HERE, IDLE).splitlines() == [
        "store at 10.0.0.7:29500: rdzv-plugins 0.1.0, pid 812, 4 thread(s), up 2 min 11 s",
        "connections: 3 open (peak 5, limit 19936), 9 accepted, 6 closed",
        "requests: validate 9, set 12, framed 1",
        "bytes: 1023 B received, 1.0 KiB sent, 3.0 GiB stored (a keyspace at most 8.0 GiB), "
        "5.0 MiB in half-sent requests and unread replies",
        "refused: none",
        "keyspace 'workers-2', port 29501: 7 keys, 1 queues, 100 B",
        "  nobody waits",
    ]


def test_one_client_waits_for_two_keys():
    who = [client(1, 901)]
    assert waiting(("/a", 1, 118.2, who), ("/b", 1, 0.26, who)) == [
        "  waiting, longest first:",
        "    for /a: 1 client(s) since 1 min 58 s: 10.0.0.1:4000 (pid 901)",
        "    for /b: 1 client(s) since 0.3 s: 10.0.0.1:4000 (pid 901)",
    ]


def test_client_that_has_not_said_its_pid():
    assert waiting(("/a", 1, 1, [client(1, 0)]))[1] == "    for /a: 1 client(s) since 1.0 s: 10.0.0.1:4000"


def test_three_clients_are_named_and_the_others_counted():
    three = [client(number, number) for number in (1, 2, 3)]
    named = "10.0.0.1:4000 (pid 1), 10.0.0.2:4000 (pid 2), 10.0.0.3:4000 (pid 3)"
    assert waiting(("/a", 3, 1, three))[1] == f"    for /a: 3 client(s) since 1.0 s: {named}"
    listed = [*three, client(4, 4)]  # of a thousand the server lists only some
    assert waiting(("/a", 1000, 1, listed))[1] == f"    for /a: 1000 client(s) since 1.0 s: {named} and 997 more"


def test_keys_that_the_server_does_not_list_are_counted():
    assert waiting(("/a", 1, 1, [client(1, 1)]), waited_keys=131)[2:] == ["    and for 130 more keys"]


def test_a_proxy_that_waits_is_named_and_what_it_asks_for_ahead_is_counted():
    stats = copy.deepcopy(IDLE)
    report = {"name": "node 1", "workers": 8, "requests": 9, "upstream": 3, "hits": 0}
    report |= {"waiting": [{"key": "/a", "waiters": 8, "oldest_s": 2.0}], "children": []}
    trunk = {"name": "node 1", "address": "10.0.0.1:4000", "attached": True, "follows": 2, "report": report}
    key = {"waiters": 1, "oldest_s": 2.0, "clients": [client(1, 0)]}
    stats["keyspaces"][0] |= {"trunks": [trunk], "waited_keys": 2, "waited": [key | {"key": k} for k in ("/a", "/b")]}
    assert as_text(HERE, stats).splitlines()[-6:] == [
        "  1 proxy here: 8 clients, 9 operations, 3 came here (67% saved), 0 from caches",
        "    node 1 at 10.0.0.1:4000: 8 clients, 9 operations, 3 sent up (67% saved), 0 from its cache",
        "      waits for /a: 8 client(s) since 2.0 s",
        "  waiting, longest first:",
        "    for /a: 1 client(s) since 2.0 s: the proxy of node 1",
        "  proxies ask for 1 key(s) ahead of their readers",
    ]


def test_offenders_are_counted_by_reason():
    stats = IDLE | {"refused": {"no handshake": 2, "half-sent request": 1}}
    assert "\nrefused: no handshake 2, half-sent request 1\n" in as_text(HERE, stats)


def test_each_keyspace_has_its_own_lines():
    two = [IDLE["keyspaces"][0] | {"name": name} for name in ("workers-1", "workers-2")]
    text = as_text(HERE, IDLE | {"keyspaces": two})
    assert text.count("nobody waits") == 2
    assert text.index("'workers-1'") < text.index("'workers-2'")


def test_each_run_has_a_line():
    runs = [
        {"name": name, "sessions": 3, "keys": 12, "watches": 7, "revision": 88, "bytes": 2048} for name in ("a", "b")
    ]
    assert as_text(HERE, IDLE | {"runs": runs}).splitlines()[-2:] == [
        "run 'a': 3 session(s), 12 keys, 7 watches, revision 88, 2.0 KiB",
        "run 'b': 3 session(s), 12 keys, 7 watches, revision 88, 2.0 KiB",
    ]


def test_runs_that_have_gone_are_counted():
    line = "runs that have ended since the start, and their keys with them: 3"
    assert as_text(HERE, IDLE | {"runs": [], "runs_forgotten": 3}).splitlines()[-1] == line
    assert "have ended" not in as_text(HERE, IDLE | {"runs": [], "runs_forgotten": 0})


@pytest.mark.parametrize(
    "answer",
    [
        b"{}",
        b"[]",
        b'"text"',
        json.dumps(IDLE | {"server": {}}).encode(),
        json.dumps(IDLE | {"connections": None}).encode(),
        json.dumps(IDLE | {"requests": []}).encode(),
        json.dumps(IDLE | {"bytes": dict.fromkeys(IDLE["bytes"], "x")}).encode(),
    ],
)
def test_a_peer_with_our_hello_and_other_statistics_is_an_endpoint_that_cannot_be_used(answer: bytes):
    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(9, socket.MSG_WAITALL)
            connection.sendall(b"RDZV" + struct.pack("<I", 1))
            connection.recv(9, socket.MSG_WAITALL)
            connection.sendall(struct.pack("<IIB", 5 + len(answer), 1, 0) + answer)

    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:
        listener.settimeout(60)
        served = pool.submit(serve)
        where = {"rdzv_endpoint": "127.0.0.1:{1}".format(*listener.getsockname()), "rdzv_backend": "", "rdzv_id": ""}
        args = argparse.Namespace(**where, rdzv_conf="", json=False, timeout=60.0)
        with pytest.raises(EndpointUnreachable, match="answers with something else than statistics"):
            run(args)
        served.result(60)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.04, "0.0 s"),
        (59.94, "59.9 s"),
        (60, "1 min 0 s"),
        (3599.9, "59 min 59 s"),
        (3600, "1 h 0 min"),
        (90061, "25 h 1 min"),
    ],
)
def test_durations(seconds: float, text: str):
    assert first_line(seconds).endswith(f", up {text}")


def test_what_a_server_really_says_has_all_that_is_shown():
    with StoreServer("127.0.0.1", threads=2) as server:
        text = as_text(Endpoint("127.0.0.1", server.port), server.stats())
    lines = text.splitlines()
    assert ", 2 thread(s), up " in lines[0]
    assert lines[-2:] == [f"keyspace 'default', port {server.port}: 0 keys, 0 queues, 0 B", "  nobody waits"]


@pytest.mark.parametrize(
    "text", [b"[]", b"{", b'{"runs": 5}', b'{"runs": [5]}', b'{"runs": [{}]}', b'{"keyspaces": [5]}', b"[" * 100_000]
)
def test_what_is_no_statistics_is_refused_when_it_comes(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"instead of an object|cannot be read|Expecting property|nested too deeply"):
        parse_statistics(text)
