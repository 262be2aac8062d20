"""`rdzv bench store` runs, and counts what was asked, also at the root of a job's proxies."""

from __future__ import annotations

import pytest
from kits.bench.bench_kit import bench, find

from rdzv_launcher.bench.points import DidNotFinish, Turns
from rdzv_launcher.bench.results import Result
from rdzv_launcher.bench.store import ROUTES, SIZES, StoreCase, notes, run_once, store_points

pytestmark = pytest.mark.thorough


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
    of = ["--workloads=storm,barrier,hold", "--targets=ours,echo,ours:2", "--connections=10", "--repeats=2"]
    result = bench("store", "--quick", *of, "--json").result()
    cases = {"storm, 40 clients": 40, "barrier, 10 clients": 10, "hold, 80 clients": 80}
    check(result, cases, {"ours", "echo", "ours:2"}, {"wall", "cpu_per_request", "p50", "p99"}, "echo")
    storm, barrier, _hold = result.details
    for details, requests in ((storm, 2 * 40), (barrier, 2 * 10 * 2)):
        for target, runs in details["runs"].items():
            assert [(run["requests"], run["failures"]) for run in runs] == [(requests, {})] * 2
            cpu = find(result, details["case"], target, "cpu_per_request")
            assert cpu.samples == tuple(run["cpu_per_request"] for run in runs)


def test_workers_by_both_transports() -> None:
    result = bench("store", "--quick", "--workloads=worker", "--workers=1,2", "--repeats=2", "--json").result()
    cases = {f"{count}, values of {size} bytes": int(count[0]) for size in SIZES for count in ("1 worker", "2 workers")}
    check(result, cases, {"loopback", "unix"}, {"request_wall", "worker_cpu"}, "loopback")


def test_the_root_is_asked_for_each_rank_once_by_its_node() -> None:
    nodes, per_node = 4, 2
    ranks, name = nodes * per_node, f"{nodes} nodes x {per_node} ranks"
    result = bench("store", "--workloads=init", f"--job={nodes}x{per_node}", "--repeats=1", "--json").result()
    assert {ratio.reference for ratio in result.ratios} == {"direct"}
    assert [each["case"] for each in result.details] == [
        f"{name}, {stage}{delay}" for delay in ("", ", 2 ms") for stage in ("gloo init", "barrier")
    ]
    for details in result.details:
        assert details["runs"].keys() == {*ROUTES}
        for route, (run,) in details["runs"].items():
            direct, asked = route == "direct", sum(run["root"].values())
            assert find(result, details["case"], route, "root_requests").samples == (asked,)
            if "barrier" in details["case"]:
                late = run["root"].get("follow", 0)  # what proxies still look at of the init is not the barrier's
                assert asked - late <= (ranks if direct else 2 * nodes)
                assert run["connections"] == (ranks if direct else nodes)
                continue
            assert run["asked"] == ranks * (2 + 3 * ranks)
            if direct:
                assert run["root"] == {"add": ranks, "set": ranks, "wait": 2 * ranks**2, "get": ranks**2}
            else:
                assert asked <= 1.5 * ranks * nodes
    slow, fast = (find(result, f"{name}, gloo init{delay}", "direct", "init_wall") for delay in (", 2 ms", ""))
    assert slow.samples[0] > (2 + 3 * ranks) * 0.002
    assert fast.samples[0] > 0
    with pytest.raises(DidNotFinish, match="clients"):  # which is a result
        run_once("direct", 0.0, 8, 32, limit_s=0.01)


def test_failures_are_told_under_the_table() -> None:
    case = StoreCase("storm", 10, rounds=1, limit_s=1)
    figures = dict.fromkeys(("wall", "cpu_per_request", "p50", "p99"), 1.0)
    bad = {**figures, "listen_overflows": 3, "failures": {"no answer": 2}}
    good = {**figures, "listen_overflows": 0, "failures": {}}
    failed, overflows = notes(case, Turns({"libuv": [bad, good], "ours": [good]}))
    assert failed.startswith("libuv: 2 of 20 connections failed")
    assert overflows.startswith("libuv: a full accept queue cost 3 ")
    points = store_points(case, Turns({"libuv": [bad, good], "ours": [good, good]}))
    assert {point.target: point.unfinished for point in points} == {"libuv": "2 of 20 connections failed", "ours": ""}


def test_terminal_has_tables_and_says_what_they_are() -> None:
    done = bench("store", "--quick", "--connections=5", "--workloads=storm", "--targets=ours,echo")
    assert done.returncode == 0, done.stderr
    assert "\nstorm, 20 clients\n  wall time [s]\n    ours  " in done.stdout
    assert "store: measuring storm, 20 clients" in done.stderr
    assert "no ratios: one run each" in done.stdout
