"""`rdzv bench launch`: real launches, a stranger's backend by name, and what is left when it is killed: nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from bench_kit import find, started
from harness import wait_until
from launch_kit import file_backend, measured, stand_ins

from launcher import tools
from launcher.bench.launch_guard import Guard, end_all, environment, marked
from launcher.bench.launch_processes import Launch
from launcher.bench.launch_targets import JobFailed, Target

FIGURES = {"first_line", "first_collective", "agent_cpu", "agent_peak", "ending", "total_cpu"}
LIMIT_S = 90.0


def test_stranger_s_backend_is_launched_by_name(tmp_path: Path) -> None:
    which = ["--cases=nodes", "--backends=file", "--references=none"]
    result = measured("launch", "--quick", *which, sites=file_backend(tmp_path))
    assert result.end is not None
    assert result.manifest["versions"]["rdzv-file"] == "0.1.0"
    assert {point.figure for point in result.points} == FIGURES
    for point in result.points:
        assert (point.target, point.case, point.unfinished) == ("file", "2 nodes, 1 worker each", "")
        assert len(point.samples) == 1
        assert point.samples[0] > 0
    figures = {point.figure: point.samples[0] for point in result.points}
    assert figures["agent_cpu"] < figures["total_cpu"]
    (details,) = result.details
    (with_torch,) = details["collective_cpu_s"]["file"]
    assert with_torch > figures["total_cpu"] + 1, "the workers of these runs import torch"


def test_torchrun_runs_beside_as_the_reference() -> None:
    result = measured("launch", "--quick", "--collectives=0", "--cases=one-node")
    case = "one node, 2 workers"
    assert {point.figure for point in result.points} == FIGURES - {"first_collective"}
    assert find(result, case, "torchrun", "first_line").reference
    assert not find(result, case, "rdzv-run", "first_line").reference
    assert all(len(point.samples) == 1 for point in result.points)
    assert {ratio.reference for ratio in result.ratios} == {"torchrun"}


def test_benchmark_that_is_killed_leaves_no_process_and_no_file() -> None:
    with started("launch", "--quick", "--cases=one-node", "--json") as process:

        def agent() -> int:
            running = process.left().items()
            return next((pid for pid, line in running if "bin/rdzv-run --nproc" in line and "mount" not in line), 0)

        pid = wait_until(agent, LIMIT_S, lambda: f"no agent was started: {process.left()}")
        os.kill(pid, signal.SIGSTOP)  # else it might end with its worker, and that with its standard input
        directory = Path(os.readlink(f"/proc/{pid}/cwd"))
        assert directory.is_dir()
        process.kill()
        process.wait()
        wait_until(lambda: not process.left(), LIMIT_S, lambda: f"still there: {process.left()}")
    assert not directory.exists()


def test_guard_ends_frozen_processes_of_its_mark_and_no_others(tmp_path: Path) -> None:
    sleeps = [sys.executable, "-c", "import time; time.sleep(600)"]
    with subprocess.Popen(sleeps) as stranger:
        try:
            with Guard() as guard:
                mark, directory = guard.new_job()
                one, other = (subprocess.Popen(sleeps, env=environment(f"{mark}{part}")) for part in ("-0", "-1"))
                (directory / "file").write_text("x")
                wait_until(lambda: len(marked(mark)) == 2, LIMIT_S, lambda: f"{marked(mark)}")
                end_all(f"{mark}-0")
                assert one.wait(LIMIT_S) == -signal.SIGKILL
                assert marked(mark) == [other.pid]
                other.send_signal(signal.SIGSTOP)
            assert other.wait(LIMIT_S) == -signal.SIGKILL
            assert not directory.exists()
            assert stranger.poll() is None
        finally:
            stranger.kill()


def test_launch_that_fails_is_a_result_with_the_launcher_s_words(tmp_path: Path) -> None:
    """As of a target that needs longer than its limit: the others are measured all the same."""
    program, worker = stand_ins(tmp_path)
    target = Target("stand-in", program, "any", ranks=True)
    with Guard() as guard:
        (tmp_path / "ends.py").write_text("")
        ends = Launch(3, 1, tmp_path / "ends.py", guard, [], LIMIT_S)
        with pytest.raises(JobFailed, match=r"^an agent ended before its workers had started$") as failed:
            ends.run(target, collective=False)
        assert failed.value.words == "stand-in: error: the worker has gone"
        with pytest.raises(JobFailed, match="the workers did not start within 1 s"):
            Launch(3, 1, worker, guard, [], 1.0).run(target, collective=False)
        assert marked(guard.mark) == []


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--cases=two"], "--cases: 'two' is none of one-node, nodes"),
        (["--references=torch"], "--references: 'torch' is none of torch-static, torch-c10d"),
        (["--nodes=1"], "--nodes=1: at least 2 are needed"),
        (["--repeats=0"], "--repeats=0"),
        (["--collectives=-1"], "--collectives=-1"),
        (["--limit=0"], "--limit=0"),
        (["--backends=nobody"], "nobody"),
    ],
)
def test_wrong_arguments_are_named(capfd, arguments: list[str], named: str) -> None:
    assert tools.main(["bench", "launch", *arguments]) != 0
    printed = capfd.readouterr()
    assert named in printed.err
    assert "Traceback" not in printed.err
    assert printed.out == ""
