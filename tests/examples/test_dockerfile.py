"""examples/kubernetes/Dockerfile without Docker: its commands in their order, in a clean environment as the image."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from kits import ROOT
from kits.examples.distributions import CleanEnvironment

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(1800)]  # where the wheel has to be built from nothing


def test_the_image_is_built_from_wheels_and_trains(wheels: Path, tmp_path: Path) -> None:
    """There is no index here: torch and the like are there already, which is what pip then says of them."""
    image = CleanEnvironment(tmp_path / "env")
    image.add_program("pip", "pip")
    environment = image.variables() | {"PIP_NO_INDEX": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    for line in re.sub(r"\\\n", "", (ROOT / "examples/kubernetes/Dockerfile").read_text()).splitlines():
        name, _, argument = line.partition(" ")
        if name == "COPY":
            source, _, target = argument.partition(" ")
            place = tmp_path / target.strip("/")
            place.mkdir(exist_ok=True)
            folder = wheels if source.startswith("dist/") else (ROOT / source).parent
            for file in list(folder.glob(Path(source).name)) or [Path(source)]:
                shutil.copy(file, place)
        elif name == "RUN":
            command = argument.replace("/wheels", str(tmp_path / "wheels"))
            done = subprocess.run(command, shell=True, env=environment, cwd=tmp_path, capture_output=True, text=True)
            assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
            assert "Building wheel" not in done.stdout, "nothing is compiled"
    flags = "--rdzv-backend=parallel", "--rdzv-endpoint=127.0.0.1:0"
    done = image.run("rdzv-run", *flags, "train_digits.py", "--epochs=1", cwd=tmp_path / "app")
    assert done.returncode == 0, done.stderr
    assert "test accuracy" in done.stdout
