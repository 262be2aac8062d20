"""The fuzzer of the wire, for a bounded time, as `make sanitize` runs it; `make fuzz` runs it for longer."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "native" / "tests"
FUZZER = ROOT / "build" / "sanitize-address" / "native" / "tests" / "rdzv_fuzz"
SECONDS = 10
TOOL_MISSING = 3  # the exit code of build.sh


@pytest.fixture(scope="module")
def fuzzer() -> list[str]:
    """The command that runs the fuzzer, built if need be."""
    if sys.platform != "linux":
        pytest.skip("the native store needs Linux")
    built = subprocess.run([SCRIPTS / "build.sh", "address", "rdzv_fuzz"], capture_output=True, text=True)
    if built.returncode == TOOL_MISSING:
        pytest.skip(built.stderr.strip())
    assert built.returncode == 0, built.stdout + built.stderr
    return [str(SCRIPTS / "run.sh"), str(FUZZER)]


@pytest.mark.timeout(1800)  # the first time it is built, beside other work
def test_random_clients_find_nothing_wrong(fuzzer: list[str]) -> None:
    run = subprocess.run(
        [*fuzzer, "--seconds", str(SECONDS), "--save", str(ROOT / "build" / "fuzz")], capture_output=True, text=True
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "nothing found" in run.stdout


@pytest.mark.timeout(1800)
def test_a_saved_input_runs_again(fuzzer: list[str], tmp_path: Path) -> None:
    # Limits; then client 0 says VALIDATE and PING, all in one event of ten bytes.
    saved = tmp_path / "input"
    saved.write_bytes(bytes([0, 10 << 2]) + bytes.fromhex("00cef7853c" + "0d01020304"))
    run = subprocess.run([*fuzzer, str(saved)], capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout == f"ok {saved}\n"
    missing = subprocess.run([*fuzzer, str(tmp_path / "missing")], capture_output=True, text=True)
    assert missing.returncode == 2
    assert "cannot read" in missing.stderr
