"""The results of a run of the suite, by backend, theme and test: as a table for a terminal, and as plain data."""

from __future__ import annotations

import json
import textwrap
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, TypeAlias

from rdzv_plugins.errors import RdzvError
from rdzv_plugins.testing import THEMES
from rdzv_plugins.testing.harness import entry

_WIDTH = 400
"""How many characters of a message the table shows; all of it is in the data and in the traceback."""

Outcome: TypeAlias = Literal["passed", "gap", "untried", "failed", "skipped"]
_WORST: tuple[Outcome, ...] = ("passed", "gap", "untried", "skipped", "failed")
_COLUMNS: dict[str, Outcome] = {
    "passed": "passed",
    "failed": "failed",
    "gaps": "gap",
    "not tried": "untried",
    "skipped": "skipped",
}


@dataclass
class TestResult:
    """One test, over its set-up, its call and its end."""

    __test__ = False  # nothing for pytest to collect

    backend: str
    theme: str
    key: str
    """What pytest calls it: ``file::Class::test``."""
    name: str
    promise: str
    """What the test is about, in words."""
    outcome: Outcome = "passed"
    """``gap``: it has passed, and reported what the backend does not promise or what the suite could not try.

    ``untried``: what it builds on is broken.
    """
    seconds: float = 0.0
    gaps: list[str] = field(default_factory=list)
    message: str = ""
    """One line about a failure, or why it was skipped or not tried."""
    fault: str = ""
    """What the verdict calls a backend that fails it; empty for most."""
    over: bool = False
    """Whether it has ended: set-up, call and end."""

    def add(self, outcome: Outcome, seconds: float, message: str) -> None:
        """Add one phase of it. The worst outcome counts, with its message."""
        self.seconds += seconds
        if _WORST.index(outcome) > _WORST.index(self.outcome):
            self.outcome, self.message = outcome, message


@dataclass
class SuiteResults:
    """All results of a run."""

    tests: list[TestResult] = field(default_factory=list)
    planned: int = 0
    ended: str = ""
    """Why the run ended before all tests were run."""

    def test(self, backend: str, theme: str, key: str, name: str, promise: str) -> TestResult:
        """The result of the test known by ``key``; created if there is none yet."""
        for test in reversed(self.tests):
            if (test.theme, test.key) == (theme, key):
                test.backend = backend  # which is not known before there is a harness
                return test
        self.tests.append(TestResult(backend, theme, key, name, promise))
        return self.tests[-1]

    def end(self, why: str) -> None:
        """The run is over. Forgets the tests that have begun and not ended."""
        self.ended = self.ended or why
        self.tests = [test for test in self.tests if test.over]

    def backends(self) -> list[str]:
        return list(dict.fromkeys(test.backend for test in self.tests))

    def themes(self, backend: str) -> Iterator[tuple[str, dict[str, TestResult]]]:
        """The themes of a backend in order, each with its tests in the order of their run.

        Tests are given by name; those that share a name, in several classes of a theme, by ``Class::test``.
        """
        own = dict.fromkeys(test.theme for test in self.tests if test.backend == backend)
        for theme in sorted(own, key=lambda each: (THEMES.index(each) if each in THEMES else len(THEMES), each)):
            yield theme, _by_name([test for test in self.tests if (test.backend, test.theme) == (backend, theme)])


def as_data(results: SuiteResults) -> dict[str, Any]:
    """The results as JSON values, under stable keys, as scripts read them.

    ``suite`` is its version, ``ended`` is why the run has ended early; ``backends`` has one object for each.
    """
    backends = [_backend(results, name) for name in results.backends()]
    return {"suite": suite_version(), "ended": results.ended, "backends": backends}


def write(results: SuiteResults, file: str) -> None:
    """Write the data to a file. Raises ``OSError``."""
    Path(file).write_text(json.dumps(as_data(results), indent=2) + "\n")


def as_lines(results: SuiteResults) -> list[str]:
    """A table for each backend, with what did not pass below each theme, and a verdict."""
    lines: list[str] = []
    for name in results.backends():
        facts = _facts(name)
        what = ", ".join([f"{facts['distribution']} {facts['version']}", *facts["capabilities"]])
        lines.append(f"conformance of {name} ({what})")
        found = {test.outcome for test in results.tests if test.backend == name} | {"passed", "failed", "gap"}
        columns = {column: outcome for column, outcome in _COLUMNS.items() if outcome in found}
        lines.append(f"  {'theme':<12}" + "".join(f"{column:>{_wide(column)}}" for column in columns))
        for theme, tests in results.themes(name):
            counts = Counter(test.outcome for test in tests.values())
            numbers = (f"{counts[outcome]:>{_wide(column)}}" for column, outcome in columns.items())
            lines.append(f"  {theme:<12}" + "".join(numbers))
            lines += [line for shown, test in tests.items() for line in _remarks(shown, test)]
            lines += _gaps(list(tests.values()))
        lines.append(f"  verdict: {_verdict(results, name)}")
    if lines and results.ended:
        missing = max(0, results.planned - len(results.tests))
        were = f"{missing} test was" if missing == 1 else f"{missing} tests were"
        lines.append(f"ended early: {results.ended}; {were} not run")
    return lines


def _wide(column: str) -> int:
    return 8 if len(column) < 8 else len(column) + 2


def _verdict(results: SuiteResults, backend: str) -> str:
    tests = [test for test in results.tests if test.backend == backend]
    failed = [test for test in tests if test.outcome == "failed"]
    untried = sum(test.outcome == "untried" for test in tests)
    if failed:
        said = list(dict.fromkeys(test.fault for test in failed if test.fault))
        if unnamed := sum(not test.fault for test in failed):
            said.append(f"{unnamed} {'other ' * bool(said)}promise{'s are' if unnamed > 1 else ' is'} broken")
        others = f"; {untried} tests that build on that were not tried" if untried else ""
        return f"does not conform: {', '.join(said)}{others}"
    if results.ended:
        return "unknown: the run ended early"
    themes = [theme for theme, _ in results.themes(backend)]
    return "conforms" + (f" in what was tried: {', '.join(themes)}" if set(THEMES) - set(themes) else "")


def suite_version() -> str:
    """The version of rdzv-plugins, whose suite this is."""
    return version("rdzv-plugins")


def _by_name(tests: list[TestResult]) -> dict[str, TestResult]:
    """The tests by the shortest names that are unique."""
    named = {test.key: test.name for test in tests}
    for longer in ({key: key.partition("::")[2] or key for key in named}, {key: key for key in named}):
        often = Counter(named.values())
        named = {key: longer[key] if often[name] > 1 else name for key, name in named.items()}
    return {named[test.key]: test for test in tests}


def _remarks(name: str, test: TestResult) -> Iterator[str]:
    message = textwrap.shorten(test.message, _WIDTH, placeholder=" ...")
    if test.outcome == "failed":
        yield f"    FAILED  {test.promise}: {name}"
        if message:
            yield f"            {message}"
    elif test.outcome == "skipped" and message:
        yield f"    skipped {test.promise}: {message}"


def _gaps(tests: list[TestResult]) -> Iterator[str]:
    promises: dict[str, list[str]] = {}
    for test in tests:
        for gap in test.gaps:
            promises.setdefault(gap, []).append(test.promise)
    for gap, of in promises.items():
        yield f"    gap     {of[0] if len(of) == 1 else f'{len(of)} tests'}: {gap}"


def _backend(results: SuiteResults, name: str) -> dict[str, Any]:
    keys = ("promise", "outcome", "seconds", "gaps", "message", "fault")
    themes = {
        theme: {
            shown: {key: getattr(test, key) for key in keys} | {"seconds": round(test.seconds, 3)}
            for shown, test in tests.items()
        }
        for theme, tests in results.themes(name)
    }
    return {"backend": name, **_facts(name), "verdict": _verdict(results, name), "themes": themes}


def _facts(backend: str) -> dict[str, Any]:
    """What is known about a backend without its harness; it may be broken."""
    try:
        found = entry(backend)
    except RdzvError:
        return {"distribution": "unknown distribution", "version": "?", "capabilities": []}
    return {
        "distribution": found.record.distribution,
        "version": found.record.version,
        "capabilities": sorted(capability.value for capability in found.backend.capabilities),
    }
