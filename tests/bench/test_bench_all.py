"""`rdzv bench all` runs each benchmark by itself, goes on after a fault, reports; what is ended leaves nothing."""

from __future__ import annotations

import os
import signal

import pytest
from kits.bench.bench_kit import started
from kits.eventually import eventually

from rdzv_launcher.bench.arguments import full, run_all
from rdzv_launcher.bench.results import read_results
from rdzv_plugins.errors import RdzvError, UsageError
from rdzv_plugins.testing.builtin import EtcdHarness

SMALL = ("store", "--quick", "--workloads=barrier", "--targets=ours,echo")
WRONG = ("launch", "--nodes=none")


@pytest.mark.thorough
def test_fault_of_one_is_reported_and_the_others_still_run(tmp_path, capfd) -> None:
    out = tmp_path / "new"
    with pytest.raises(RdzvError, match=r"1 of 2 .*launch \(.*2\)") as raised:
        run_all([WRONG, SMALL], out)
    assert raised.value.exit_code != 0
    (result,) = read_results(out)
    assert (result.bench, result.end is not None) == ("store", True)
    assert "none" in capfd.readouterr().err
    assert "barrier, 50 clients" in (out / "report.html").read_text()
    assert {file.suffix for file in out.glob("store-*")} == {".jsonl", ".svg"}


def test_a_place_without_room_for_results_is_refused_before_anything_runs(tmp_path, capfd) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"--out: .*file"):
        run_all([SMALL], tmp_path / "file")
    (tmp_path / "store-1.jsonl").write_text("hello\n")
    with pytest.raises(UsageError, match=r"store-1\.jsonl, line 1"):
        run_all([SMALL], tmp_path)
    assert capfd.readouterr().out == ""


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("words", "processes", "number"),
    [
        (["all", "--only=store"], 4, signal.SIGKILL),
        (["all", "--only=store"], 4, signal.SIGINT),
        (["store", "--workloads=worker", "--workers=4", "--repeats=1000"], 6, signal.SIGKILL),
        (["store", "--workloads=worker", "--workers=4", "--repeats=1000"], 6, signal.SIGINT),
    ],
)
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
    assert (result.bench, result.end) == ("store", None)
    assert number == signal.SIGKILL or process.returncode == 128 + number
    assert "Traceback" not in err


def test_of_backends_those_are_compared_that_are_there(monkeypatch, tmp_path) -> None:
    def named() -> list[str]:
        return [word for step in full() for word in step if "--backends" in word]

    with monkeypatch.context() as changed:
        changed.setattr(EtcdHarness, "require", lambda self: None)
        assert named()[0] == "--backends=static,parallel,tiered,etcd"
    monkeypatch.setenv("PATH", str(tmp_path))  # without etcd
    assert named() == ["--backends=static,parallel,tiered", "--backends=static,parallel", "--backends=parallel"]
