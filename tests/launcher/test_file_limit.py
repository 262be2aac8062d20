"""What a launch needs of the limit of open files is known before it starts."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

RDZV_RUN = Path(sys.executable).parent / "rdzv-run"


def launched(directory: Path, limits: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    (directory / "train.py").write_text(
        "import resource; print('may open', resource.getrlimit(resource.RLIMIT_NOFILE))"
    )
    command = f"{limits} && exec {RDZV_RUN} {' '.join(arguments)} train.py"
    return subprocess.run(["bash", "-c", command], cwd=directory, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("limit", [24, 32])
def test_too_few_are_refused_before_anything_starts(tmp_path: Path, limit: int) -> None:
    done = launched(tmp_path, f"ulimit -n {limit}", "--standalone")
    assert done.returncode == 71, done.stderr
    error, remedy = done.stderr.splitlines()
    assert error.startswith(f"rdzv-run: error: this node may open {limit} files at once, and needs up to ")
    assert error.endswith(" for 1 worker")
    assert remedy.startswith("rdzv-run: Allow more: ulimit -n 1024")
    assert done.stdout == ""


def test_each_worker_counts(tmp_path: Path) -> None:
    done = launched(tmp_path, "ulimit -n 64", "--standalone", "--nproc-per-node=8")
    assert done.returncode == 71, done.stderr
    assert done.stderr.splitlines()[0].endswith(" for 8 workers")


def test_a_soft_limit_is_raised_as_far_as_it_has_to_be(tmp_path: Path) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    done = launched(tmp_path, "ulimit -S -n 24", "--standalone")
    assert done.returncode == 0, done.stderr
    soft = int(done.stdout.partition("(")[2].partition(",")[0])
    assert 40 < soft < 100
    assert f", {hard})" in done.stdout


@pytest.mark.parametrize(("backend", "workers"), [("c10d", 1), ("tiered", 4)])
def test_what_it_asks_for_is_enough(tmp_path: Path, backend: str, workers: int) -> None:
    refused = launched(tmp_path, "ulimit -n 30", f"--rdzv-backend={backend}", f"--nproc-per-node={workers}")
    needed = refused.stderr.partition("needs up to ")[2].partition(" ")[0]
    arguments = f"--rdzv-backend={backend}", f"--nproc-per-node={workers}", "-r3", "-t3", "--log-dir=logs"
    endpoint = ["--rdzv-endpoint=127.0.0.1:0"] if backend == "c10d" else []
    done = launched(tmp_path, f"ulimit -n {needed}", *arguments, *endpoint)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("may open") == workers
