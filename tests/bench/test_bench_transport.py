"""``rdzv bench transport``: that it measures what it says. Its times are not looked at."""

from __future__ import annotations

import pytest
from kits.bench.bench_kit import bench

pytestmark = pytest.mark.thorough

CASES = {"1 client, values of 1024 bytes": 1, "2 clients, values of 1024 bytes": 2}


def test_every_transport_is_measured_in_one_run() -> None:
    result = bench("transport", "--quick", "--clients=1,2", "--sizes=1024", "--repeats=2", "--json").result()
    assert (result.bench, result.end is not None) == ("transport", True)
    assert result.manifest["options"] == {"clients": [1, 2], "sizes": [1024], "rounds": 10, "repeats": 2}
    assert {(p.case, p.nodes, p.axis) for p in result.points} == {(c, n, "clients") for c, n in CASES.items()}
    transports = ("loopback", "unix", "python")
    figures = ("wall", "worker_cpu", "store_cpu", "start")
    for case in CASES:
        points = [point for point in result.points if point.case == case]
        assert {(p.target, p.figure) for p in points} == {(t, f) for t in transports for f in figures}
        for p in points:
            assert len(p.samples) == 2
            assert min(p.samples) > 0
            assert p.reference == (p.target == "loopback")
    assert {(r.target, r.reference) for r in result.ratios} == {("unix", "loopback"), ("python", "loopback")}


def test_what_is_no_number_is_refused() -> None:
    done = bench("transport", "--clients=1,none")
    assert (done.returncode, done.stdout) == (2, "")
    assert "--clients=none: a whole number, at least 1, is needed" in done.stderr
