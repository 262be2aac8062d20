"""Backends with a fault, 'installed' as pip would leave them, and the suite run against them as a user would.

A toy is what is registered by its name in ``toys/*_toys.py``: right in everything but for one fault, of which its
docstring tells. ``check(tmp_path, "NAME", "theme")`` runs that theme against it by ``rdzv conformance`` in a process
of its own.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
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
    ended: str
    """Why the run has ended early."""
    outcomes: Mapping[str, Mapping[str, int]]
    """For each theme how many tests had which outcome."""

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


_PLUGIN = """\
{begins}
import {module}
from toy_registry import registered
from rdzv_plugins import hookimpl

@hookimpl
def rdzv_register_backends():
    return registered({like!r}, {name!r}, {module}.backend)
"""
BEGINS = {
    "plugin-imports-torch": "import torch",
    "plugin-imports-client": "import redis_like_client",
    "plugin-is-broken": 'raise RuntimeError("not today")',
    "plugin-is-slow": "import time\nbefore = time.process_time()\nwhile time.process_time() < 10 * before: pass",
}
"""Right backends, of which the plug-in does something wrong when it is imported."""


def install(directory: Path, toy: str, harness: str = "DirectoryHarness", backend: str = "") -> Path:
    """Leave a module TOY_as_plugin below ``directory`` as an installed distribution; returns the path for PYTHONPATH.

    ``harness`` is a class of ``toys/toy_harness.py``, or MODULE:CLASS. ``backend`` is the name of the backend, if it
    is not that of the toy; and a backend that is no toy is a right state.
    """
    site = directory / f"site-{toy}"
    site.mkdir()
    for source in TOYS.glob("*.py"):
        shutil.copy(source, site)
    like = toy if toy not in BEGINS and any(f'@toy("{toy}")' in text for text in _texts().values()) else "state-right"
    module = next(name for name, text in _texts().items() if f'@toy("{like}")' in text)
    plugin = toy.replace("-", "_") + "_as_plugin"
    text = _PLUGIN.format(begins=BEGINS.get(toy, ""), module=module, like=like, name=toy)
    (site / f"{plugin}.py").write_text(text)
    info = site / f"rdzv_{plugin}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: rdzv-{toy}\nVersion: 1.0\n")
    harness = harness if ":" in harness else f"toy_harness:{harness}"
    entries = f"[rdzv_plugins]\n{toy} = {plugin}\n\n[rdzv_plugins.harnesses]\n{backend or toy} = {harness}\n"
    (info / "entry_points.txt").write_text(entries)
    return site


def _texts() -> dict[str, str]:
    return {file.stem: file.read_text() for file in TOYS.glob("*_toys.py")}


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
    more: Sequence[str] = (),
) -> Checked:
    """Run a theme against a toy. ``k``: only the tests that pytest selects so, to save time. ``more``: arguments.

    ``beside``: what else is installed. None of its processes outlives this, also when it takes too long.
    """
    site = install(directory, toy, harness, backend)
    report = directory / f"{toy}.json"
    backend = backend or toy
    themes = (f"--theme={theme}",) * bool(theme)
    command = [*CONFORMANCE, backend, *themes, f"--json={report}", *more, *(("-k", k) if k else ())]
    quick = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **variables}  # other plug-ins of pytest take as long as the toys
    code, text = run(command, environment(site, *beside, **quick), directory)
    written = report.read_text() if report.exists() else ""  # it is empty where the process has come to no end
    data = json.loads(written or '{"backends": [], "ended": ""}')
    themes_of = next((each["themes"] for each in data["backends"] if each["backend"] == backend), {})
    outcomes = {name: Counter(test["outcome"] for test in tests.values()) for name, tests in themes_of.items()}
    return Checked(backend, theme, code, text, themes_of.get(theme, {}), data["ended"], outcomes)


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
