"""`rdzv bench store`, `tiered` and `transport` run, and count what was asked, also at the root."""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from dataclasses import replace

import pytest
from kits.bench.bench_kit import bench, find, with_openssl

from rdzv_launcher.bench.method.results import Result
from rdzv_launcher.bench.method.turns import DidNotFinish, Turns
from rdzv_launcher.bench.processes.closed import conf_of
from rdzv_launcher.bench.processes.hosts import Network
from rdzv_launcher.bench.processes.parts import Part
from rdzv_launcher.bench.store.cases import StoreCase, StoreSample
from rdzv_launcher.bench.store.figures import as_points, notes
from rdzv_launcher.bench.store.servers import StoreProcess, StoreTarget, parse_target
from rdzv_launcher.bench.store.sessions import measure_sessions
from rdzv_launcher.bench.tiered.cases import TieredCase, Way, measure
from rdzv_launcher.bench.tiered.parts import TieredParts
from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.errors import AccessRefused, RdzvError
from rdzv_plugins.kvstore.native.framing import ask_statistics

pytestmark = pytest.mark.thorough

TIERED = ("tiered", "--quick", "--json")
NODES, PER_NODE, FANOUT = 8, 4, 2
RANKS, MANY = NODES * PER_NODE, NODES * 8
"""Of gloo's start, and of NCCL's."""


def check(result: Result, cases: dict[str, int], targets: set[str], figures: set[str], reference: str) -> None:
    """Each target has each figure in each case, twice measured; ``cases``: with how many clients."""
    assert result.end is not None
    assert {(p.case, p.nodes, p.axis) for p in result.points} == {(c, n, "clients") for c, n in cases.items()}
    for case in cases:
        points = [point for point in result.points if point.case == case]
        assert {(p.target, p.figure) for p in points if p.figure != "grown"} == {
            (t, f) for t in targets for f in figures
        }
        for p in points:
            assert (len(p.samples), p.reference) == (2, p.target == reference)
            assert min(p.samples) > 0 or p.figure == "grown"
    assert {(r.target, r.reference) for r in result.ratios} == {(t, reference) for t in targets - {reference}}


def test_transports() -> None:
    result = bench("transport", "--quick", "--clients=1,2", "--sizes=1024", "--repeats=2", "--json").result()
    cases = {"1 client, values of 1024 bytes": 1, "2 clients, values of 1024 bytes": 2}
    check(result, cases, {"loopback", "unix", "python"}, {"wall", "worker_cpu", "store_cpu", "start"}, "loopback")
    assert result.manifest["options"] == {"clients": [1, 2], "sizes": [1024], "rounds": 10, "repeats": 2}


def test_stores() -> None:
    sizes = ["--connections=20", "--storm=20", "--hold=30", "--repeats=2", "--json"]
    of = ["--workloads=storm,barrier,hold", "--targets=ours,echo,ours:2"]
    result = bench("store", "--quick", *sizes, *of).result()
    cases = {"storm, 20 clients": 20, "barrier, 20 clients": 20, "hold, 30 clients": 30}
    check(result, cases, {"ours", "echo", "ours:2"}, {"wall", "cpu_per_request", "p50", "p99"}, "echo")
    storm, barrier, _hold = result.details
    for details, requests in ((storm, 2 * 20), (barrier, 2 * 20 * 2)):
        for target, runs in details["runs"].items():
            assert [(run["requests"], run["failures"]) for run in runs] == [(requests, {})] * 2
            cpu = find(result, details["case"], target, "cpu_per_request")
            assert cpu.samples == tuple(run["cpu_us"] for run in runs)


def test_many_clients_are_in_several_processes_and_each_asks_once() -> None:
    sizes = ["--many=30", "--per-process=12", "--repeats=2", "--targets=ours,echo"]
    (details,) = bench("store", "--workloads=many", *sizes, "--json").result().details
    for runs in details["runs"].values():
        for sample in runs:
            assert sample["requests"] == 30 * 3, "VALIDATE, PING, and what is asked"
            assert sample["wall_s"] == pytest.approx(sum(sample["phases"].values()))
    case = StoreCase("many", 30, rounds=1, gets=1, limit_s=1, per_process=12)
    assert (case.shares, replace(case, per_process=0).shares) == ([10, 10, 10], [30])


@with_openssl
def test_sessions_are_measured_in_every_way_beside_open_ones() -> None:
    ways = ["ours", "ours, token", "ours, tls", "ours, token+tls"]
    sizes = ["--sessions=3", "--rounds=2", "--repeats=2", "--targets=ours,echo", "--closed=token,tls,token+tls"]
    result = bench("store", "--workloads=open,ask", *sizes, "--json").result()
    for details, requests in zip(result.details, (3, 3 * 2 * 2), strict=True):
        assert [*details["runs"]] == ways, "nobody else has sessions"
        for way, samples in details["runs"].items():
            assert [sample["requests"] for sample in samples] == [requests] * 2
            both, alone = (find(result, details["case"], way, each) for each in ("cpu_both", "cpu_per_request"))
            assert all(0 < mine < ours for mine, ours in zip(alone.samples, both.samples, strict=True))
    assert {(ratio.target, ratio.reference) for ratio in result.ratios} == {(way, "ours") for way in ways[1:]}


def test_a_server_that_accepts_no_session_is_not_measured_as_if_it_did(tmp_path) -> None:
    case = StoreCase("ask", 2, rounds=1, gets=1, limit_s=60)
    with StoreProcess(StoreTarget("ours", "token"), [], conf_of("token", tmp_path)) as server:
        server.start()
        for conf in ({}, conf_of("token", tmp_path)):  # none, and another one's
            server.conf = conf
            with pytest.raises(RdzvError, match="token"):
                measure_sessions(case, server, "/test")


def test_failures_are_told_under_the_table() -> None:
    case = StoreCase("storm", 10, rounds=1, gets=1, limit_s=1)
    bad = StoreSample(1.0, 20, 1.0, 1.0, 1.0, 1.0, 0.0, listen_overflows=3, listen_drops=3, failures={"no answer": 2})
    good = replace(bad, listen_overflows=0, failures={})
    failed, overflows = notes(case, Turns({"libuv": [bad, good], "ours": [good]}))
    assert failed.startswith("libuv: 2 of 20 connections failed")
    assert overflows.startswith("libuv: a full accept queue cost 3 ")
    targets = [parse_target("libuv"), parse_target("ours")]
    points = as_points(case, targets, Turns({"libuv": [bad, good], "ours": [good, good]}))
    assert {point.target: point.unfinished for point in points} == {"libuv": "2 of 20 connections failed", "ours": ""}


def test_terminal_has_tables_and_says_what_they_are() -> None:
    done = bench("store", "--quick", "--storm=20", "--workloads=storm,names", "--targets=ours,echo")
    assert done.returncode == 0, done.stderr
    for case in ("storm, 20 clients", "names, 20 clients"):
        assert f"\n{case}\n  wall time [s]\n    ours  " in done.stdout
        assert f"store: measuring {case}" in done.stderr
    assert "no ratios: one run each" in done.stdout


# tiers


def runs(result: Result, stage: str, target: str) -> list[dict]:
    """What was read in the runs of all cases with this stage by this way."""
    stages = [details for details in result.details if f", {stage}" in details["case"] and target in details["runs"]]
    return [run for details in stages for run in details["runs"][target]]


@pytest.mark.parametrize("hosts", ["loopback", "auto"])
def test_the_root_is_asked_for_each_rank_once_by_its_node(hosts) -> None:
    result = bench(*TIERED, "--tree=none", f"--hosts={hosts}").result()
    assert result.end is not None
    assert {ratio.reference for ratio in result.ratios} == {"direct", "echo"}
    for details in result.details:
        for target, of_target in details.get("runs", {}).items():
            requests, sent = (find(result, details["case"], target, f"root_{each}") for each in ("requests", "bytes"))
            assert requests.samples == tuple(sum(run["root"].values()) for run in of_target)
            assert sent.samples == tuple(run["root_received"] + run["root_sent"] for run in of_target)
    for run in runs(result, "gloo init", "direct"):
        assert run["root"] == {"add": RANKS, "set": RANKS, "wait": 2 * RANKS**2, "get": RANKS**2}
        assert run["connections"] == RANKS
    for run in runs(result, "NCCL init", "direct"):
        assert run["root"] == {"add": MANY, "set": 1, "wait": MANY - 1, "get": MANY - 1}
    for route in ("tiered", "tiered-unix"):
        for run in runs(result, "gloo init", route):
            assert RANKS * (NODES - 1) <= sum(run["root"].values()) <= 1.5 * RANKS * NODES
            assert (run["asked"], run["connections"]) == (RANKS * (2 + 3 * RANKS), NODES)
        for run in runs(result, "barrier", route):
            assert NODES <= sum(run["root"].values()) <= 2 * NODES
    for run in runs(result, "barrier", f"tiered, fanout={FANOUT}"):
        assert run["connections"] == FANOUT
        assert sum(run["root"].values()) <= 2 * NODES
    (goals,) = (details["goals"] for details in result.details if details["case"] == "goals")
    counts = [each for each in goals if "beside direct" not in each["goal"]]
    assert [each for each in counts if not each["met"]] == []
    assert {each["met"] for each in goals if each not in counts} == {None}, "ratios of single runs are not judged"


def test_real_workers_come_together_through_proxies() -> None:
    result = bench(*TIERED, *(f"--{each}=none" for each in ("nodes", "many", "tree")), "--workers=2x2").result()
    case = "2 nodes x 2 ranks, workers of torch"
    (details,) = (details for details in result.details if details["case"] == case)
    (direct,), (tiered,) = details["runs"]["direct"], details["runs"]["tiered"]
    assert (direct["connections"], tiered["connections"]) == (4, 2)
    assert {name: direct["root"][name] for name in ("set", "wait", "get")} == {"set": 4, "wait": 32, "get": 16}
    assert find(result, case, "tiered", "root_requests").median < find(result, case, "direct", "root_requests").median


def test_a_tree_of_simulated_proxies_is_measured_by_all_ways() -> None:
    result = bench(*TIERED, *(f"--{each}=none" for each in ("nodes", "many", "workers")), "--tree=16x4").result()
    case = "16 simulated proxies x 4 ranks"
    barriers = f"{case}, one of 5 barriers"
    assert {point.case for point in result.points} == {f"{case}, connect", f"{case}, ADD", barriers}
    found = {
        way: find(result, barriers, way, "root_requests") for way in ("torch", "direct", "tiered", "tiered, fanout=2")
    }
    assert found["direct"].samples == (5 * 64,)
    assert found["tiered"].samples == (5 * 16 + 5,), "and one reads the counters"
    assert found["tiered, fanout=2"].samples[0] < 5 * 16
    assert (found["torch"].samples, bool(found["torch"].unfinished)) == ((), True), "torch's server does not count"


@with_openssl
def test_trunks_that_are_closed_to_strangers_are_measured_beside_open_ones() -> None:
    only = "--nodes=2 --per-node=2 --many=none --tree=none --routes=direct,tiered --delay=0 --hosts=loopback"
    result = bench(*TIERED, *only.split(), "--closed=token,tls,token+tls").result()
    (plain,) = runs(result, "gloo init", "tiered")
    for way in ("token", "tls", "token+tls"):
        (run,) = runs(result, "gloo init", f"tiered, {way}")
        assert (run["asked"], run["connections"], run["proxies"]["lost"]) == (plain["asked"], 2, [])


@with_openssl
@pytest.mark.parametrize(("way", "why"), [("token", "needs the job's token"), ("tls", "speaks TLS")])
def test_the_root_of_a_closed_way_lets_in_its_proxies_and_nobody_else(tmp_path, way, why) -> None:
    with Network(1, namespaces=False) as network:
        conf = conf_of(way, tmp_path)
        with TieredParts(network, network.nodes, per_node=1, delay_s=0.0, conf=conf) as parts:
            parts.open_proxies(unix=False, fanout=0)
            assert parts.root.question()["connections"]["open"] == 1
            with pytest.raises(AccessRefused, match=why):
                ask_statistics(Endpoint(*parts.entrance), 60)


def test_way_that_does_not_finish_is_a_result() -> None:
    with pytest.raises(DidNotFinish, match="clients"), Network(8, namespaces=False) as network:
        measure(TieredCase(8, 32, ("enrol", "gloo"), limit_s=0.01), Way("direct"), network)


def test_relay_passes_all_on_and_takes_its_time() -> None:
    delay_s, data = 0.05, os.urandom(5_000_000)
    with socket.create_server(("127.0.0.1", 0)) as server:
        host, port = server.getsockname()
        task = {"machine": {"address": host, "network": ""}, "host": host, "port": port, "delay_s": delay_s}
        with Part("relay", **task) as relay:
            relay.start()
            with socket.create_connection((host, relay.port), 60) as near, server.accept()[0] as far:
                far.settimeout(60)
                sending = threading.Thread(target=near.sendall, args=(data,))
                start = time.monotonic()
                sending.start()
                received = far.recv(1)
                assert time.monotonic() - start >= delay_s
                while len(received) < len(data):
                    received += far.recv(1 << 20)
                assert received == data
                sending.join()
                far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                far.close()
                assert near.recv(1) == b""  # a reset comes as an end
