"""`rdzv bench tiered` runs, and counts at the root what the design promises: a node's share, not a rank's square."""

import json
import os
import socket
import struct
import threading
import time

import pytest

from launcher import tools
from launcher.bench.tiered_parts import Part
from rdzv_plugins.errors import UsageError

NODES, PER_NODE = 8, 4
RANKS = NODES * PER_NODE
MANY_NODES, MANY_PER_NODE, FANOUT = 8, 8, 2


def measured(capfd, *arguments: str) -> dict:
    assert tools.main(["bench", "tiered", "--quick", "--json", *arguments]) == 0
    return json.loads(capfd.readouterr().out)


@pytest.fixture(scope="module", params=["loopback", "auto"])
def quick(request) -> dict:
    """The figures of one quick run with each kind of nodes."""
    with pytest.MonkeyPatch.context() as patch:
        lines: list[str] = []
        patch.setattr("builtins.print", lambda *words, **_: lines.append(" ".join(map(str, words))))
        assert tools.main(["bench", "tiered", "--quick", "--json", f"--hosts={request.param}"]) == 0
    return json.loads(lines[-1])


def stage(data: dict, case: int, name: str) -> dict:
    assert data["cases"][case]["unfinished"] == {}
    return data["cases"][case]["stages"][name]


def ways(figures: dict, route: str) -> list[dict]:
    found = [each for name, each in figures.items() if name.split(",")[0] == route]
    assert found
    return found


def test_direct_ranks_ask_all_of_it_of_the_root(quick) -> None:
    for each in ways(stage(quick, 0, "gloo init"), "direct"):
        assert each["root_by_name"] == {"add": RANKS, "set": RANKS, "wait": 2 * RANKS**2, "get": RANKS**2}
        assert each["connections"] == RANKS
    for each in ways(stage(quick, 0, "barrier"), "direct"):
        assert each["root_by_name"] == {"barrier": RANKS}


@pytest.mark.parametrize("route", ["tiered", "tiered-unix"])
def test_nodes_ask_for_each_rank_once(quick, route) -> None:
    for each in ways(stage(quick, 0, "gloo init"), route):
        assert RANKS * (NODES - 1) <= each["root_requests"]["max"] <= 1.5 * RANKS * NODES
        assert each["asked"] == RANKS * (2 + 3 * RANKS)
        assert each["connections"] == NODES
    for each in ways(stage(quick, 0, "barrier"), route):
        assert NODES <= each["root_requests"]["max"] <= 2 * NODES
        assert each["connections"] == NODES


def test_second_tier_leaves_few_connections_at_the_root(quick) -> None:
    for each in ways(stage(quick, 2, "barrier"), "tiered"):
        assert each["connections"] == FANOUT
        assert each["root_requests"]["max"] <= 2 * MANY_NODES
    for each in ways(stage(quick, 1, "barrier"), "tiered"):
        assert each["connections"] == MANY_NODES
    for each in ways(stage(quick, 1, "NCCL init"), "direct"):
        assert each["root_by_name"] == {
            "add": MANY_NODES * MANY_PER_NODE,
            "set": 1,
            "wait": MANY_NODES * MANY_PER_NODE - 1,
            "get": MANY_NODES * MANY_PER_NODE - 1,
        }


def test_goals_of_counts_are_met(quick) -> None:
    counts = [each for each in quick["goals"] if "time" not in each["goal"]]
    assert len(counts) >= 8
    assert [each for each in counts if not each["met"]] == []


def test_real_workers_come_together_through_proxies(capfd) -> None:
    data = measured(capfd, "--nodes=none", "--many=none", "--workers=2x2", "--routes=direct,tiered")
    routes = data["workers"]["routes"]
    assert (data["workers"]["ranks"], routes["direct"]["connections"], routes["tiered"]["connections"]) == (4, 4, 2)
    assert {name: routes["direct"]["root_by_name"][name] for name in ("set", "wait", "get")} == {
        "set": 4,
        "wait": 32,
        "get": 16,
    }
    assert routes["tiered"]["root_requests"] < routes["direct"]["root_requests"]


def test_relay_passes_all_on_and_takes_its_time() -> None:
    delay_s, data = 0.05, os.urandom(20_000_000)
    with socket.create_server(("127.0.0.1", 0)) as server:
        host, port = server.getsockname()
        task = {"machine": {"address": host, "network": ""}, "host": host, "port": port, "delay_s": delay_s}
        with Part("relay", task) as relay:
            relay.wait_ready()
            with socket.create_connection((host, relay.ready["port"]), 60) as near, server.accept()[0] as far:
                far.settimeout(60)
                there, back = (threading.Thread(target=send_all, args=(end, data)) for end in (near, far))
                start = time.monotonic()
                there.start()
                back.start()
                first = far.recv(1)
                assert time.monotonic() - start >= delay_s
                assert first + read_all(far) == data
                assert read_all(near) == data
                there.join()
                back.join()
            with socket.create_connection((host, relay.ready["port"]), 60) as near, server.accept()[0] as far:
                far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                far.close()
                assert near.recv(1) == b""  # a reset comes as an end


def send_all(end: socket.socket, data: bytes) -> None:
    end.sendall(data)
    end.shutdown(socket.SHUT_WR)


def read_all(end: socket.socket) -> bytes:
    return b"".join(iter(lambda: end.recv(1 << 20), b""))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--routes=fast"], "'fast' is none of direct, tiered, tiered-unix"),
        (["--hosts=there"], "'there' is none of auto, namespaces, loopback"),
        (["--nodes=1000"], "at most 4096 ranks"),
        (["--nodes=four"], "--nodes=four: a whole number"),
        (["--many=8"], "--many=8: two whole numbers, as in 4x8"),
        (["--many=2000x10"], "at most 18000 ranks"),
        (["--many=8x2", "--fanout=8"], "fewer than the 8 nodes"),
        (["--delay=-1"], "a number of milliseconds"),
        (["--limit=0"], "a number of seconds from 1"),
        (["--repeats=0"], "--repeats=0: a whole number"),
    ],
)
def test_wrong_arguments_are_refused(capsys, arguments, said) -> None:
    assert tools.main(["bench", "tiered", *arguments]) == UsageError.exit_code
    assert said in capsys.readouterr().err
