"""``--version`` of both commands, and both commands by ``python -m``."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

BIN = Path(sys.executable).parent
BOTH = [[str(BIN / "rdzv-run")], [str(BIN / "rdzv")]]
MODULES = [[sys.executable, "-m", "rdzv_launcher"], [sys.executable, "-m", "rdzv_launcher.tools"]]


def said(command: list[str], directory: Path, **variables: str) -> str:
    done = subprocess.run(
        command, cwd=directory, env={**os.environ, **variables}, capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


def test_version(tmp_path: Path) -> None:
    """A script keeps its own."""
    expected = f"rdzv-plugins {version('rdzv-plugins')}, torch {version('torch')}, Python {platform.python_version()}"
    for command in (*BOTH, *MODULES):
        assert said([*command, "--version"], tmp_path).startswith(expected)
    (tmp_path / "train.py").write_text("import sys; print('mine', sys.argv[1:])")
    assert said([*BOTH[0], "train.py", "--version"], tmp_path) == "mine ['--version']\n"


def test_help_of_a_module_names_the_command(tmp_path: Path) -> None:
    for command, name in zip(MODULES, ("rdzv-run", "rdzv"), strict=True):
        assert said([*command, "--help"], tmp_path, COLUMNS="200").startswith(f"usage: {name} ")
