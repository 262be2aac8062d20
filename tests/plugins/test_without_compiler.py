"""Where there is no C++ compiler the package installs without the native store, and says so where it is needed."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(600)  # the first test builds it
ROOT = Path(__file__).parents[2]


def build_wheel(directory: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pip", "wheel", "--verbose", "--no-deps", "--no-build-isolation"]
    command += [f"--config-settings=build-dir={directory}/build", f"--wheel-dir={directory}", str(ROOT)]
    without = os.environ | {"CXX": "/bin/false", "PIP_DISABLE_PIP_VERSION_CHECK": "1"} | environment
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # cmake and ninja
    return subprocess.run(command, env=without | {"PATH": path}, capture_output=True, text=True, timeout=400)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Where the wheel is that a machine without a compiler makes, and what its build says."""
    directory = tmp_path_factory.mktemp("without-compiler")
    built = build_wheel(directory)
    assert built.returncode == 0, built.stderr
    return directory, built.stdout + built.stderr


@pytest.fixture(scope="module")
def installed(built: tuple[Path, str]) -> Path:
    """A directory with the package as a machine without a compiler has it."""
    directory, _ = built
    [wheel] = directory.glob("*.whl")
    assert wheel.name.endswith("-py3-none-any.whl")
    zipfile.ZipFile(wheel).extractall(directory / "site")
    return directory / "site"


def run(installed: Path, module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", module, *arguments]
    environment = os.environ | {"PYTHONPATH": str(installed)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)


def test_the_build_says_at_its_end_what_is_missing(built: tuple[Path, str]) -> None:
    _, said = built
    end = "\n".join(said.splitlines()[-15:])
    assert "rdzv-plugins was built WITHOUT its native part" in end, said
    assert "RDZV_REQUIRE_NATIVE=1" in end


def test_what_cannot_be_used_is_listed_so(installed: Path) -> None:
    listed = run(installed, "rdzv_launcher.tools", "backends")
    assert listed.returncode == 0, listed.stderr
    of = {part.split("  (")[0]: part for part in listed.stdout.split("\n\n")}
    for name in ("parallel, parallel-epoll", "tiered, tiered-proxy"):
        assert "    UNUSABLE HERE: the native store is not part of this installation of rdzv-plugins" in of[name]
        assert "--no-deps" in of[name]
    for name in ("static", "c10d"):
        assert "UNUSABLE" not in of[name]
    data = json.loads(run(installed, "rdzv_launcher.tools", "backends", "--json").stdout)["backends"]
    unusable = {each["name"]: each["unusable"] for each in data}
    assert unusable["static"] is unusable["c10d"] is None
    for name in ("parallel", "tiered"):
        assert unusable[name]["reason"].startswith("the native store is not part")
        assert "--no-deps" in unusable[name]["remedy"]


@pytest.mark.parametrize("conf", ["store=torch", pytest.param("", marks=pytest.mark.thorough)])
def test_a_backend_that_needs_it_does_not_advise_what_does_not_help(installed: Path, tmp_path: Path, conf: str) -> None:
    script = tmp_path / "never.py"
    script.write_text("print('started')")
    launched = run(installed, "rdzv_launcher.run.cli", "--rdzv-backend=parallel", f"--rdzv-conf={conf}", str(script))
    assert launched.returncode == 69
    said = launched.stderr
    assert "store=torch" not in said
    for advice in ("C++20 compiler", "pip install --force-reinstall --no-deps ", "rdzv backends"):
        assert advice in said, said
    assert "started" not in launched.stdout


def test_the_store_that_is_advised_works(installed: Path, tmp_path: Path) -> None:
    script = tmp_path / "once.py"
    script.write_text("print('started')")
    arguments = "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", "--rdzv-conf=store=torch"
    launched = run(installed, "rdzv_launcher.run.cli", *arguments, str(script))
    assert launched.returncode == 0, launched.stderr
    assert "started" in launched.stdout


@pytest.mark.thorough
def test_the_version_says_it(installed: Path) -> None:
    shown = run(installed, "rdzv_launcher.tools", "--version")
    assert shown.returncode == 0, shown.stderr
    assert ", native part: no (the native store is not part of this installation of rdzv-plugins: " in shown.stdout


@pytest.mark.thorough
def test_serve_says_what_is_missing_and_what_to_do(installed: Path) -> None:
    served = run(installed, "rdzv_launcher.tools", "serve", "--rdzv-endpoint=127.0.0.1:0")
    assert served.returncode == 69
    assert "the native store is not part of this installation" in served.stderr
    assert "C++20 compiler" in served.stderr
    assert "Traceback" not in served.stderr


def test_a_launch_that_wants_it_is_refused_before_anything_starts(installed: Path, tmp_path: Path) -> None:
    script = tmp_path / "never.py"
    script.write_text("print('started')")
    launched = run(installed, "rdzv_launcher.run.cli", "--rdzv-conf=store=parallel", str(script))
    assert launched.returncode == 69
    assert "store=torch" in launched.stderr
    assert "started" not in launched.stdout


@pytest.mark.thorough
def test_who_requires_the_native_part_gets_an_error(tmp_path: Path) -> None:
    assert build_wheel(tmp_path, RDZV_REQUIRE_NATIVE="1").returncode != 0
    assert not list(tmp_path.glob("*.whl"))


def test_what_pip_asks_first_needs_no_compiler(tmp_path: Path) -> None:
    """Otherwise everything is compiled while pip says "Preparing metadata", and again for each extra."""
    ask = "from build_backend import *; import sys; print(prepare_metadata_for_build_wheel(sys.argv[1]))"
    environment = {"CXX": "/bin/false", "RDZV_REQUIRE_NATIVE": "1", "PYTHONPATH": str(ROOT / "native")}
    asked = subprocess.run(
        [sys.executable, "-c", ask, str(tmp_path)],
        env=os.environ | environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert asked.returncode == 0, asked.stderr
    metadata = (tmp_path / asked.stdout.split()[-1] / "METADATA").read_text()
    assert "Name: rdzv-plugins\n" in metadata
    assert "Provides-Extra: etcd\n" in metadata
