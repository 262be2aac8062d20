"""What runs the tests: ``tests/run.py`` repeats what fails by chance, ``tests/further.py`` adds what a change needs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from further import TARGETS, THOROUGH, further
from kits import ROOT

TESTS = Path(__file__).parents[1]
ONCE = """
import os, subprocess, sys
import pytest
def process():
    subprocess.run([sys.executable, "-c", ""], check=True)
def first_time():
    with open("runs", "a+") as file:
        file.write("x")
        return file.tell() == 1
@pytest.fixture(scope="module")
def server():
    process()
"""


def run(folder: Path, test: str, *arguments: str) -> tuple[int, str, int]:
    """Exit code and output of a run of ``test``, and how many times it noted that it ran."""
    (folder / "test_it.py").write_text(ONCE + test)
    path = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    plugins = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": "-p xdist -p no:cacheprovider"}
    done = subprocess.run(
        [sys.executable, TESTS / "run.py", "-p", "kits.started", *arguments, "test_it.py"],
        cwd=folder,
        env={**os.environ, **plugins, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stdout, len((folder / "runs").read_text())


STARTS = {
    "the test": "def test(): process(); assert not first_time()",
    "a fixture that an earlier test had": "def test_a(server): pass\ndef test(server): assert not first_time()",
}


@pytest.mark.parametrize("test", STARTS.values(), ids=STARTS)
def test_a_test_with_processes_that_fails_by_chance_is_run_again(tmp_path: Path, test: str) -> None:
    code, output, runs = run(tmp_path, test, "-n1")
    assert (code, runs) == (0, 2)
    assert "RUN TWICE: test_it.py::test " in output.splitlines()[-2]
    assert [file.suffix for file in sorted((tmp_path / "build/tests/failed").iterdir())] == [".json", ".txt"]


NO_CHANCE = {
    "it fails again": ("def test(): process(); first_time(); assert False", 1, 2),
    "only a fixture of another had a process": (
        "def test_a(server): pass\ndef test(): assert not first_time()",
        *(1, 1),
    ),
}


@pytest.mark.parametrize("why", NO_CHANCE)
def test_what_is_no_chance_is_red(tmp_path: Path, why: str) -> None:
    test, code, times = NO_CHANCE[why]
    found, output, runs = run(tmp_path, test)
    assert (found, runs) == (code, times)
    assert "RUN TWICE" not in output
    assert times != 2 or output.splitlines()[-1].endswith("-m pytest -n0 test_it.py::test")


@pytest.mark.parametrize(
    ("path", "target"),
    [
        ("native/src/loop.cpp", "sanitize"),
        ("native/src/loop.cpp", "thorough THOROUGH='tests/wire'"),
        ("src/rdzv_plugins/testing/plugin.py", "thorough THOROUGH='tests/conformance'"),
        ("src/rdzv_plugins/schedulers/slurm.py", "test-slurm"),
        ("src/rdzv_plugins/hookspecs.py", "thorough THOROUGH='tests/plugins'"),
        ("constraints.txt", "thorough THOROUGH='tests/wire tests/conformance'"),
        ("docs/index.md", "thorough THOROUGH='tests/examples'"),
    ],
)
def test_a_changed_path_asks_for_its_tests(path: str, target: str) -> None:
    assert target in further(["ARCHITECTURE.md", path])


def test_the_places_exist() -> None:
    """A folder that has moved would otherwise ask for nothing, unseen."""
    named = {place for by in (TARGETS, THOROUGH) for places in by.values() for place in places}
    assert [place for place in named if not (ROOT / place).exists()] == []
