"""examples/kubernetes/Dockerfile without Docker: its commands in their order, in a clean environment as the image."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from kits import ROOT
from kits.examples.distributions import CleanEnvironment
from kits.examples.manifests import FOLDER

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(1800)]  # where the wheel has to be built from nothing


def instructions() -> list[tuple[str, str]]:
    """Each instruction and its argument, in their order."""
    text = re.sub(r"\\\n", "", (FOLDER / "Dockerfile").read_text())
    lines = [line.split(" ", 1) for line in text.splitlines() if line and not line.startswith("#")]
    return [(name, argument) for name, argument in lines]


def test_the_image_is_built_from_wheels_and_trains(wheels: Path, tmp_path: Path) -> None:
    """There is no index here: torch and the like are there already, which is what pip then says of them."""
    context, root = tmp_path / "context", tmp_path / "root"
    (context / "examples").mkdir(parents=True)
    (context / "dist").symlink_to(wheels)
    shutil.copy(ROOT / "examples/train_digits.py", context / "examples")
    image = CleanEnvironment(tmp_path / "env")
    image.add_program("pip", "pip")
    environment = image.variables() | {"PIP_NO_INDEX": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    directory = root
    root.mkdir()
    for name, argument in instructions():
        if name == "COPY":
            *sources, target = argument.split()
            place = root / target.strip("/")
            place.mkdir(parents=True, exist_ok=True)
            found = [file for source in sources for file in context.glob(source)]
            assert found, argument
            for file in found:
                shutil.copy(file, place)
        elif name == "WORKDIR":
            directory = root / argument.strip("/")
            directory.mkdir(exist_ok=True)
        elif name == "RUN":
            command = argument.replace("/wheels", str(root / "wheels"))
            done = subprocess.run(command, shell=True, env=environment, cwd=directory, capture_output=True, text=True)
            assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
            assert "Building wheel" not in done.stdout, "nothing is compiled"
        else:
            assert (name, argument) == ("FROM", "python:3.11-slim")
    assert image.backends()
    command = shlex.split("rdzv-run --rdzv-backend=parallel --rdzv-endpoint=127.0.0.1:0 train_digits.py --epochs=1")
    done = image.run(*command, cwd=directory)
    assert done.returncode == 0, done.stderr
    assert "test accuracy" in done.stdout
