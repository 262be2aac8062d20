"""Gathers the results of a pytest run, prints them as they come, and prints and writes the report at its end."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from rdzv_plugins.testing.suite import apart
from rdzv_plugins.testing.suite.items import facts_of
from rdzv_plugins.testing.suite.report import Results, TestResult, as_data, as_lines, suite_version
from rdzv_plugins.testing.suite.theme import GAP, UNTRIED

TEST = "rdzv_conformance"
"""The name of the property that carries a theme's test result: backend, theme, name, promise, fault."""
WORDS = "rdzv_words"
"""The name of the property that carries what a failed assert without a message says."""
_PROPERTIES = (TEST, GAP, UNTRIED)
_KIND = re.compile(r"^(AssertionError|Failed|[\w.]+\.Broken): ")


class Collector:
    """Collects results in the process that reports: under pytest-xdist, the one that runs no tests."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._results = Results()
        self._file: str | None = config.getoption("conformance_json")
        self._says_each = bool(config.getoption("conformance_backend"))
        self._done: set[str] = set()
        self._running = ""
        self._output = os.dup(1)
        """Where pytest writes, which is not where this process writes while a test runs."""
        self._planned = 0
        self._journal: int = config.getoption("conformance_journal")

    def plan(self, tests: int) -> None:
        """Note the number of tests of themes that are to be run."""
        self._planned = tests
        apart.write(self._journal, "planned", tests)

    def begins(self, item: pytest.Item) -> None:
        """Note that a test of a theme is being set up, for whoever reports if this process ends in it."""
        apart.write(self._journal, "begins", item.nodeid, *facts_of(item))

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Note that a test begins."""
        self._running = nodeid.rpartition("::")[2]

    def pytest_runtest_logfinish(self) -> None:
        """Note that a test has ended."""
        self._running = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take in one phase of a test: set-up, call or end."""
        properties = [(name, value) for name, value in report.user_properties if name in _PROPERTIES]
        facts: Any = next((value for name, value in properties if name == TEST), None)
        if facts is None:
            return
        backend, theme, name, promise, fault = facts
        test = self._results.test(backend, theme, report.nodeid, name, promise)
        test.gaps = list(dict.fromkeys(str(value) for name, value in properties if name == GAP))
        test.fault = test.fault or fault
        untried = next((str(value) for name, value in properties if name == UNTRIED), "")
        if untried and not report.failed:
            test.add("untried", report.duration, untried)
        else:
            test.add("gap" if report.passed and test.gaps else report.outcome, report.duration, _message(report))
        if report.when == "teardown":
            self._done.add(report.nodeid)
            known = (test.outcome, test.seconds, test.message, test.gaps, test.fault)
            apart.write(self._journal, "ended", report.nodeid, backend, theme, name, promise, *known)
            if self._says_each:
                for line in self._about(theme, test):
                    self._line(line)

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """Note Ctrl-C, or a fixture that ends the run."""
        where = f" in {self._running}" if self._running else ""
        self._results.ended = ("interrupted" if isinstance(excinfo.value, KeyboardInterrupt) else "ended") + where

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None]:
        """Write the file, when the table has been printed."""
        self._end(str(session.shouldfail or session.shouldstop or ""))
        yield
        if not self._write():
            session.exitstatus = pytest.ExitCode.USAGE_ERROR

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Print the table, if there was a theme."""
        lines = as_lines(self._results)
        if lines:
            terminalreporter.section(f"conformance (suite of rdzv-plugins {suite_version()})")
        for line in lines:
            terminalreporter.line(line)

    def close(self) -> None:
        """Print nothing more."""
        os.close(self._output)

    def still(self, item: pytest.Item, seconds: float) -> None:
        """Report that a test goes on and on. Called from another thread."""
        if self._says_each:
            self._at_once([f"            ... {seconds:4.0f} s  {item.name} goes on"])

    def last_words(self, item: pytest.Item | None, what: str) -> None:
        """Report that the process ends at once, in the middle of a test, because of ``what``.

        Called from another thread.
        """
        lines = []
        if item is not None and what:
            backend, theme, name, promise = facts_of(item)
            test = self._results.test(backend, theme, item.nodeid, name, promise)
            test.add("failed", 0.0, what)
            self._done.add(item.nodeid)
            lines += self._about(theme, test)
            self._end(f"{item.name} cannot be interrupted")
        else:
            self._end(f"interrupted in {item.name}" if item is not None else "interrupted")
        self._at_once([*lines, *as_lines(self._results)])
        self._write()

    def _end(self, why: str) -> None:
        self._results.ended = self._results.ended or why
        self._results.not_run = max(0, self._planned - len(self._done))
        self._results.keep(self._done)

    def _write(self) -> bool:
        apart.write(self._journal, "reported")
        if self._file is not None:
            try:
                Path(self._file).write_text(json.dumps(as_data(self._results), indent=2) + "\n")
            except OSError as error:
                print(f"--conformance-json: cannot write {self._file}: {error.strerror}", file=sys.stderr)
                return False
        return True

    @staticmethod
    def _about(theme: str, test: TestResult) -> list[str]:
        """Lines about a test that has ended."""
        if test.outcome == "untried":  # those all come at once, and the report has their reason
            return []
        outcome = test.outcome.upper() if test.outcome == "failed" else test.outcome
        line = f"{theme:<11} {outcome:<7}{test.seconds:6.1f} s  {test.name}"
        return [line, f"            {test.message}"] if test.outcome == "failed" else [line]

    def _line(self, text: str) -> None:
        writer = self._config.get_terminal_writer()
        writer.line(text)
        writer.flush()

    def _at_once(self, lines: list[str]) -> None:
        """Print at once, from another thread and in the middle of a test."""
        with open(self._output, "w", encoding="utf-8", errors="replace", closefd=False) as output:
            output.write("".join(f"{line}\n" for line in lines))


def _message(report: pytest.TestReport) -> str:
    """Why it failed or was skipped, in one line."""
    if report.passed:
        return ""
    if isinstance(report.longrepr, tuple):  # skipped: file, line, reason
        return " ".join(report.longrepr[2].split())
    crash = getattr(report.longrepr, "reprcrash", None)
    text = (crash.message if crash else report.longreprtext).strip()
    words = next((str(value) for name, value in report.user_properties if name == WORDS), "")
    line = words or _KIND.sub("", next(iter(text.splitlines()), ""))
    return line if report.when == "call" else f"at its {report.when}: {line}"
