"""`rdzv bench all` runs each benchmark by itself, goes on after a fault, reports, and leaves nothing; and the front."""

from __future__ import annotations

import argparse
import os
import signal

import pytest
from kits.bench.bench_kit import bench, started
from kits.eventually import eventually

from rdzv_launcher.bench import arguments
from rdzv_launcher.bench.all import QUICK, Step, full, run_steps
from rdzv_launcher.bench.method.results import read_results
from rdzv_launcher.tools import cli as tools
from rdzv_plugins.errors import RdzvError, UsageError
from rdzv_plugins.testing.builtin import EtcdHarness

SMALL = Step("transport", ("--quick", "--clients=1", "--sizes=16"))
WRONG = Step("store", ("--connections=none",))
ALL = {"launch", "rendezvous", "faults", "store", "tiered", "transport"}


@pytest.mark.thorough
def test_fault_of_one_is_reported_and_the_others_still_run(tmp_path, capfd) -> None:
    out = tmp_path / "new"
    with pytest.raises(RdzvError, match=r"1 of 2 .*store \(exit code 2\)") as raised:
        run_steps([WRONG, SMALL], out)
    assert raised.value.exit_code != 0
    (result,) = read_results(out)
    assert (result.bench, result.end is not None) == ("transport", True)
    said = capfd.readouterr()
    assert "--connections=none" in said.err
    ends = [line.rpartition(",")[0] for line in said.out.splitlines() if line[:1] == "[" and "rdzv bench" not in line]
    assert ends == ["[1 of 2] store: failed: exit code 2", "[2 of 2] transport: done"]
    assert "1 client, values of 16 bytes" in (out / "report.html").read_text()
    assert {file.suffix for file in out.glob("transport-*")} == {".jsonl", ".png", ".svg"}


@pytest.mark.thorough
def test_nothing_measured_makes_no_report(tmp_path) -> None:
    with pytest.raises(RdzvError, match="1 of 1"):
        run_steps([WRONG], tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_place_without_room_for_results_is_refused_before_anything_runs(tmp_path, capfd) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"--out: .*file"):
        run_steps([SMALL], tmp_path / "file")
    (tmp_path / "store-1.jsonl").write_text("hello\n")
    with pytest.raises(UsageError, match=r"store-1\.jsonl, line 1"):
        run_steps([SMALL], tmp_path)
    assert capfd.readouterr().out == ""


@pytest.mark.thorough
def test_command_measures_what_is_asked_for(tmp_path) -> None:
    done = bench("all", "--quick", "--only=transport", "--out=here", directory=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "[1 of 1] rdzv bench transport --quick --out=here\n" in done.stdout
    assert [result.bench for result in read_results(tmp_path / "here")] == ["transport"]
    assert (tmp_path / "here" / "report.html").exists()


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("words", "processes"),
    [
        (["all", "--only=transport"], 4),
        (["store", "--quick", "--workloads=barrier", "--targets=ours,echo", "--rounds=100000"], 3),
        (["tiered", "--nodes=none", "--many=none", "--tree=none", "--workers=2x2", "--repeats=99"], 8),
    ],
    ids=["all", "store", "tiered"],
)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_benchmark_that_is_ended_takes_all_with_it(words, processes, number, tmp_path) -> None:
    with started(*words, f"--out={tmp_path}") as process:
        assert process.stderr is not None
        assert ": measuring " in process.stderr.readline()
        eventually(lambda: len(process.left()) >= processes, lambda: f"there is only {process.left()}")
        if number == signal.SIGKILL:
            process.kill()
        else:
            os.killpg(process.pid, number)  # as a terminal does
        _, err = process.communicate(timeout=100)
        eventually(lambda: not process.left(), lambda: f"there is still {process.left()}")
    (result,) = read_results(tmp_path)
    assert (result.bench, result.end) == (words[-1].removeprefix("--only=") if words[0] == "all" else words[0], None)
    assert number == signal.SIGKILL or process.returncode == 128 + number
    assert "Traceback" not in err


def test_of_backends_those_are_compared_that_are_there(monkeypatch, tmp_path) -> None:
    def named() -> list[str]:
        return [argument for step in full() for argument in step.arguments if "--backends" in argument]

    with monkeypatch.context() as changed:
        changed.setattr(EtcdHarness, "require", lambda self: None)
        assert named()[0] == "--backends=static,parallel,tiered,etcd"
    monkeypatch.setenv("PATH", str(tmp_path))  # without etcd
    assert named() == ["--backends=static,parallel,tiered", "--backends=static,parallel", "--backends=parallel"]


def test_every_benchmark_is_part_of_it_with_flags_that_it_has() -> None:
    assert {step.bench for step in full()} == {step.bench for step in QUICK} == ALL
    parser = argparse.ArgumentParser()
    arguments.configure(parser.add_subparsers())
    for step in (*full(), *QUICK):
        args = parser.parse_args(["bench", step.bench, *step.arguments, "--out=there"])
        assert (args.what, args.out) == (step.bench, "there")
        assert args.quick == (step in QUICK)


def test_front_alone_says_what_there_is(capsys) -> None:
    assert tools.main(["bench"]) == UsageError.exit_code
    told = capsys.readouterr()
    assert told.out == ""
    for name in (*ALL, "all", "report"):
        assert f"\n    {name}" in told.err
        with pytest.raises(SystemExit) as raised:
            tools.main(["bench", name, "--help"])
        assert raised.value.code == 0
        said = capsys.readouterr().out
        assert said.startswith(f"usage: rdzv bench {name} ")
        assert ("--quick" in said) == (name != "report")
