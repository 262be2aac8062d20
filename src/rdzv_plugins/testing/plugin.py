"""The pytest plug-in of the conformance suite: its options, and the report at the end of a run.

``pytest_plugins = ["rdzv_plugins.testing.plugin"]`` in a top-level conftest, or ``pytest -p
rdzv_plugins.testing.plugin``. Works under pytest-xdist: what the report needs travels with each test's result.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from rdzv_plugins.testing.report import Results, as_data, as_lines, suite_version
from rdzv_plugins.testing.theme_names import THEMES
from rdzv_plugins.testing.themes import GAP, Theme

_TEST = "rdzv_conformance"
"""The name of the property with which a result of a theme's test travels: backend, theme, name, promise."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--conformance-...``."""
    group = parser.getgroup("conformance", "the conformance suite of rdzv-plugins")
    group.addoption("--conformance-json", metavar="FILE", help="write the report to FILE, as JSON")
    group.addoption(
        "--conformance-themes", metavar="A,B", default="", help=f"run only these themes: {', '.join(THEMES)}"
    )
    group.addoption("--conformance-backend", metavar="NAME", default="", help="run_all.py: the backend to test")
    group.addoption("--conformance-endpoint", metavar="WHERE", help="run_all.py: where its service runs already")
    group.addoption("--conformance-conf", metavar="K=V,...", default="", help="run_all.py: --rdzv-conf of its jobs")


def pytest_configure(config: pytest.Config) -> None:
    """The results are gathered where the run is reported: not in a process of pytest-xdist's that runs tests."""
    if not hasattr(config, "workerinput"):
        file = config.getoption("conformance_json")
        if file is not None:
            try:
                open(file, "a").close()  # better told now than when all tests have run
            except OSError as error:
                raise pytest.UsageError(f"--conformance-json: cannot write {file}: {error.strerror}") from None
        config.pluginmanager.register(_Collector(config), "rdzv-conformance")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the themes that were not asked for; other tests stay."""
    wanted = [name for name in config.getoption("conformance_themes").split(",") if name]
    if not wanted:
        return
    unknown = sorted(set(wanted) - set(THEMES))
    if unknown:
        raise pytest.UsageError(f"--conformance-themes: no theme {unknown[0]!r}; there are {', '.join(THEMES)}")
    out = [item for item in items if (theme := _theme(item)) is not None and theme.theme not in wanted]
    items[:] = [item for item in items if item not in out]
    config.hook.pytest_deselected(items=out)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Give the result what the report needs to know, wherever it is read."""
    report = yield
    theme = _theme(item)
    if theme is not None:
        report.user_properties.append((_TEST, [_backend(item), theme.theme, item.name, _promise(item)]))
    return report


class _Collector:
    """Of the process that reports: under pytest-xdist the one that runs no test."""

    def __init__(self, config: pytest.Config) -> None:
        self._results = Results()
        self._file: str | None = config.getoption("conformance_json")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """One phase of a test: set-up, call or end."""
        properties = [(name, value) for name, value in report.user_properties if name in (_TEST, GAP)]
        facts: Any = next((value for name, value in properties if name == _TEST), None)
        if facts is None:
            return
        backend, theme, name, promise = facts
        test = self._results.test(backend, theme, report.nodeid, name, promise)
        test.gaps = list(dict.fromkeys(str(value) for name, value in properties if name == GAP))
        test.add("gap" if report.passed and test.gaps else report.outcome, report.duration, _message(report))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None, None, None]:
        """Write the file, when the table has been printed."""
        yield
        if self._file is not None:
            try:
                Path(self._file).write_text(json.dumps(as_data(self._results), indent=2) + "\n")
            except OSError as error:
                print(f"--conformance-json: cannot write {self._file}: {error.strerror}", file=sys.stderr)
                session.exitstatus = pytest.ExitCode.USAGE_ERROR

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Print the table, if there was a theme."""
        lines = as_lines(self._results)
        if lines:
            terminalreporter.section(f"conformance (suite of rdzv-plugins {suite_version()})")
        for line in lines:
            terminalreporter.line(line)


def _theme(item: pytest.Item) -> type[Theme] | None:
    """The class of a theme's test."""
    cls = getattr(item, "cls", None)
    return cls if isinstance(cls, type) and issubclass(cls, Theme) else None


def _promise(item: pytest.Item) -> str:
    """What a test is about: the first line of its docstring, or its name in words."""
    function = getattr(item, "function", None)
    words = (getattr(function, "__doc__", None) or "").strip().splitlines()
    if words:
        return str(words[0]).rstrip(".")
    return str(getattr(item, "originalname", item.name)).removeprefix("test_").replace("_", " ")


def _backend(item: pytest.Item) -> str:
    """The backend of its harness; if there is none, what was asked for, or where the test is."""
    harness = getattr(item, "funcargs", {}).get("harness")
    return str(getattr(harness, "backend", "") or item.config.getoption("conformance_backend") or item.path.name)


def _message(report: pytest.TestReport) -> str:
    """Why it failed or was skipped, in one line."""
    if report.passed:
        return ""
    if isinstance(report.longrepr, tuple):  # skipped: file, line, reason
        return " ".join(report.longrepr[2].split())
    crash = getattr(report.longrepr, "reprcrash", None)
    text = (crash.message if crash else report.longreprtext).strip()
    line = next(iter(text.splitlines()), "").removeprefix("AssertionError: ")
    return line if report.when == "call" else f"at its {report.when}: {line}"
