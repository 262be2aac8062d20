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
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from kits import TESTS
from kits.distribution import leave
from kits.examples.distributions import PORTS

TOYS = TESTS / "conformance" / "toys"
TIMEOUT_S = 230.0
CONFORMANCE = (sys.executable, "-m", "rdzv_launcher.tools", "conformance")
NONE: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class Checked:
    """What the suite said of a toy."""

    backend: str
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

    def with_beginnings(self, outcome: str, wanted: Collection[str]) -> bool:
        """Whether the tests with that outcome are those whose names, without ``test_``, begin so."""
        found = [name.removeprefix("test_") for name in self.names(outcome)]
        one_way = all(any(name.startswith(each) for name in found) for each in wanted)
        return one_way and all(any(name.startswith(each) for each in wanted) for name in found)

    def must_fail(self, *wanted: str) -> None:
        """These tests failed and no others, and the report names toy and promise."""
        assert self.exit_code == 1, self.text
        assert self.with_beginnings("failed", wanted), f"{wanted}, not {self.names('failed')}\n{self.text}"
        assert f"conformance of {self.backend} (" in self.text
        for name in self.names("failed"):
            assert f"FAILED  {self.tests[name]['promise']}: {name}" in self.text

    @property
    def messages(self) -> str:
        """What the tests say that failed."""
        return "\n".join(self.tests[name]["message"] for name in self.names("failed"))

    def must_pass(self) -> None:
        """Nothing failed, and something was tested."""
        assert self.exit_code == 0, self.text
        assert self.tests, self.text
        assert not self.names("failed") | self.names("skipped"), self.text


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
CALLED = {"plugin-badly-named": "Plugin_Badly_Named", "plugin-of-another-name": "the-name-of-the-backend"}
"""Toys whose backends have other names."""
HARNESSES = {
    "coordination_toys": "CoordinationHarness",
    "handler_toys": "HandlerHarness",
    "served_toys": "served_toys:ServedStateHarness",
    "state_toys": "DirectoryHarness",
}
"""That of the toys of a module."""


def install(directory: Path, toy: str, harness: str | None = "") -> Path:
    """Leave a module TOY_as_plugin below ``directory`` as an installed distribution; returns the path for PYTHONPATH.

    ``harness`` is a class of ``toys/toy_harness.py``, or MODULE:CLASS; with None, it names none. A name that is no
    toy's is a right state.
    """
    site = directory / f"site-{toy}"
    shutil.copytree(TOYS, site)
    texts = {source.stem: source.read_text() for source in site.glob("*.py")}
    like = toy if any(f'"{toy}"' in text for text in texts.values()) else "state-right"
    module = next(name for name, text in texts.items() if f'"{like}"' in text)
    plugin = toy.replace("-", "_") + "_as_plugin"
    text = _PLUGIN.format(begins=BEGINS.get(toy, ""), module=module, like=like, name=toy)
    points = f"[rdzv_plugins]\n{toy} = {plugin}\n"
    if harness is not None:
        found = harness or HARNESSES[module]
        found = found if ":" in found else f"toy_harness:{found}"
        points += f"[rdzv_plugins.harnesses]\n{CALLED.get(toy, toy)} = {found}\n"
    leave(site, f"rdzv-{toy}", points, **{plugin: text})
    if toy == "plugin-imports-client":
        leave(site, "redis-like-client", "", redis_like_client="")
        (site / "redis_like_client-1.0.dist-info" / "RECORD").write_text("redis_like_client.py,,\n")
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
    harness: str = "",
    k: str = "",
    variables: Mapping[str, str] = NONE,
    more: Sequence[str] = (),
) -> Checked:
    """Run a theme against a toy. ``k``: only the tests that pytest selects so, to save time. ``more``: arguments.

    None of its processes outlives this, also when it takes too long.
    """
    site = install(directory, toy, harness)
    report, backend = directory / f"{toy}.json", CALLED.get(toy, toy)
    themes = (f"--theme={theme}",) * bool(theme)
    command = [*CONFORMANCE, backend, *themes, f"--json={report}", *more, *(("-k", k) if k else ())]
    quick = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **variables}  # other plug-ins of pytest take as long as the toys
    code, text = run(command, environment(site, **quick), directory)
    written = report.read_text() if report.exists() else ""  # it is empty where the process has come to no end
    data = json.loads(written or '{"backends": [], "ended": ""}')
    themes_of = next((each["themes"] for each in data["backends"] if each["backend"] == backend), {})
    outcomes = {name: Counter(test["outcome"] for test in tests.values()) for name, tests in themes_of.items()}
    return Checked(backend, code, text, themes_of.get(theme, {}), data["ended"], outcomes)


def run(command: Sequence[str], env: Mapping[str, str], directory: Path) -> tuple[int, str]:
    """Exit code and output of a command, which gets a session of its own, so that all of it can be ended."""
    output = directory / "output"
    with output.open("wb") as file:
        streams: Any = {"stdin": subprocess.DEVNULL, "stdout": file, "stderr": subprocess.STDOUT}
        process = subprocess.Popen(command, env=env, cwd=directory, start_new_session=True, **streams)
        try:
            code = process.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{command} still runs after {TIMEOUT_S:g} s:\n{output.read_text()}") from None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, 9)
                process.wait()
    return code, output.read_text(errors="replace")
