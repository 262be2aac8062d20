"""`rdzv bench faults`: a real job that goes on, and what is said of one that does not."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import pytest
from kits.bench.bench_kit import find
from kits.bench.launch_kit import http_backend, leave_nothing_behind, measured, result_of, stand_ins, without_etcd

from rdzv_launcher.bench.backends import candidates
from rdzv_launcher.bench.faults.bench import c10d_conf, measure, wanted_conf
from rdzv_launcher.bench.faults.job import JobsAlike
from rdzv_launcher.bench.faults.kinds import FAULTS, cases, inflict
from rdzv_launcher.bench.faults.settings import FaultsSettings
from rdzv_launcher.bench.jobs.launchers import JobFailed, Launcher, meet, references
from rdzv_launcher.bench.processes.guard import Guard, marked
from rdzv_launcher.bench.report.output import Output
from rdzv_launcher.tools import cli as tools
from rdzv_plugins.testing.harness import Harness

pytestmark = pytest.mark.thorough

LIMIT_S = 90.0


def test_time_to_the_next_collective_of_a_stranger_s_backend(tmp_path: Path) -> None:
    which = ["--faults=worker", "--backends=http", "--references=none", f"--limit={LIMIT_S}", "--preload=torch"]
    result = measured("faults", "--quick", *which, sites=http_backend(tmp_path))
    assert result.end is not None
    assert {point.target for point in result.points} == {"http", "http --preload=torch"}
    assert result.manifest["versions"]["rdzv-http"] == "0.1.0"
    case = "a worker is killed"
    recover, restarted = (find(result, case, "http", figure).samples[0] for figure in ("recover", "restarted"))
    assert 0 < restarted < recover < LIMIT_S
    assert recover - restarted > 0.1, "the new workers import torch before their first collective"
    forked = find(result, case, "http --preload=torch", "recover").samples[0]
    assert 0 < forked < LIMIT_S
    (details,) = result.details
    (run,) = details["runs"]["http"]
    assert (run["rank"], run["served"], run["nodes_after"]) == (2, False, 3)
    assert run["starts"] >= 1


def test_job_goes_on_when_the_serving_process_of_three_endpoints_is_killed() -> None:
    which = ["--faults=place", "--backends=parallel", "--references=none", f"--limit={LIMIT_S}"]
    result = measured("faults", "--quick", *which)
    case = "the serving process of three endpoints is killed"
    recover, restarted = (find(result, case, "parallel", figure).samples[0] for figure in ("recover", "restarted"))
    assert 0 < restarted < recover < LIMIT_S
    (details,) = result.details
    (run,) = details["runs"]["parallel"]
    assert (run["served"], run["nodes_after"]) == (True, 2)


class Nowhere(Harness):
    """Nobody serves the endpoint."""

    def endpoint(self, directory: Path) -> str:
        return str(directory)


@pytest.fixture
def guard() -> Iterator[Guard]:
    with Guard() as guard:
        yield guard
        assert marked(guard.mark) == [], "a job leaves nothing, nor does one that is frozen"


@pytest.mark.parametrize(
    ("fault", "elastic", "limit_s", "result", "agents"),
    [
        ("worker", True, LIMIT_S, "did not go on: exit code 3 of node 2", 3),
        ("agent", True, 1.0, "did not go on within 1 s", 3),
        ("agent", False, 1.0, "did not go on within 1 s", 4),
        ("frozen", True, 1.0, "did not go on within 1 s", 3),
        ("host", True, 1.0, "did not go on within 1 s", 3),
        ("host-again", True, 1.0, "did not go on within 1 s", 4),
    ],
)
def test_job_that_does_not_go_on_is_a_result(
    guard: Guard, tmp_path: Path, fault: str, elastic: bool, limit_s: float, result: str, agents: int
) -> None:
    """``agents``: how many were started, that in the lost one's place included."""
    program, worker = stand_ins(tmp_path)
    launcher = Launcher("stand-in", program, "any", ranks=True, elastic=elastic, harness=Nowhere())
    how = JobsAlike(3, worker, guard, [], limit_s=limit_s, start_limit_s=LIMIT_S, collective_timeout_s=LIMIT_S)
    with pytest.raises(JobFailed, match=f"^{result}$") as failed:
        inflict(how, FAULTS[fault].of(launcher), launcher)
    assert len([*guard.directory.glob("job-1/agent*.log")]) == agents
    assert failed.value.words == (
        "stand-in: error: the worker has gone" if fault == "worker" else "it has said nothing"
    )


@pytest.mark.parametrize(
    ("faults", "expected"),
    [
        (["worker"], {"a worker is killed": "static elastic torch-static torch-c10d"}),
        (
            ["agent", "frozen"],
            {
                "an agent is killed": "elastic torch-c10d",
                "an agent is killed and started again": "static torch-static",
                "an agent is frozen": "elastic torch-c10d",
                "an agent is frozen and another started": "static torch-static",
            },
        ),
        *(
            (
                faults,
                {
                    "the store's host is killed": "elastic torch-c10d",
                    "the store's host is killed and started again": "static elastic torch-static torch-c10d",
                },
            )
            for faults in (["host", "host-again"], ["host-again", "host"])
        ),
    ],
)
def test_jobs_that_go_on_in_different_ways_are_not_of_one_case(faults: list[str], expected: dict[str, str]) -> None:
    """Ratios are formed within a case."""
    several = Launcher("several", "rdzv-run", "any", elastic=True, several=True)
    of_places = cases(["place", "place-frozen", "host"], [*references("torch-c10d"), several])
    assert {fault.name: [target.name for target in hit] for fault, hit in of_places.items()} == {
        "place": ["several"],
        "place-frozen": ["several"],
        "host": ["torch-c10d", "several"],
    }
    mine = [Launcher("static", "rdzv-run", "static"), Launcher("elastic", "rdzv-run", "any", elastic=True)]
    found = cases(faults, [*mine, *references("torch-static,torch-c10d")])
    assert {fault.case: " ".join(target.name for target in hit) for fault, hit in found.items()} == expected
    for fault, hit in found.items():
        goes_on = {fault.of(target).way(3) for target in hit}
        assert goes_on == {fault.way(3)}, fault.case


@pytest.mark.parametrize("missing", ["launcher", "guard", "service"])
def test_benchmark_that_cannot_begin_leaves_no_file(monkeypatch, tmp_path: Path, capfd, missing: str) -> None:
    said = leave_nothing_behind("faults", missing, monkeypatch, tmp_path)
    assert said in capfd.readouterr().err


def test_backend_of_the_default_that_cannot_be_started_is_in_the_results(monkeypatch, tmp_path: Path, capfd) -> None:
    without_etcd(monkeypatch, tmp_path)
    found = candidates(argparse.Namespace(backends=None, rdzv_endpoint=[], rdzv_conf=[]))
    found = [each for each in found if each.name == "etcd"]
    settings = FaultsSettings(("worker", "agent"), references="none", repeats=1)
    measure(settings, found, Output("faults", {}, as_json=True, out=None), asked_for=False)
    result = result_of(capfd.readouterr().out, tmp_path)
    for case in ("a worker is killed", "an agent is killed"):
        point = find(result, case, "etcd", "recover")
        assert (point.samples, point.unfinished.partition(";")[0]) == ((), "the program etcd is not installed")


def test_torch_s_c10d_is_as_patient_as_the_others(tmp_path: Path) -> None:
    (target,) = references("torch-c10d", c10d_conf(6))
    command = meet(target, tmp_path).command(0, "2:3", 1, ["worker.py"])
    assert Path(command[0]).name == "torchrun"
    assert "--rdzv-conf=keep_alive_interval=2,keep_alive_max_attempt=3,last_call_timeout=2" in command
    assert {"--nnodes=2:3", "--rdzv-backend=c10d", "--local-addr=127.0.0.1"} <= {*command}
    assert wanted_conf(6) == {"ttl": "6", **target.conf}


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--faults=fire"], "--faults: 'fire' is none of worker, agent, frozen, host, place, place-frozen, host-again"),
        (["--nodes=2"], "--nodes=2: at least 3 are needed"),
        (["--ttl=0"], "--ttl=0"),
        (["--collective-timeout=0"], "--collective-timeout=0"),
        (["--limit=0"], "--limit=0"),
        (["--references=torch"], "--references: 'torch' is none of torch-c10d, torch-static"),
        (["--rdzv-conf=parallel=ttl=3", "--backends=static"], "--rdzv-conf=parallel"),
    ],
)
def test_wrong_arguments_are_named(capfd, arguments: list[str], named: str) -> None:
    assert tools.main(["bench", "faults", *arguments]) != 0
    printed = capfd.readouterr()
    assert named in printed.err
    assert "Traceback" not in printed.err
    assert printed.out == ""
