"""The results of a run of the suite, by backend, theme and test: as a table for a terminal, and as plain data."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any, Literal, TypeAlias

from rdzv_plugins.errors import RdzvError
from rdzv_plugins.testing.installed import entry
from rdzv_plugins.testing.suite import THEMES

_WIDTH = 400
"""How many characters of a message the table shows; all of it is in the data and in the traceback."""

Outcome: TypeAlias = Literal["passed", "gap", "untried", "failed", "skipped"]
_WORST: tuple[Outcome, ...] = ("passed", "gap", "untried", "skipped", "failed")


@dataclass
class TestResult:
    """One test, over its set-up, its call and its end."""

    __test__ = False  # nothing for pytest to collect

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

    def add(self, outcome: Outcome, seconds: float, message: str) -> None:
        """Add one phase of it. The worst outcome counts, with its message."""
        self.seconds += seconds
        if _WORST.index(outcome) > _WORST.index(self.outcome):
            self.outcome, self.message = outcome, message


class Results:
    """All results of a run."""

    def __init__(self) -> None:
        self._tests: dict[tuple[str, str], dict[str, TestResult]] = {}
        self.ended = ""
        """Why the run ended before all tests were run."""
        self.not_run = 0
        """How many tests were not run in that case."""

    def test(self, backend: str, theme: str, key: str, name: str, promise: str) -> TestResult:
        """The result of the test known by ``key``; created if there is none yet."""
        return self._tests.setdefault((backend, theme), {}).setdefault(key, TestResult(name, promise))

    def keep(self, keys: Collection[str]) -> None:
        """Forget all tests except these, which have begun and not ended."""
        for tests in self._tests.values():
            for key in tests.keys() - set(keys):
                del tests[key]

    def backends(self) -> list[str]:
        """The backends with a result, in the order of their first one."""
        return list(dict.fromkeys(backend for backend, _ in self._tests))

    def themes(self, backend: str) -> Iterator[tuple[str, dict[str, TestResult]]]:
        """The themes of a backend in order, each with its tests in the order of their run.

        Tests are given by name; those that share a name, in several classes of a theme, by ``Class::test``.
        """
        own = [theme for name, theme in self._tests if name == backend]
        for theme in sorted(own, key=lambda each: (THEMES.index(each) if each in THEMES else len(THEMES), each)):
            yield theme, _by_name(self._tests[backend, theme])


def as_data(results: Results) -> dict[str, Any]:
    """The results as JSON values, under stable keys, as scripts read them.

    ``suite`` is its version, ``ended`` is why the run has ended early; ``backends`` has one object for each.
    """
    backends = [_backend(results, name) for name in results.backends()]
    return {"suite": suite_version(), "ended": results.ended, "backends": backends}


def as_lines(results: Results) -> list[str]:
    """A table for each backend, with what did not pass below each theme, and a verdict."""
    lines: list[str] = []
    for name in results.backends():
        facts = _facts(name)
        what = ", ".join([f"{facts['distribution']} {facts['version']}", *facts["capabilities"]])
        lines.append(f"conformance of {name} ({what})")
        found = [(theme, tests, _counts(list(tests.values()))) for theme, tests in results.themes(name)]
        skipped = any(counts["skipped"] for _, _, counts in found)
        untried = any(counts["not tried"] for _, _, counts in found)
        columns = ("passed", "failed", "gaps") + ("not tried",) * untried + ("skipped",) * skipped
        lines.append(f"  {'theme':<12}" + "".join(f"{column:>{_column(column)}}" for column in columns))
        for theme, tests, counts in found:
            lines.append(f"  {theme:<12}" + "".join(f"{counts[column]:>{_column(column)}}" for column in columns))
            lines += [line for name, test in tests.items() for line in _remarks(name, test)]
            lines += _gaps(list(tests.values()))
        lines.append(f"  verdict: {_verdict(results, name)}")
    if lines and results.ended:
        were = f"{results.not_run} test was" if results.not_run == 1 else f"{results.not_run} tests were"
        lines.append(f"ended early: {results.ended}; {were} not run")
    return lines


def _column(name: str) -> int:
    return 8 if len(name) < 8 else len(name) + 2


def _verdict(results: Results, backend: str) -> str:
    """The verdict in a few words, the cause first."""
    themes = dict(results.themes(backend))
    tests = [test for theme in themes.values() for test in theme.values()]
    failed = [test for test in tests if test.outcome == "failed"]
    untried = sum(test.outcome == "untried" for test in tests)
    if failed:
        faults = list(dict.fromkeys(test.fault for test in failed if test.fault))
        unnamed = sum(not test.fault for test in failed)
        broken = [f"{unnamed} {'other ' * bool(faults)}promise{'s are' if unnamed > 1 else ' is'} broken"] * bool(
            unnamed
        )
        others = f"; {untried} tests that build on that were not tried" if untried else ""
        return f"does not conform: {', '.join(faults + broken)}{others}"
    if results.ended:
        return "not known: the run has ended early"
    missing = set(THEMES) - themes.keys()
    return "conforms" + (f" in what was tried: {', '.join(themes)}" if missing else "")


def suite_version() -> str:
    """The version of rdzv-plugins, whose suite this is."""
    return version("rdzv-plugins")


def _by_name(tests: dict[str, TestResult]) -> dict[str, TestResult]:
    """Replace pytest's keys (``file::Class::test``) by the shortest unique names."""
    named = {key: test.name for key, test in tests.items()}
    for longer in ({key: key.partition("::")[2] or key for key in tests}, {key: key for key in tests}):
        often = Counter(named.values())
        named = {key: longer[key] if often[name] > 1 else name for key, name in named.items()}
    return {named[key]: test for key, test in tests.items()}


def _counts(tests: list[TestResult]) -> dict[str, int]:
    count = {outcome: sum(test.outcome == outcome for test in tests) for outcome in _WORST}
    return {
        "passed": count["passed"],
        "failed": count["failed"],
        "gaps": count["gap"],
        "not tried": count["untried"],
        "skipped": count["skipped"],
    }


def _remarks(name: str, test: TestResult) -> Iterator[str]:
    if test.outcome == "failed":
        yield f"    FAILED  {test.promise}: {name}"
    if test.outcome in ("failed", "skipped") and test.message:
        message = textwrap.shorten(test.message, _WIDTH, placeholder=" ...")
        yield f"    {'':<8}{message}" if test.outcome == "failed" else f"    skipped {test.promise}: {message}"


def _gaps(tests: list[TestResult]) -> Iterator[str]:
    """One line for each reason, however many tests have it."""
    promises: dict[str, list[str]] = {}
    for test in tests:
        for gap in test.gaps:
            promises.setdefault(gap, []).append(test.promise)
    for gap, of in promises.items():
        yield f"    gap     {of[0] if len(of) == 1 else f'{len(of)} tests'}: {gap}"


def _backend(results: Results, name: str) -> dict[str, Any]:
    themes = {
        theme: {
            test_name: {
                "promise": test.promise,
                "outcome": test.outcome,
                "seconds": round(test.seconds, 3),
                "gaps": test.gaps,
                "message": test.message,
                "fault": test.fault,
            }
            for test_name, test in tests.items()
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
