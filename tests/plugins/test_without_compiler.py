"""Where there is no C++ compiler the package installs without the native store, and says so where it is needed."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(600)  # the first test builds it
ROOT = Path(__file__).parents[2]


def build_wheel(directory: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    command += [f"--config-settings=build-dir={directory}/build", f"--wheel-dir={directory}", str(ROOT)]
    without = os.environ | {"CXX": "/bin/false", "PIP_DISABLE_PIP_VERSION_CHECK": "1"} | environment
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # cmake and ninja
    return subprocess.run(command, env=without | {"PATH": path}, capture_output=True, text=True, timeout=400)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the package as a machine without a compiler has it."""
    directory = tmp_path_factory.mktemp("without-compiler")
    built = build_wheel(directory)
    assert built.returncode == 0, built.stderr
    [wheel] = directory.glob("*.whl")
    assert wheel.name.endswith("-py3-none-any.whl")
    zipfile.ZipFile(wheel).extractall(directory / "site")
    return directory / "site"


def run(installed: Path, module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", module, *arguments]
    environment = os.environ | {"PYTHONPATH": str(installed)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)


def test_what_needs_no_native_part_works(installed: Path) -> None:
    listed = run(installed, "launcher.tools", "backends")
    assert listed.returncode == 0, listed.stderr
    assert "static" in listed.stdout


def test_serve_says_what_is_missing_and_what_to_do(installed: Path) -> None:
    served = run(installed, "launcher.tools", "serve", "--rdzv-endpoint=127.0.0.1:0")
    assert served.returncode == 69
    assert "the native store is not part of this installation" in served.stderr
    assert "C++20 compiler" in served.stderr
    assert "Traceback" not in served.stderr


def test_a_launch_that_wants_it_is_refused_before_anything_starts(installed: Path, tmp_path: Path) -> None:
    script = tmp_path / "never.py"
    script.write_text("print('started')")
    launched = run(installed, "launcher.cli", "--rdzv-conf=store=parallel", str(script))
    assert launched.returncode == 69
    assert "store=torch" in launched.stderr
    assert "started" not in launched.stdout


def test_who_requires_the_native_part_gets_an_error(tmp_path: Path) -> None:
    assert build_wheel(tmp_path, RDZV_REQUIRE_NATIVE="1").returncode != 0
    assert not list(tmp_path.glob("*.whl"))
