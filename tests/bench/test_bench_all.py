"""`rdzv bench all` runs each benchmark by itself, goes on after a fault, reports, and leaves nothing; and the front."""

from __future__ import annotations

import argparse
import os
import signal

import pytest
from kits.bench.bench_kit import bench, started

from rdzv_launcher.bench import arguments
from rdzv_launcher.bench.all import QUICK, Step, full, run_steps
from rdzv_launcher.bench.method.results import read_results
from rdzv_launcher.tools import cli as tools
from rdzv_plugins.errors import RdzvError, UsageError
from rdzv_plugins.testing.agents.processes import wait_until
from rdzv_plugins.testing.builtin import EtcdHarness

pytestmark = pytest.mark.thorough

SMALL = Step("transport", ("--quick", "--clients=1", "--sizes=16"))
WRONG = Step("store", ("--connections=none",))
ALL = {"launch", "rendezvous", "faults", "store", "tiered", "transport"}


def test_fault_of_one_is_reported_and_the_others_still_run(tmp_path, capfd) -> None:
    out = tmp_path / "new"
    with pytest.raises(RdzvError, match=r"^1 of 2 benchmarks failed: store \(exit code 2\)") as raised:
        run_steps([WRONG, SMALL], out)
    assert raised.value.exit_code != 0
    (result,) = read_results(out)
    assert (result.bench, result.end is not None) == ("transport", True)
    said = capfd.readouterr()
    assert "--connections=none: a whole number, at least 1, is needed" in said.err
    lines = said.out.splitlines()
    ends = [line.rpartition(",")[0] for line in lines if line.startswith("[") and "rdzv bench" not in line]
    assert ends == ["[1 of 2] store: failed: exit code 2", "[2 of 2] transport: done"]
    assert lines[-1] == f"wrote {out / 'report.html'}"
    assert "1 client, values of 16 bytes" in (out / "report.html").read_text()
    assert {file.suffix for file in out.glob("transport-*")} == {".jsonl", ".png", ".svg"}


def test_nothing_measured_makes_no_report(tmp_path) -> None:
    with pytest.raises(RdzvError, match=r"^1 of 1 benchmarks failed"):
        run_steps([WRONG], tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_place_that_cannot_be_written_is_refused_before_anything_runs(tmp_path, capfd) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"--out: cannot write to .*file"):
        run_steps([SMALL], tmp_path / "file")
    assert capfd.readouterr().out == ""


def test_results_that_no_report_can_have_are_refused_before_anything_runs(tmp_path, capfd) -> None:
    (tmp_path / "store-1.jsonl").write_text("hello\n")
    with pytest.raises(UsageError, match=r"store-1\.jsonl, line 1: not a result"):
        run_steps([SMALL], tmp_path)
    assert capfd.readouterr().out == ""


def test_command_measures_what_is_asked_for(tmp_path) -> None:
    done = bench("all", "--quick", "--only=transport", "--out=here", directory=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "[1 of 1] rdzv bench transport --quick --out=here\n" in done.stdout
    assert "[1 of 1] transport: done, " in done.stdout
    assert [result.bench for result in read_results(tmp_path / "here")] == ["transport"]
    assert (tmp_path / "here" / "report.html").exists()


@pytest.mark.parametrize(
    ("words", "processes"),
    [
        (["all", "--only=transport"], 4),
        (["store", "--quick", "--workloads=barrier", "--targets=ours,echo", "--rounds=100000"], 3),
        (["tiered", "--nodes=none", "--many=none", "--tree=none", "--workers=2x2", "--repeats=99"], 8),
    ],
    ids=["all", "store", "tiered"],
)
def test_killed_benchmark_takes_all_with_it(words, processes, tmp_path) -> None:
    with started(*words, f"--out={tmp_path}") as process:
        assert process.stderr is not None
        assert ": measuring " in process.stderr.readline()
        wait_until(lambda: len(process.left()) >= processes, 60, lambda: f"there is only {process.left()}")
        process.kill()
        process.wait()
        wait_until(lambda: not process.left(), 60, lambda: f"there is still {process.left()}")
    (result,) = read_results(tmp_path)
    assert (result.bench, result.end) == (words[-1].removeprefix("--only=") if words[0] == "all" else words[0], None)


def test_interrupt_is_no_traceback(tmp_path) -> None:
    with started("all", "--only=transport", f"--out={tmp_path}") as process:
        assert process.stderr is not None
        assert "transport: measuring " in process.stderr.readline()
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        _, err = process.communicate(timeout=100)
        assert process.left() == {}
    assert process.returncode == 128 + signal.SIGINT
    assert "rdzv bench transport: interrupted" in err
    assert "rdzv bench all: interrupted" in err
    assert "Traceback" not in err


def test_of_backends_those_are_compared_that_are_there(monkeypatch, tmp_path) -> None:
    def named() -> list[str]:
        return [argument for step in full() for argument in step.arguments if "--backends" in argument]

    monkeypatch.setattr(EtcdHarness, "require", lambda self: None)
    assert named() == [
        "--backends=static,parallel,tiered,etcd",
        "--backends=static,parallel,etcd",
        "--backends=parallel,etcd",
    ]
    monkeypatch.undo()
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


def test_some_that_are_unknown_are_refused(capsys) -> None:
    assert tools.main(["bench", "all", "--only=store,sore"]) == UsageError.exit_code
    assert "--only: 'sore' is none of rendezvous, launch, " in capsys.readouterr().err


def test_front_alone_says_what_there_is(capsys) -> None:
    assert tools.main(["bench"]) == UsageError.exit_code
    told = capsys.readouterr()
    assert told.out == ""
    for name in (*ALL, "all", "report"):
        assert f"\n    {name}" in told.err
    assert "rdzv bench rendezvous --quick" in told.err
    with pytest.raises(SystemExit):
        tools.main(["bench", "everything"])
    assert "invalid choice: 'everything' (choose from " in capsys.readouterr().err


@pytest.mark.parametrize("name", sorted({*ALL, "all", "report"}))
def test_each_has_help(name, capsys) -> None:
    with pytest.raises(SystemExit) as raised:
        tools.main(["bench", name, "--help"])
    assert raised.value.code == 0
    said = capsys.readouterr().out
    assert said.startswith(f"usage: rdzv bench {name} ")
    assert ("--quick" in said) == (name != "report")
