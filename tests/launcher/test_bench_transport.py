"""``rdzv bench transport``: that it measures what it says. Its times are not looked at."""

from __future__ import annotations

import json
import subprocess

from harness import BIN


def test_every_transport_is_measured_in_one_run() -> None:
    command = [BIN / "rdzv", "bench", "transport", "--quick", "--clients=1,2", "--sizes=1024", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    cases = json.loads(done.stdout)["cases"]
    assert [(case["clients"], case["bytes"]) for case in cases] == [(1, 1024), (2, 1024)]
    for case in cases:
        assert set(case["transports"]) == {"loopback", "unix", "python"}
        assert set(case["ratios"]) == {"unix / loopback", "python / loopback"}
        for figures in case["transports"].values():
            assert set(figures) == {"wall_us", "worker_cpu_us", "store_cpu_us", "start_ms"}
            assert all(figure["median"] > 0 for figure in figures.values())


def test_what_is_no_number_is_refused() -> None:
    command = [BIN / "rdzv", "bench", "transport", "--clients=1,none"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    assert "--clients=none: a whole number, at least 1, is needed" in done.stderr
