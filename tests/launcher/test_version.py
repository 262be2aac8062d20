"""``--version`` of both commands, and both commands by ``python -m``."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

BIN = Path(sys.executable).parent
BOTH = [[str(BIN / "rdzv-run")], [str(BIN / "rdzv")]]
MODULES = [[sys.executable, "-m", "rdzv_launcher"], [sys.executable, "-m", "rdzv_launcher.tools"]]
WITHOUT_TORCH = """
import runpy, sys
sys.modules["torch"] = None
sys.argv[1:] = ["--version"]
runpy.run_module({!r}, run_name="__main__")
"""


def said(command: list[str], directory: Path, **variables: str) -> str:
    done = subprocess.run(
        command, cwd=directory, env={**os.environ, **variables}, capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


@pytest.mark.parametrize("command", [*BOTH, *MODULES], ids=lambda each: Path(each[-1]).name)
def test_version(command: list[str], tmp_path: Path) -> None:
    ours, torch = version("rdzv-plugins"), version("torch")
    expected = f"rdzv-plugins {ours}, torch {torch}, Python {platform.python_version()}, native part: yes\n"
    assert said([*command, "--version"], tmp_path) == expected


@pytest.mark.parametrize("module", ["rdzv_launcher", "rdzv_launcher.tools"])
def test_version_does_without_torch(module: str, tmp_path: Path) -> None:
    text = said([sys.executable, "-c", WITHOUT_TORCH.format(module)], tmp_path)
    assert text.startswith("rdzv-plugins "), text


def test_version_behind_other_flags(tmp_path: Path) -> None:
    assert said([*BOTH[0], "--nnodes=2", "--version"], tmp_path).startswith("rdzv-plugins ")


def test_a_script_keeps_its_own_version(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import sys; print('mine', sys.argv[1:])")
    assert said([*BOTH[0], "train.py", "--version"], tmp_path) == "mine ['--version']\n"


@pytest.mark.parametrize(("command", "name"), [(MODULES[0], "rdzv-run"), (MODULES[1], "rdzv")])
def test_help_of_a_module_names_the_command(command: list[str], name: str, tmp_path: Path) -> None:
    assert said([*command, "--help"], tmp_path, COLUMNS="200").startswith(f"usage: {name} ")
