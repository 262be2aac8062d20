"""Where there is no C++ compiler the package installs without the native store, and says so where it is needed."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from kits import ROOT
from plugins.conftest import Site

pytestmark = pytest.mark.timeout(600)  # the first test builds it


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
def installed(built: tuple[Path, str]) -> Site:
    """The package as a machine without a compiler has it."""
    directory, _ = built
    [wheel] = directory.glob("*.whl")
    assert wheel.name.endswith("-py3-none-any.whl")
    site = Site(directory)
    zipfile.ZipFile(wheel).extractall(site.path)
    return site


def test_the_build_says_at_its_end_what_is_missing(built: tuple[Path, str]) -> None:
    _, said = built
    end = "\n".join(said.splitlines()[-15:])
    assert "rdzv-plugins was built WITHOUT its native part" in end, said
    assert "RDZV_REQUIRE_NATIVE=1" in end


def test_what_cannot_be_used_is_listed_so(installed: Site) -> None:
    assert installed.run("-m", "rdzv_launcher.tools", "backends").stdout.count("UNUSABLE HERE: the native store") == 2
    data = json.loads(installed.run("-m", "rdzv_launcher.tools", "backends", "--json").stdout)["backends"]
    unusable = {each["name"]: each["unusable"] for each in data}
    assert unusable["static"] is unusable["c10d"] is None
    for name in ("parallel", "tiered"):
        assert unusable[name]["reason"].startswith("the native store is not part")
        assert "--no-deps" in unusable[name]["remedy"]


SCRIPT = "print('started')"
C10D = ("--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", "--rdzv-conf=store=torch")
ADVICE = ("C++20 compiler", "pip install --force-reinstall --no-deps ", "rdzv backends")


@pytest.mark.parametrize(
    ("flags", "code", "said"),
    [
        (["--rdzv-backend=parallel", "--rdzv-conf=store=torch"], 69, ADVICE),  # no advice that does not help
        (["--rdzv-conf=store=parallel"], 69, ("store=torch",)),
        (C10D, 0, ()),
    ],
)
def test_the_store_that_is_advised_works(installed: Site, tmp_path: Path, flags, code: int, said) -> None:
    """And a launch that needs the other one is refused before anything starts."""
    script = tmp_path / "once.py"
    script.write_text(SCRIPT)
    launched = installed.rdzv_run(*flags, str(script))
    assert launched.returncode == code, launched.stderr
    assert ("started" in launched.stdout) == (code == 0)
    assert all(words in launched.stderr for words in said), launched.stderr
    assert said != ADVICE or "store=torch" not in launched.stderr


@pytest.mark.thorough
@pytest.mark.parametrize(("arguments", "code"), [("--version", 0), ("serve --rdzv-endpoint=127.0.0.1:0", 69)])
def test_the_tools_say_it(installed: Site, arguments: str, code: int) -> None:
    shown = installed.run("-m", "rdzv_launcher.tools", *arguments.split())
    assert shown.returncode == code, shown.stderr
    assert "the native store is not part of this installation" in shown.stdout + shown.stderr
    assert "Traceback" not in shown.stderr


@pytest.mark.thorough
def test_who_requires_the_native_part_gets_an_error(tmp_path: Path) -> None:
    assert build_wheel(tmp_path, RDZV_REQUIRE_NATIVE="1").returncode != 0
    assert not list(tmp_path.glob("*.whl"))


def test_what_pip_asks_first_needs_no_compiler(tmp_path: Path) -> None:
    """Otherwise everything is compiled while pip says "Preparing metadata", and again for each extra."""
    ask = "from build_backend import *; import sys; print(prepare_metadata_for_build_wheel(sys.argv[1]))"
    environment = {"CXX": "/bin/false", "RDZV_REQUIRE_NATIVE": "1", "PYTHONPATH": str(ROOT / "native")}
    command = [sys.executable, "-c", ask, str(tmp_path)]
    asked = subprocess.run(command, env=os.environ | environment, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert asked.returncode == 0, asked.stderr
    metadata = (tmp_path / asked.stdout.split()[-1] / "METADATA").read_text()
    assert "Name: rdzv-plugins\n" in metadata
    assert "Provides-Extra: etcd\n" in metadata
