"""A user's project may call its modules as it likes: none of ours is in its way, nor are they in ours."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from kits.launcher.harness import BIN

pytestmark = pytest.mark.thorough

NAMES = ("launcher", "rdzv", "tools", "native", "run", "agent", "console", "signals", "status")
TRAIN = f"""
import importlib, json
print(json.dumps({{name: importlib.import_module(name).WHOSE for name in {NAMES}}}))
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("project")
    for name in NAMES:
        (directory / f"{name}.py").write_text("WHOSE = 'the user'\n")
    (directory / "train.py").write_text(TRAIN)
    return directory


def run(project: Path, *command: str) -> str:
    done = subprocess.run(
        command, cwd=project, env=os.environ | {"PYTHONPATH": "."}, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_job_in_a_project_with_such_names(project: Path) -> None:
    for command in ([str(BIN / "rdzv-run")], [sys.executable, "-m", "rdzv_launcher"]):
        shown = run(project, *command, "train.py")
        assert json.loads(shown.splitlines()[-1]) == dict.fromkeys(NAMES, "the user")


def test_tools_in_a_project_with_such_names(project: Path) -> None:
    for command in ([str(BIN / "rdzv")], [sys.executable, "-m", "rdzv_launcher.tools"]):
        assert "parallel" in run(project, *command, "backends")
