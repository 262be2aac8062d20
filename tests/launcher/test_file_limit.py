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


def test_too_few_are_refused_before_anything_starts(tmp_path: Path) -> None:
    done = launched(tmp_path, "ulimit -n 24", "--standalone")
    assert (done.returncode, done.stdout) == (71, ""), done.stderr
    assert "ulimit -n" in done.stderr


def test_a_soft_limit_is_raised_as_far_as_it_has_to_be(tmp_path: Path) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    done = launched(tmp_path, "ulimit -S -n 24", "--standalone")
    assert done.returncode == 0, done.stderr
    soft = int(done.stdout.partition("(")[2].partition(",")[0])
    assert 40 < soft < 100
    assert f", {hard})" in done.stdout


@pytest.mark.thorough
def test_what_it_asks_for_is_enough(tmp_path: Path) -> None:
    backend, workers = "tiered", 4
    refused = launched(tmp_path, "ulimit -n 30", f"--rdzv-backend={backend}", f"--nproc-per-node={workers}")
    needed = refused.stderr.partition("needs up to ")[2].partition(" ")[0]
    arguments = f"--rdzv-backend={backend}", f"--nproc-per-node={workers}", "-r3", "-t3", "--log-dir=logs"
    done = launched(tmp_path, f"ulimit -n {needed}", *arguments)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("may open") == workers
