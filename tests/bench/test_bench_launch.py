"""`rdzv bench launch`: real launches, a stranger's backend by name, and what is left when it is killed: nothing."""

from __future__ import annotations

import argparse
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from kits.bench.bench_kit import find, started
from kits.bench.launch_kit import http_backend, leave_nothing_behind, measured, result_of, stand_ins, without_etcd

from rdzv_launcher.bench.backends import candidates
from rdzv_launcher.bench.jobs.launchers import JobFailed, Launcher
from rdzv_launcher.bench.launch.bench import measure
from rdzv_launcher.bench.launch.settings import LaunchSettings
from rdzv_launcher.bench.launch.starts import Launch
from rdzv_launcher.bench.method.readings import cpu_seconds
from rdzv_launcher.bench.processes.guard import Guard, end_all, environment, marked
from rdzv_launcher.bench.report.output import Output
from rdzv_launcher.tools import cli as tools
from rdzv_plugins.testing.agents.processes import wait_until
from rdzv_plugins.testing.harness import Harness

WITH_TORCH = {"first_collective", "job_cpu"}
FIGURES = WITH_TORCH | {"first_line", "agent_cpu", "agent_peak", "ending", "total_cpu"}
LIMIT_S = 90.0


def test_stranger_s_backend_is_launched_by_name(tmp_path: Path) -> None:
    which = ["--cases=nodes", "--backends=http", "--references=none"]
    result = measured("launch", "--quick", *which, sites=http_backend(tmp_path))
    assert result.end is not None
    assert result.manifest["versions"]["rdzv-http"] == "0.1.0"
    assert {point.figure for point in result.points} == FIGURES
    for point in result.points:
        assert (point.target, point.case, point.unfinished) == ("http", "2 nodes, 1 worker each", "")
        assert len(point.samples) == 1
        assert point.samples[0] > 0
    figures = {point.figure: point.samples[0] for point in result.points}
    assert figures["agent_cpu"] < figures["total_cpu"]
    (details,) = result.details
    (with_torch,) = details["collective_cpu_s"]["http"]
    assert with_torch > figures["total_cpu"] + 1, "the workers of these runs import torch"


def test_torchrun_runs_beside_as_the_reference() -> None:
    result = measured("launch", "--quick", "--collectives=0", "--cases=one-node")
    case = "one node, 2 workers"
    assert {point.figure for point in result.points} == FIGURES - WITH_TORCH
    assert find(result, case, "torchrun", "first_line").reference
    assert not find(result, case, "rdzv-run", "first_line").reference
    assert all(len(point.samples) == 1 for point in result.points)
    assert {ratio.reference for ratio in result.ratios} == {"torchrun"}


def test_workers_are_forked_from_one_import_where_that_is_asked_for() -> None:
    result = measured("launch", "--quick", "--cases=preload", "--full-node=2")
    case = "one node, 2 workers with torch"
    assert {(point.case, point.figure) for point in result.points} == {(case, figure) for figure in WITH_TORCH}
    assert {point.target for point in result.points if point.reference} == {"torchrun"}
    cpu = {
        target: find(result, case, target, "job_cpu").samples[0]
        for target in ("rdzv-run", "rdzv-run --preload=torch", "torchrun")
    }
    assert cpu["rdzv-run --preload=torch"] < 0.85 * cpu["rdzv-run"], "torch is imported once, and not twice"
    assert all(find(result, case, target, "first_collective").samples[0] > 0 for target in cpu)


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
    target = Launcher("stand-in", program, "any", ranks=True)
    with Guard() as guard:
        (tmp_path / "ends.py").write_text("")
        ends = Launch(3, 1, tmp_path / "ends.py", guard, [], LIMIT_S)
        with pytest.raises(JobFailed, match=r"^an agent ended before its workers had started$") as failed:
            ends.run(target, collective=False)
        assert failed.value.words == "stand-in: error: the worker has gone"
        with pytest.raises(JobFailed, match="the workers did not start within 1 s"):
            Launch(3, 1, worker, guard, [], 1.0).run(target, collective=False)
        assert marked(guard.mark) == []


@pytest.mark.parametrize("missing", ["launcher", "guard", "service"])
def test_benchmark_that_cannot_begin_leaves_no_file(monkeypatch, tmp_path: Path, capfd, missing: str) -> None:
    said = leave_nothing_behind("launch", missing, monkeypatch, tmp_path)
    assert said in capfd.readouterr().err


def test_backend_of_the_default_that_cannot_be_started_is_in_the_results(monkeypatch, tmp_path: Path, capfd) -> None:
    without_etcd(monkeypatch, tmp_path)
    found = candidates(argparse.Namespace(backends=None, rdzv_endpoint=[], rdzv_conf=[]))
    found = [each for each in found if each.name == "etcd"]
    settings = LaunchSettings(("nodes",), references="none", repeats=1, collectives=0, limit_s=LIMIT_S, warm_up=False)
    measure(settings, found, Output("launch", {}, as_json=True, out=None), asked_for=False)
    result = result_of(capfd.readouterr().out, tmp_path)
    point = find(result, "2 nodes, 1 worker each", "etcd", "first_line")
    assert (point.samples, point.unfinished.partition(";")[0]) == ((), "the program etcd is not installed")


class Busy:
    """A service that has nothing but work."""

    def __init__(self, pid: int) -> None:
        self.pids = (pid,)
        self.keeps_data = True

    def kill(self) -> None:
        raise NotImplementedError

    start_again = kill


_WORKS = "while True: pass"
_WAITS = """\
import sys, time
from rdzv_launcher.bench.method.readings import cpu_seconds
begun = cpu_seconds({pid})
while cpu_seconds({pid}) < begun + {more_s}: time.sleep(0.02)
print("worker started", flush=True)
sys.stdin.read()
"""


def test_cpu_of_the_service_is_counted_from_the_launch_on(tmp_path: Path) -> None:
    more_s = 0.6
    launcher, worker = tmp_path / "launcher", tmp_path / "worker.py"
    python = sys.executable
    launcher.write_text(f"#!{python}\nimport os\nos.execv({python!r}, [{python!r}, {str(worker)!r}])\n")
    launcher.chmod(0o755)
    with subprocess.Popen([sys.executable, "-c", _WORKS]) as service, Guard() as guard:
        try:
            worker.write_text(_WAITS.format(pid=service.pid, more_s=more_s))
            wait_until(lambda: cpu_seconds(service.pid) > more_s, LIMIT_S, lambda: "the service does not work")
            harness = Harness()
            harness.service = Busy(service.pid)
            target = Launcher("busy", str(launcher), "any", harness=harness)
            begun, of_children = cpu_seconds(service.pid), children_s()
            sample = Launch(1, 1, worker, guard, [], LIMIT_S).run(target, collective=False)
            own_s, meanwhile_s = children_s() - of_children, cpu_seconds(service.pid) - begun
        finally:
            service.kill()
    assert ms(more_s) <= ms(sample.agent_cpu) <= ms(own_s + meanwhile_s)
    assert ms(own_s + more_s) <= ms(sample.total_cpu) <= ms(own_s + meanwhile_s)


def ms(seconds: float) -> int:
    """Sums of fractions compare badly."""
    return round(1000 * seconds)


def children_s() -> float:
    """CPU of all those that were waited for."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--cases=two"], "--cases: 'two' is none of one-node, nodes, preload"),
        (["--references=torch"], "--references: 'torch' is none of torch-c10d, torch-static"),
        (["--nodes=1"], "--nodes=1: at least 2 are needed"),
        (["--full-node=1"], "--full-node=1"),
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
