"""The nodes of the conformance suite: what a failed test says of them, and that none of them outlives it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from kits.eventually import eventually

from rdzv_plugins.testing.builtin import ParallelHarness
from rdzv_plugins.testing.commands import Commands
from rdzv_plugins.testing.nodes import NodesJob

SCRIPT = """
import sys, time
from pathlib import Path
from rdzv_plugins.testing.builtin import ParallelHarness
from rdzv_plugins.testing.nodes import NodesJob

with ParallelHarness() as harness, NodesJob(harness, Path(sys.argv[1]), "3") as job:
    nodes = [job.node() for _ in range(3)]
    nodes[0].join()
    nodes[1].create()
    nodes[2].freeze()
    print(*(node.pid for node in nodes), flush=True)
    time.sleep(600)
"""


def is_gone(pid: int) -> bool:
    """Ended, or waiting to be reaped by whoever adopts it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] in "ZX"
    except OSError:
        return True


def fail(job: NodesJob) -> None:
    with job:
        waits, frozen = job.node(), job.node()
        waits.join()
        frozen.freeze()
        with pytest.raises(AssertionError, match=r"create of node 1 .* its process stands still"):
            frozen.later("agent", Commands.create).result(timeout=0.1)
        eventually(lambda: "joining at" in waits.log)
        raise AssertionError("what is wrong")


def test_failed_test_shows_what_its_nodes_have_said_and_ends_them(tmp_path: Path) -> None:
    said = r"(?s)^what is wrong\n--- node 0 \(pid \d+\):.*joining at.*--- node 1"
    with ParallelHarness() as harness:
        job = NodesJob(harness, tmp_path)
        with pytest.raises(AssertionError, match=said):
            fail(job)
    assert all(is_gone(node.pid) for node in job.nodes)


def test_error_of_a_node_is_all_that_its_user_would_see(tmp_path: Path) -> None:
    with ParallelHarness() as harness, NodesJob(harness, tmp_path, "2") as job:
        error = job.node(node_rank=7).join().error()
        assert error.is_a("UsageError")
        assert error.exit_code == 2
        assert "join of node 0" in str(error)
        assert error.text in str(error)
        assert error.remedy in str(error)


def test_no_node_outlives_a_run_of_tests_that_is_killed(tmp_path: Path) -> None:
    tests = subprocess.Popen([sys.executable, "-c", SCRIPT, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert tests.stdout
    try:
        pids = [int(pid) for pid in tests.stdout.readline().split()]
        assert len(pids) == 3
        assert not any(map(is_gone, pids))
    finally:
        tests.kill()
        tests.wait(60)
        tests.stdout.close()
    eventually(lambda: all(map(is_gone, pids)))
