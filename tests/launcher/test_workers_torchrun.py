"""What workers get from ``run/workers``, beside what they get from torchrun: variables, files, lines, error files."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from kits import KITS
from kits.launcher.harness import WORKERS
from kits.launcher.starts_workers import parsed

from rdzv_plugins.testing.processes import clean_environment

pytestmark = pytest.mark.thorough

LAUNCHERS = {
    "torchrun": [sys.executable, "-m", "torch.distributed.run"],
    "ours": [sys.executable, str(KITS / "launcher" / "starts_workers.py"), "report.json"],
}
ALONE = ["--nnodes=1", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "--rdzv-id=job"]
DIFFER = {"MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_ERROR_FILE", "OF_THE_LAUNCHER"}
"""The first two are the rendezvous's; the path of the error file has a part that is drawn by chance."""


@dataclass
class Ended:
    """A launcher that has ended."""

    directory: Path
    code: int
    stdout: str
    stderr: str

    def said(self, stream: str) -> list[str]:
        """Lines of workers, in whatever order they came."""
        return sorted(line for line in getattr(self, stream).splitlines() if "says" in line)

    @property
    def run_directory(self) -> Path:
        (found,) = (self.directory / "logs").iterdir()
        return found

    def files(self) -> set[str]:
        return {str(path.relative_to(self.run_directory)) for path in self.run_directory.rglob("*.*") if path.is_file()}

    def log(self, name: str) -> list[str]:
        return [line for line in (self.run_directory / name).read_text().splitlines() if "says" in line]


def both(directory: Path, arguments: list[str], **variables: str) -> dict[str, Ended]:
    """Each launcher to its end, in a directory of its own."""
    environment = {k: v for k, v in clean_environment().items() if k != "OMP_NUM_THREADS"} | variables
    ended = {}
    for launcher, start in LAUNCHERS.items():
        place = directory / launcher
        (place / "said").mkdir(parents=True)
        command = [*start, *([parsed(arguments)] if launcher == "ours" else arguments)]
        done = subprocess.run(
            command, cwd=place, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=180
        )
        ended[launcher] = Ended(place, done.returncode, done.stdout, done.stderr)
    return ended


@pytest.fixture(scope="module")
def restarted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ended]:
    """Four workers, each with its streams in another way; the second fails once, and all are started again."""
    return both(
        tmp_path_factory.mktemp("restarted"),
        [
            *ALONE,
            "--nproc-per-node=4",
            "--max-restarts=1",
            "--role=trainer",
            "--log-dir=logs",
            "--tee=0:3,1:1",
            "--redirects=1:2,2:3",
            "--local-ranks-filter=0,1,3",
            "--duplicate-stdout-filters=apple,, x,kiwi",
            "--duplicate-stderr-filters=pear",
            "--signals-to-handle=SIGTERM,SIGUSR1",
            str(WORKERS / "writes.py"),
            "said",
            "${local_rank}",
            "$$x",
            "${other}",
        ],
        TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE="<${role_name} ${rank} ${local_rank} ${what}> ",
        CUDA_VISIBLE_DEVICES="7,6,5,4",
    )


def told(ended: Ended, attempt: int, rank: int) -> dict[str, Any]:
    return dict(json.loads((ended.directory / "said" / f"{attempt}.{rank}.json").read_text()))


def test_variables_arguments_files_and_lines_are_torchruns(restarted: dict[str, Ended]) -> None:
    ours, torchs = restarted["ours"], restarted["torchrun"]
    assert (ours.code, torchs.code) == (0, 0)
    for attempt, rank in itertools.product((0, 1), range(4)):
        both = [told(each, attempt, rank) for each in (torchs, ours)]
        theirs, own = (each["environ"] for each in both)
        assert own["TORCHELASTIC_RESTART_COUNT"] == str(attempt)
        names = (theirs.keys() | own.keys()) - DIFFER - {"PWD"}
        assert {name: own.get(name) for name in names} == {name: theirs.get(name) for name in names}
        ends = {each["TORCHELASTIC_ERROR_FILE"].partition("/attempt_")[2] for each in (own, theirs)}
        assert ends == {f"{attempt}/{rank}/error.json"}
        assert [each["argv"] for each in both] == [[str(rank), "$x", "${other}"]] * 2
    assert ours.files() == torchs.files()
    names = {name for name in ours.files() if name.endswith(".log")}
    assert (len(names), ours.run_directory.name[:4]) == (16, "job_")
    for name in names:  # the collected ones are of several workers, in any order
        assert sorted(ours.log(name)) == sorted(torchs.log(name)), name
        assert ours.log(name), name
    for stream in ("stdout", "stderr"):
        assert ours.said(stream) == torchs.said(stream)
        assert "<trainer 0 0 ${what}> says 0 0 kiwi \u00e9" in ours.said(stream)
        assert ("<trainer 1 1 ${what}> says 1 1 pear" in ours.said(stream)) == (stream == "stdout")


@pytest.fixture(scope="module")
def run_path(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ended]:
    """One worker of --run-path that raises, with a virtual local rank, under a scheduler that wants an error file."""
    script = str(WORKERS / "raises.py")
    return both(
        tmp_path_factory.mktemp("run_path"),
        [
            *ALONE,
            *("--run-path", "--log-dir=logs", "--tee=3", "--virtual-local-rank", script, "said", "--lr", "0.1"),
        ],
        TORCHELASTIC_ERROR_FILE="scheduler.json",
        CUDA_VISIBLE_DEVICES="3, 5",
        TORCHELASTIC_TIMER_FILE="timer",
    )


def test_run_path_runs_records_and_prints_as_under_torchrun(run_path: dict[str, Ended]) -> None:
    theirs, ours = (json.loads((run_path[name].directory / "said/started.json").read_text()) for name in LAUNCHERS)
    environ = [each.pop("environ") for each in (theirs, ours)]
    assert ours == theirs
    assert ours["name"] == "__main__"
    assert ours["argv"][1:] == ["said", "--lr", "0.1"]
    names = (environ[0].keys() | environ[1].keys()) - DIFFER - {"PWD"}
    assert {name: environ[1].get(name) for name in names} == {name: environ[0].get(name) for name in names}
    assert (environ[1]["LOCAL_RANK"], environ[1]["CUDA_VISIBLE_DEVICES"]) == ("0", "3")
    for file, code in (("logs", None), ("scheduler.json", 1)):
        found = []
        for ended in run_path.values():
            path = ended.run_directory / "attempt_0/0/error.json" if file == "logs" else ended.directory / file
            message = json.loads(path.read_text())["message"]
            info = message.pop("extraInfo")
            assert int(info.pop("timestamp")) > 0
            assert info.pop("py_callstack").splitlines()[-1] == "KeyError: 'a fault on purpose'"
            found.append((message, info))
        assert found[0] == found[1]
        assert found[0][0].get("errorCode") == code
    assert {ended.code for ended in run_path.values()} == {1}
    assert run_path["ours"].files() == run_path["torchrun"].files()
    assert run_path["ours"].said("stdout") == run_path["torchrun"].said("stdout") == ["[default0]:says a line"]
    # there the agent prints what a worker has raised, here the worker does
    assert "[default0]:KeyError: 'a fault on purpose'" in run_path["ours"].stderr.splitlines()
    assert "KeyError: 'a fault on purpose'" in run_path["torchrun"].stderr
