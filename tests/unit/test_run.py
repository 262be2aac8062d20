"""What runs the tests: ``tests/run.py`` repeats what fails by chance, ``tests/further.py`` adds what a change needs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from further import TARGETS, THOROUGH, further
from kits import ROOT

TESTS = ROOT / "tests"
ONCE = """
import subprocess, sys
import pytest
def first_time():
    with open("runs", "a+") as file:
        file.write("x")
        return file.tell() == 1
@pytest.fixture(scope="module")
def server():
    subprocess.run([sys.executable, "-c", ""], check=True)
"""
OF_ANOTHER = "def test_a(server): pass\n"
"""A test that has started the fixture's process."""


@pytest.mark.parametrize(
    ("test", "code", "times", "said"),
    [
        ("def test(server): assert not first_time()", 0, 2, "RUN TWICE: test_it.py::test "),
        (f"{OF_ANOTHER}def test(server): assert not first_time()", 0, 2, "RUN TWICE: test_it.py::test "),
        ("def test(server): first_time(); assert False", 1, 2, "-m pytest -n0 test_it.py::test"),
        (f"{OF_ANOTHER}def test(): assert not first_time()", 1, 1, "-m pytest -n0 test_it.py::test"),
    ],
)
def test_a_test_with_processes_that_fails_by_chance_is_run_again(
    tmp_path: Path, test: str, code: int, times: int, said: str
) -> None:
    (tmp_path / "test_it.py").write_text(ONCE + test)
    path = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    plugins = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": "-p xdist -p no:cacheprovider"}
    done = subprocess.run(
        [sys.executable, TESTS / "run.py", "-p", "kits.started", f"-n{1 - code}", "test_it.py"],
        cwd=tmp_path,
        env={**os.environ, **plugins, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, (tmp_path / "runs").read_text()) == (code, "x" * times)
    assert said in "\n".join(done.stdout.splitlines()[-2:])
    assert [file.suffix for file in sorted((tmp_path / "build/tests/failed").iterdir())] == [".json", ".txt"]


def test_a_changed_path_asks_for_its_tests() -> None:
    assert further(["ARCHITECTURE.md", "native/src/loop.cpp"]) == ["sanitize", "thorough THOROUGH='tests/wire'"]
    assert further(["src/rdzv_plugins/schedulers/slurm.py"]) == ["test-slurm"]
    assert further(["constraints.txt"]) == ["thorough THOROUGH='tests/wire tests/conformance'"]
    # a folder that has moved would otherwise ask for nothing, unseen
    named = {place for by in (TARGETS, THOROUGH) for places in by.values() for place in places}
    assert [place for place in named if not (ROOT / place).exists()] == []
