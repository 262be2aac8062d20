"""Backends with a fault, 'installed' as pip would leave them, and the suite run against them as a user would.

A toy is a module ``toys/NAME.py`` with one ``rdzv_register_backends``; it should do everything right but one thing,
and say in its docstring what is wrong. Its backend is called NAME with ``-`` for ``_``. What is right about several
toys is in ``toys/right_*.py``. ``check(tmp_path, "NAME", "theme")`` runs that theme against it by ``rdzv conformance``
in a process of its own.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from kits import TESTS

TOYS = TESTS / "conformance" / "toys"
TIMEOUT_S = 230.0
CONFORMANCE = (sys.executable, "-m", "rdzv_launcher.tools", "conformance")
NONE: Mapping[str, str] = MappingProxyType({})
PORTS = ("PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT")
"""The variables that say which ports a process may take: those of the test that starts it."""


@dataclass(frozen=True)
class Checked:
    """What the suite said of a toy."""

    backend: str
    theme: str
    exit_code: int
    text: str
    """All output, the report at its end."""
    tests: Mapping[str, Mapping[str, Any]]
    """The theme's part of the JSON report: name of a test -> promise, outcome, gaps, message."""

    def names(self, outcome: str) -> set[str]:
        """The tests with that outcome (passed, failed, gap, skipped)."""
        return {name for name, test in self.tests.items() if test["outcome"] == outcome}

    def must_fail(self, *names: str, saying: str = "") -> None:
        """These tests failed and no others, the report names toy, theme and promise, and their messages say that.

        Names with an asterisk at their end are the beginnings of names.
        """
        failed = self.names("failed")
        wanted = {name for name in failed for each in names if _matches(name, each)}
        missing = [each for each in names if not any(_matches(name, each) for name in failed)]
        assert not missing, f"not caught by {missing}; failed: {failed}\n{self.text}"
        assert failed == wanted, f"failed too: {failed - wanted}\n{self.text}"
        assert self.exit_code == 1, self.text
        assert f"conformance of {self.backend} (" in self.text
        for name in wanted:
            assert f"FAILED  {self.tests[name]['promise']}: {name}" in self.text
            assert saying in self.tests[name]["message"], (saying, self.tests[name], self.text)

    def must_pass(self) -> None:
        """Nothing failed, and something was tested."""
        assert self.exit_code == 0, self.text
        assert self.tests, self.text
        assert not self.names("failed") | self.names("skipped"), self.text


def _matches(name: str, wanted: str) -> bool:
    return name.startswith(wanted[:-1]) if wanted.endswith("*") else name == wanted


def install(directory: Path, toy: str, harness: str = "DirectoryHarness", backend: str = "") -> Path:
    """Leave ``toys/TOY.py`` below ``directory`` as an installed distribution; returns the path for PYTHONPATH.

    ``harness`` is a class of ``toys/toy_harness.py``, or of the toy's own ``toys/TOY_harness.py``. ``backend`` is the
    name of the backend, if it is not that of the toy.
    """
    site = directory / f"site-{toy}"
    site.mkdir()
    name = toy.replace("_", "-")
    own = f"{toy}_harness"
    module = own if (TOYS / f"{own}.py").exists() else "toy_harness"
    for source in {TOYS / f"{toy}.py", TOYS / "toy_harness.py", TOYS / f"{module}.py", *TOYS.glob("right_*.py")}:
        shutil.copy(source, site)
    info = site / f"rdzv_{toy}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: rdzv-{name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        f"[rdzv_plugins]\n{name} = {toy}\n\n[rdzv_plugins.harnesses]\n{backend or name} = {module}:{harness}\n"
    )
    return site


def environment(*sites: Path, **variables: str) -> dict[str, str]:
    """The variables of a process that sees what is installed in ``sites``."""
    others = ("PET_", "RDZV_", "TORCHELASTIC_", "PYTEST_")
    clean = {k: v for k, v in os.environ.items() if not k.startswith(others) or k in PORTS}
    path = os.pathsep.join(map(str, sites))
    return clean | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "COLUMNS": "200"} | variables


def check(
    directory: Path,
    toy: str,
    theme: str,
    *,
    harness: str = "DirectoryHarness",
    backend: str = "",
    k: str = "",
    beside: Sequence[Path] = (),
    variables: Mapping[str, str] = NONE,
) -> Checked:
    """Run a theme against a toy. ``k``: only the tests that pytest selects so, to save time.

    ``beside``: what else is installed. None of its processes outlives this, also when it takes too long.
    """
    site = install(directory, toy, harness, backend)
    report = directory / f"{toy}.json"
    backend = backend or toy.replace("_", "-")
    command = [*CONFORMANCE, backend, f"--theme={theme}", f"--json={report}", *(("-k", k) if k else ())]
    quick = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **variables}  # other plug-ins of pytest take as long as the toys
    code, text = run(command, environment(site, *beside, **quick), directory)
    data = json.loads(report.read_text())["backends"] if report.exists() else []
    tests = next((each["themes"].get(theme, {}) for each in data if each["backend"] == backend), {})
    return Checked(backend, theme, code, text, tests)


def run(command: Sequence[str], env: dict[str, str], directory: Path, timeout: float = TIMEOUT_S) -> tuple[int, str]:
    """Exit code and output of a command, which gets a session of its own, so that all of it can be ended."""
    output = directory / "output"
    with output.open("wb") as file:
        process = subprocess.Popen(
            command,
            env=env,
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{command} still runs after {timeout:g} s:\n{output.read_text()}") from None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, 9)
                process.wait()
    return code, output.read_text(errors="replace")
