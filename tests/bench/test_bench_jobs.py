"""`rdzv bench launch` and `faults`: real jobs, what is said of one that fails, and what a benchmark leaves: nothing."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from kits.bench.bench_kit import bench, find, http_backend, stand_ins, started
from kits.eventually import eventually

from rdzv_launcher.bench import jobs
from rdzv_launcher.bench.backends import Candidate
from rdzv_launcher.bench.children import Guard
from rdzv_launcher.bench.faults import FAULTS, c10d_conf, cases, inflict
from rdzv_launcher.bench.jobs import Job, JobFailed, Launcher, references
from rdzv_launcher.bench.launch import launch
from rdzv_launcher.tools import cli as tools
from rdzv_plugins.interfaces import Capability
from rdzv_plugins.testing.harness import Harness
from rdzv_plugins.testing.processes import marked

pytestmark = pytest.mark.thorough

LIMIT_S = 90.0
FIGURES = {"first_line", "first_collective", "job_cpu", "agent_peak", "ending"}


def test_stranger_s_backend_is_launched_by_name(tmp_path: Path) -> None:
    which = ["--cases=nodes", "--backends=http", "--references=none", "--json"]
    result = bench("launch", "--quick", *which, sites=http_backend(tmp_path)).result()
    assert result.end is not None
    assert result.manifest["versions"]["rdzv-http"] == "7.5"
    figures = {point.figure: point.samples[0] for point in result.points}
    assert figures.keys() == FIGURES
    for point in result.points:
        assert (point.target, point.case, point.unfinished) == ("http", "2 nodes, 1 worker each", "")
        assert point.samples[0] > 0
    assert figures["first_collective"] > figures["first_line"] + 0.1, "the workers of these runs import torch"


def test_torchrun_runs_beside_as_the_reference_and_workers_may_be_forked_from_one_import() -> None:
    result = bench("launch", "--quick", "--cases=preload", "--json").result()
    assert {ratio.reference for ratio in result.ratios} == {"torchrun"}
    cpu = {
        target: find(result, "one node, 2 workers with torch", target, "job_cpu").samples[0]
        for target in ("rdzv-run", "rdzv-run --preload=torch", "torchrun")
    }
    assert cpu["rdzv-run --preload=torch"] < 0.85 * cpu["rdzv-run"], "torch is imported once, and not twice"


def test_time_to_the_next_collective_of_a_stranger_s_backend(tmp_path: Path) -> None:
    which = ["--faults=worker", "--backends=http", "--references=none", f"--limit={LIMIT_S}", "--preload=torch"]
    result = bench("faults", "--quick", "--json", *which, sites=http_backend(tmp_path)).result()
    assert {point.target for point in result.points} == {"http", "http --preload=torch"}
    case = "a worker is killed"
    recover, restarted = (find(result, case, "http", figure).samples[0] for figure in ("recover", "restarted"))
    assert 0 < restarted < recover < LIMIT_S
    assert recover - restarted > 0.1, "the new workers import torch before their first collective"
    assert 0 < find(result, case, "http --preload=torch", "recover").samples[0] < LIMIT_S
    (run,) = result.details[0]["runs"]["http"]
    assert (run["rank"], run["served"], run["nodes_after"]) == (2, False, 3)


def test_job_goes_on_when_the_serving_process_of_three_endpoints_is_killed() -> None:
    which = ["--faults=place", "--backends=parallel", "--references=none", f"--limit={LIMIT_S}", "--json"]
    result = bench("faults", "--quick", *which).result()
    case = "the serving process of three endpoints is killed"
    assert 0 < find(result, case, "parallel", "restarted").samples[0] < LIMIT_S
    (run,) = result.details[0]["runs"]["parallel"]
    assert (run["served"], run["nodes_after"]) == (True, 2)


class Nowhere(Harness):
    """Nobody serves the endpoint."""

    def endpoint(self, directory: Path) -> str:
        return str(directory)


@pytest.fixture
def guard(tmp_path: Path, monkeypatch) -> Iterator[Guard]:
    """Of jobs whose workers are stand-ins."""
    monkeypatch.setattr(jobs, "WORKER", stand_ins(tmp_path)[1])
    with Guard() as guard:
        yield guard
        assert marked(guard.mark, parts=True) == {}, "a job leaves nothing, nor does one that is frozen"


@pytest.mark.parametrize(
    ("fault", "elastic", "limit_s", "result", "agents"),
    [
        ("worker", True, LIMIT_S, "did not go on: exit code 3 of node 2", 3),
        ("agent", False, 1.0, "did not go on within 1 s", 4),
        ("frozen", True, 1.0, "did not go on within 1 s", 3),
        ("host-again", True, 1.0, "did not go on within 1 s", 4),
    ],
)
def test_job_that_does_not_go_on_is_a_result(guard, tmp_path, fault, elastic, limit_s, result, agents) -> None:
    """``agents``: how many were started, that in the lost one's place included."""
    program = str(tmp_path / "launcher")
    capabilities = {Capability.NODE_RANK, *([Capability.ELASTIC] if elastic else [])}
    launcher = Launcher("stand-in", program, Candidate("any", Nowhere(), capabilities))
    with pytest.raises(JobFailed, match=f"^{result}$") as failed:
        inflict(guard, FAULTS[fault].of(launcher), launcher, 3, limit_s)
    assert len([*guard.directory.glob("job-1/agent*.log")]) == agents
    assert ("the worker has gone" in failed.value.words) == (fault == "worker")


def test_launch_that_fails_is_a_result_with_the_launcher_s_words(guard, tmp_path: Path, monkeypatch) -> None:
    target = Launcher("stand-in", str(tmp_path / "launcher"), Candidate("any", Harness(), {Capability.NODE_RANK}))
    with pytest.raises(JobFailed, match="the workers did not start within 1 s"):
        launch(target, "collective", 3, 2, guard, 1.0)
    (tmp_path / "ends.py").write_text("")
    monkeypatch.setattr(jobs, "WORKER", tmp_path / "ends.py")
    with pytest.raises(JobFailed, match="the workers did not start: exit code 3 of node") as failed:
        launch(target, "line", 3, 1, guard, LIMIT_S)
    assert failed.value.words == "stand-in: error: the worker has gone"


@pytest.mark.parametrize(
    ("faults", "expected"),
    [
        ("worker", {"a worker is killed": "static elastic torch-static torch-c10d"}),
        (
            "agent,frozen",
            {
                "an agent is killed": "elastic torch-c10d",
                "an agent is killed and started again": "static torch-static",
                "an agent is frozen": "elastic torch-c10d",
                "an agent is frozen and another started": "static torch-static",
            },
        ),
        (
            "host-again,host",
            {
                "the store's host is killed": "elastic torch-c10d",
                "the store's host is killed and started again": "static elastic torch-static torch-c10d",
            },
        ),
        ("place,place-frozen", {}),  # of several endpoints, which none of these has
    ],
)
def test_jobs_that_go_on_in_different_ways_are_not_of_one_case(faults, expected) -> None:
    """Ratios are formed within a case."""
    backends = {"static": set(), "elastic": {Capability.ELASTIC}}
    mine = [Launcher(name, "rdzv-run", Candidate(name, Harness(), has)) for name, has in backends.items()]
    found = cases(faults.split(","), [*mine, *references(["torch-static", "torch-c10d"])])
    found = {fault: hit for fault, hit in found.items() if hit}
    assert {fault.case: " ".join(target.name for target in hit) for fault, hit in found.items()} == expected
    for fault, hit in found.items():
        assert {fault.of(target).way(3) for target in hit} == {fault.way(3)}, fault.case


def test_torch_s_c10d_is_as_patient_as_the_others(guard) -> None:
    (target,) = references(["torch-c10d"], c10d_conf(6))
    with Job(guard, target, "2:3", 1, "endless") as job:
        command = job.command(0)
    assert Path(command[0]).name == "torchrun"
    assert "--rdzv-conf=keep_alive_interval=2,keep_alive_max_attempt=3,last_call_timeout=2" in command


@pytest.mark.parametrize(("which", "missing"), [("launch", "rdzv-run"), ("faults", "etcd")])
def test_benchmark_that_cannot_begin_leaves_no_file(which, missing, monkeypatch, tmp_path: Path, capfd) -> None:
    out, empty = tmp_path / "out", tmp_path / "no-programs"
    empty.mkdir()
    monkeypatch.setenv("PATH", str(empty))  # without etcd
    if missing == "rdzv-run":
        monkeypatch.setattr("sysconfig.get_path", lambda name: str(empty))
    assert tools.main(["bench", which, "--quick", "--backends=etcd", "--references=none", f"--out={out}"]) != 0
    assert [*out.glob("*")] == []
    assert missing in capfd.readouterr().err


def test_benchmark_that_is_killed_leaves_no_process_and_no_file() -> None:
    with started("launch", "--quick", "--cases=one-node", "--json") as process:

        def agent() -> int:
            running = process.left().items()
            return next((pid for pid, line in running if "bin/rdzv-run --nproc" in line), 0)

        pid = eventually(agent, lambda: f"no agent was started: {process.left()}")
        os.kill(pid, signal.SIGSTOP)  # else it might end with its worker, and that with its standard input
        directory = Path(os.readlink(f"/proc/{pid}/cwd"))
        assert directory.is_dir()
        process.kill()
        process.wait()
        eventually(lambda: not process.left(), lambda: f"still there: {process.left()}")
    assert not directory.exists()
