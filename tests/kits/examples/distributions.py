"""Wheels as they are published, and environments that have only them and what is not ours."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Collection
from pathlib import Path

from kits import ROOT

EXAMPLES = ("rdzv-file", "rdzv-http", "rdzv-redis")
LIMIT_S = 1500
PORTS = ("PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT")
"""The variables that say which ports a process may take: those of the test that starts it."""
OURS = ("rdzv", "_rdzv", "__editable__", "_editable_")


def build_wheel(wheels: Path, directory: Path) -> None:
    """This project's wheel, of copies in ``directory``, with the libraries that `make` has built.

    What else is built, the configuration and installation by CMake, is tried by ``test_distributions.py``.
    """
    copy = directory / "rdzv-plugins"
    shutil.copytree(ROOT / "src", copy / "src", ignore=shutil.ignore_patterns("__pycache__"))
    (copy / "native").mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE", "CMakeLists.txt", "native/build_backend.py"):
        shutil.copy(ROOT / name, copy / name)
    pip_wheel(wheels, copy, *(f"--config-settings=wheel.{each}" for each in ("cmake=false", "platlib=true")))


def build_examples(wheels: Path, directory: Path) -> None:
    """The wheels of the examples, of copies: the checkout stays clean."""
    for name in EXAMPLES:
        pip_wheel(wheels, shutil.copytree(ROOT / "examples" / name, directory / name))


def pip_wheel(wheels: Path, source: Path, *options: str, **variables: str) -> None:
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-index"]
    command += ["--no-deps", "--no-build-isolation", *options, f"--wheel-dir={wheels}", str(source)]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # cmake and ninja
    environment = os.environ | {"PATH": path} | variables
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr


class CleanEnvironment:
    """A virtual environment beside the third-party packages of the running one, without this project.

    Those packages are links in a directory of their own, which no ``.pth`` file is read from: an editable installation
    of the checkout, as the running environment has, is not seen.
    """

    def __init__(self, root: Path, *, only: Collection[str] = ()) -> None:
        """With ``only``, of the third-party packages there are no others."""
        self.root = root
        venv.create(root, with_pip=False, symlinks=True)
        others = root / "others"
        others.mkdir()
        for place in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
            for entry in Path(place).iterdir():
                wanted = not only or entry.name.partition("-")[0] in only
                if wanted and not entry.name.startswith(OURS) and entry.suffix != ".pth":
                    (others / entry.name).symlink_to(entry)
        self.site = Path(sysconfig.get_path("purelib", vars={"base": str(root), "platbase": str(root)}))
        (self.site / "others.pth").write_text(f"{others}\n")
        shutil.copy(ROOT / "tests/kits/quick.pth", self.site)

    def run(self, *command: object, cwd: Path | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
        """A command of the environment, to its end."""
        program, *arguments = map(str, command)
        return subprocess.run(
            [str(self.root / "bin" / program), *arguments],
            cwd=cwd or self.root,
            env=self.variables() | variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )

    def variables(self) -> dict[str, str]:
        """Those of a shell after its activation, without what would lead Python, pip or the launcher elsewhere."""
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PET_", "PIP_", "PYTEST_", "PYTHON", "RDZV_", "TORCHELASTIC_")) or name in PORTS
        }
        return kept | {"PATH": f"{self.root / 'bin'}:{os.environ['PATH']}", "VIRTUAL_ENV": str(self.root)}

    def add_program(self, name: str, module: str) -> None:
        """A command that a package of the running environment has brought there."""
        program = self.root / "bin" / name
        program.write_text(f'#!/bin/sh\nexec "{self.root / "bin" / "python"}" -m {module} "$@"\n')
        program.chmod(0o755)

    def pip(self, command: str, *arguments: object) -> None:
        options = ["--quiet", "--disable-pip-version-check", "--no-cache-dir"]
        done = self.run("python", "-m", "pip", command, *options, *arguments)
        assert done.returncode == 0, done.stderr

    def install(self, wheels: Path, *names: str) -> None:
        """By name, with what they depend on, from the wheels alone."""
        self.pip("install", "--no-index", f"--find-links={wheels}", *names)

    def backends(self) -> dict[str, object]:
        """What ``rdzv backends`` lists."""
        listed = self.run("rdzv", "backends", "--json")
        assert listed.returncode == 0, listed.stderr
        return json.loads(listed.stdout)

    def files(self) -> set[str]:
        """All that is installed in it."""
        return {str(file.relative_to(self.root)) for file in self.root.rglob("*") if "__pycache__" not in file.parts}


def passes_its_own_tests(environment: CleanEnvironment, name: str, directory: Path) -> None:
    """The tests of an example, the conformance suite among them, in an environment in which it is installed."""
    sources = ROOT / "examples" / name
    copy = shutil.copytree(sources, directory / name, ignore=shutil.ignore_patterns("src", ".*", "__pycache__"))
    done = environment.run("python", "-m", "pytest", "-q", "-p", "no:cacheprovider", cwd=copy)
    assert done.returncode == 0, done.stdout[-10000:] + done.stderr[-2000:]
    assert f"conformance of {name.removeprefix('rdzv-')} ({name} 0.1.0" in done.stdout
    assert "skipped" not in done.stdout
