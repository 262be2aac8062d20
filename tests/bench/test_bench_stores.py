"""`rdzv bench store` runs, and counts what was asked, also at the root; the relay takes its time."""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from contextlib import ExitStack
from dataclasses import replace

import pytest
from kits.bench.bench_kit import bench, find

from rdzv_launcher.bench.children import Child
from rdzv_launcher.bench.points import DidNotFinish, Turns
from rdzv_launcher.bench.results import Result
from rdzv_launcher.bench.servers import relay
from rdzv_launcher.bench.start_of_job import Way, run_once
from rdzv_launcher.bench.store import StoreCase, StoreSample, notes, points_of

pytestmark = pytest.mark.thorough

NODES, PER_NODE, FANOUT = 4, 2, 2
RANKS = NODES * PER_NODE


def check(result: Result, cases: dict[str, int], targets: set[str], figures: set[str], reference: str) -> None:
    """Each target has each figure in each case, twice measured; ``cases``: with how many clients."""
    assert result.end is not None
    assert {(p.case, p.nodes) for p in result.points} == {*cases.items()}
    for case in cases:
        points = [point for point in result.points if point.case == case and point.figure != "grown"]
        assert {(p.target, p.figure) for p in points} == {(t, f) for t in targets for f in figures}
        for p in points:
            assert (len(p.samples), p.reference) == (2, p.target == reference)
            assert min(p.samples) > 0
    assert {(r.target, r.reference) for r in result.ratios} == {(t, reference) for t in targets - {reference}}


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


def test_workers_by_both_transports() -> None:
    flags = ["--workloads=worker", "--workers=1,2", "--sizes=1024", "--repeats=2", "--json"]
    result = bench("store", "--quick", *flags).result()
    cases = {"1 worker, values of 1024 bytes": 1, "2 workers, values of 1024 bytes": 2}
    check(result, cases, {"loopback", "unix"}, {"request_wall", "worker_cpu", "store_cpu", "start"}, "loopback")


def test_the_root_is_asked_for_each_rank_once_by_its_node() -> None:
    flags = [f"--job={NODES}x{PER_NODE}", f"--fanout={FANOUT}", "--repeats=1", "--json"]
    result = bench("store", "--workloads=init", *flags).result()
    assert {ratio.reference for ratio in result.ratios} == {"direct"}
    ways = {"direct", "tiered", "tiered-unix", f"tiered, fanout={FANOUT}"}
    name = f"{NODES} nodes x {PER_NODE} ranks"
    assert [each["case"] for each in result.details] == [
        f"{name}, {stage}{delay}" for delay in ("", ", 2 ms") for stage in ("gloo init", "barrier")
    ]
    for details in result.details:
        assert details["runs"].keys() == ways
        for target, (run,) in details["runs"].items():
            requests = find(result, details["case"], target, "root_requests").samples
            assert requests == (sum(run["root"].values()),)
            if "barrier" in details["case"]:
                assert sum(run["root"].values()) <= (RANKS if target == "direct" else 2 * NODES)
                assert run["connections"] == {"direct": RANKS, f"tiered, fanout={FANOUT}": FANOUT}.get(target, NODES)
                continue
            assert run["asked"] == RANKS * (2 + 3 * RANKS)
            if target == "direct":
                assert run["root"] == {"add": RANKS, "set": RANKS, "wait": 2 * RANKS**2, "get": RANKS**2}
            else:
                assert requests[0] <= 1.5 * RANKS * NODES
    slow, fast = (find(result, f"{name}, gloo init{delay}", "direct", "init_wall") for delay in (", 2 ms", ""))
    assert slow.samples[0] > (2 + 3 * RANKS) * 0.002
    assert fast.samples[0] > 0


def test_way_that_does_not_finish_is_a_result() -> None:
    with pytest.raises(DidNotFinish, match="clients"):
        run_once(Way("direct"), 8, 32, limit_s=0.01)


def test_failures_are_told_under_the_table() -> None:
    case = StoreCase("storm", 10, rounds=1, gets=1, limit_s=1)
    bad = StoreSample(1.0, 20, 1.0, 1.0, 1.0, listen_overflows=3, failures={"no answer": 2})
    good = replace(bad, listen_overflows=0, failures={})
    failed, overflows = notes(case, Turns({"libuv": [bad, good], "ours": [good]}))
    assert failed.startswith("libuv: 2 of 20 connections failed")
    assert overflows.startswith("libuv: a full accept queue cost 3 ")
    points = points_of(case, ["libuv", "ours"], Turns({"libuv": [bad, good], "ours": [good, good]}))
    assert {point.target: point.unfinished for point in points} == {"libuv": "2 of 20 connections failed", "ours": ""}


def test_terminal_has_tables_and_says_what_they_are() -> None:
    done = bench("store", "--quick", "--storm=20", "--workloads=storm", "--targets=ours,echo")
    assert done.returncode == 0, done.stderr
    assert "\nstorm, 20 clients\n  wall time [s]\n    ours  " in done.stdout
    assert "store: measuring storm, 20 clients" in done.stderr
    assert "no ratios: one run each" in done.stdout


def test_relay_passes_all_on_and_takes_its_time() -> None:
    delay_s, data = 0.05, os.urandom(5_000_000)
    with ExitStack() as opened:
        server = opened.enter_context(socket.create_server(("127.0.0.1", 0)))
        host, port = server.getsockname()
        way = opened.enter_context(Child("the relay", relay, host, port, delay_s))
        near = opened.enter_context(socket.create_connection((host, way.answer()), 60))
        far = opened.enter_context(server.accept()[0])
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
