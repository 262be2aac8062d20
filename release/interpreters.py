"""The Pythons of this machine, and environments made with them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path


def find_python(version: str) -> str:
    """The path of ``pythonX.Y``: on PATH, or one that pyenv has. Ends the process if there is none."""
    for candidate in _candidates(version):
        ask = [candidate, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
        if subprocess.run(ask, capture_output=True, text=True).stdout.strip() == version:
            return candidate
    sys.exit(f"wheels: Python {version} is not here: neither python{version} on PATH, nor in pyenv")


def _candidates(version: str) -> Iterator[str]:
    if found := shutil.which(f"python{version}"):
        yield found
    if pyenv := shutil.which("pyenv"):
        root = subprocess.run([pyenv, "root"], capture_output=True, text=True).stdout.strip()
        for path in sorted(Path(root).glob(f"versions/{version}.*/bin/python")):
            yield str(path)


def environment(folder: Path, version: str, packages: Sequence[str] = (), *, fresh: bool = False) -> Path:
    """A virtual environment with these packages, made if it is not there; returns its Python."""
    if fresh:
        shutil.rmtree(folder, ignore_errors=True)
    python = folder / "bin/python"
    if not python.exists():
        subprocess.run([find_python(version), "-m", "venv", str(folder)], check=True)
        if packages:
            install(python, packages)
    return python


def install(python: Path, arguments: Sequence[str]) -> None:
    """``pip install``, of binary packages alone."""
    command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *arguments]
    subprocess.run(command, check=True)
