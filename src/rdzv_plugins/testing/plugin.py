"""The pytest plug-in of the conformance suite: its options, the order of its tests, their time limit, and the report.

``pytest_plugins = ["rdzv_plugins.testing.plugin"]`` in a top-level conftest, or ``pytest -p
rdzv_plugins.testing.plugin``. Works under pytest-xdist: what the report needs travels with each test's result.
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import logging
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from rdzv_plugins.testing import THEMES
from rdzv_plugins.testing.parts import PATIENCE
from rdzv_plugins.testing.report import SuiteResults, TestResult, as_lines, suite_version, write
from rdzv_plugins.testing.suite import GAP, UNTRIED, facts_of, ground_step, in_words, note_broken, theme_of

logger = logging.getLogger(__name__)

_TEST = "rdzv_conformance"
"""The name of the property that carries what a result is of, and the fault."""
_WORDS = "rdzv_words"
"""The name of the property that carries what a failed assert without a message says."""
_KIND = re.compile(r"^(AssertionError|Failed|[\w.]+\.Broken): ")
_LIMIT_S = max(300.0, 5 * PATIENCE)
_UNWIND_S = 30.0
"""Seconds within which a test that was ended has to take down what it had set up."""
_stderr = pytest.StashKey[int]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options ``--conformance-...``."""
    group = parser.getgroup("conformance", "the conformance suite of rdzv-plugins")
    group.addoption("--conformance-json", metavar="FILE", help="write the report to FILE as JSON")
    group.addoption(
        "--conformance-themes", metavar="A,B", default="", help=f"run only these themes: {', '.join(THEMES)}"
    )
    group.addoption(
        "--conformance-timeout",
        metavar="SECONDS",
        type=float,
        default=_LIMIT_S,
        help=f"time limit of each test of the suite (default {_LIMIT_S:g})",
    )
    group.addoption("--conformance-backend", metavar="NAME", default="", help="the backend that every_theme.py tests")
    group.addoption("--conformance-endpoint", metavar="WHERE", help="every_theme.py: where its service already runs")
    group.addoption("--conformance-conf", metavar="K=V,...", default="", help="every_theme.py: --rdzv-conf of its jobs")


def pytest_configure(config: pytest.Config) -> None:
    """Gather the results where the run is reported: not in a process of pytest-xdist that runs tests."""
    config.stash[_stderr] = os.dup(2)  # pytest has its own there while a test runs
    config.add_cleanup(functools.partial(os.close, config.stash[_stderr]))
    if hasattr(config, "workerinput"):
        return
    file = config.getoption("conformance_json")
    if file is not None:
        try:
            open(file, "a").close()  # better to say so now than when all tests have run
        except OSError as error:
            raise pytest.UsageError(f"--conformance-json: cannot write {file}: {error.strerror}") from None
    config.pluginmanager.register(Collector(config), "rdzv-conformance")


@pytest.hookimpl(tryfirst=True)  # then pytest gathers what shares a fixture
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the themes that were not requested, and put first what the others build on; other tests stay."""
    wanted = [name for name in config.getoption("conformance_themes").split(",") if name]
    unknown = sorted(set(wanted) - set(THEMES))
    if unknown:
        raise pytest.UsageError(f"--conformance-themes: unknown theme {unknown[0]!r}; themes: {', '.join(THEMES)}")
    if wanted:
        out = [item for item in items if (theme := theme_of(item)) is not None and theme.theme not in wanted]
        items[:] = [item for item in items if item not in out]
        config.hook.pytest_deselected(items=out)
    # one harness for all: before every other theme; otherwise in each class, which may have a harness of its own
    alone = bool(config.getoption("conformance_backend"))
    first: dict[object, int] = {}
    place = {
        item: first.setdefault(None if alone else item.getparent(pytest.Class) or item, len(first)) for item in items
    }
    steps = {item: step for item in items if (step := ground_step(item)) is not None}
    items.sort(key=lambda item: (place[item], item not in steps, steps.get(item, 0)))


@pytest.hookimpl(wrapper=True, trylast=True)  # within what prints the summary
def pytest_sessionfinish(exitstatus: int) -> Generator[None, None, None]:
    """After Ctrl-C a fixture may end with an error that is nobody's fault; it must not take the place of the report.

    pytest's own ``tmp_path`` does so if the test was still being set up.
    """
    try:
        return (yield)
    except Exception as error:
        if exitstatus != pytest.ExitCode.INTERRUPTED:
            raise
        logger.debug("at the end of an interrupted run: %r", error)
        return None


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, None, None]:
    """Set a test up within its time limit; call it, and take down what it has set up, within the same again."""
    with _limited(item):
        return (yield)


pytest_runtest_call = pytest_runtest_teardown = pytest_runtest_setup


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add to the result what the report needs to know, wherever that is read."""
    report = yield
    if theme_of(item) is None:
        return report
    fault = ""
    if report.failed and call.excinfo is not None:
        if ground_step(item) is not None:
            fault = note_broken(item, call.excinfo.value)
        if words := in_words(call.excinfo):
            report.user_properties.append((_WORDS, words))
    report.user_properties.append((_TEST, [facts_of(item), fault]))
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_report_teststatus(report: pytest.TestReport, config: pytest.Config) -> tuple[str, str, str] | None:
    """Have pytest count as the report does; and if each result gets a line as it comes, print no dots."""
    if not _told(report, _TEST):
        return None
    dots = not config.getoption("conformance_backend")
    if report.skipped and _told(report, UNTRIED):
        return "not tried", "n" * dots, "NOT TRIED" * dots
    if report.passed and report.when == "call":
        category, letter, word = ("gaps", "g", "GAP") if _told(report, GAP) else ("passed", ".", "PASSED")
        return category, letter * dots, word * dots
    if report.failed and not dots:
        return "failed" if report.when == "call" else "error", "", ""
    return None


@contextlib.contextmanager
def _limited(item: pytest.Item) -> Iterator[None]:
    """One phase of a test of the suite: it fails if it takes too long.

    If that does not get through, because the thread waits in C or has swallowed it, the process ends, with the stacks
    of its threads on stderr.
    """
    limit, begin = item.config.getoption("conformance_timeout"), time.monotonic()
    theirs, _ = signal.getitimer(signal.ITIMER_REAL)
    limited = theme_of(item) is not None and threading.current_thread() is threading.main_thread()
    if not limited or item.config.getoption("usepdb") or 0 < theirs < limit:  # limited by pytest-timeout, for example
        yield
        return

    def over(number: int, frame: FrameType | None) -> None:
        raise pytest.fail.Exception(f"exceeded its limit of {limit:g} s{_place(frame)}", pytrace=True)

    before = signal.signal(signal.SIGALRM, over)
    last = limit + min(_UNWIND_S, 2 * limit)
    faulthandler.dump_traceback_later(last, exit=True, file=item.config.stash[_stderr])
    signal.setitimer(signal.ITIMER_REAL, limit)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        faulthandler.cancel_dump_traceback_later()
        signal.signal(signal.SIGALRM, before)
        if theirs:
            signal.setitimer(signal.ITIMER_REAL, max(0.001, theirs - (time.monotonic() - begin)))


def _place(frame: FrameType | None) -> str:
    """Where a test is: the innermost function outside Python, pytest and the suite; empty if there is none."""
    here, python = Path(__file__).parent, Path(os.__file__).parent
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        parts = {*path.parts}
        installed = bool(parts & {"site-packages", "dist-packages"})  # below that of Python, perhaps
        pythons = not installed and (path.is_relative_to(python) or not path.is_absolute())  # <frozen ...>
        if not (pythons or parts & {"_pytest", "pluggy"} or path.is_relative_to(here)):
            return f", in {frame.f_code.co_name}() of {path.name}, line {frame.f_lineno}"
        frame = frame.f_back
    return ""


class Collector:
    """Collects results in the process that reports: under pytest-xdist, the one that runs no tests."""

    def __init__(self, config: pytest.Config) -> None:
        self.results = SuiteResults()
        self._config = config
        self._file: str | None = config.getoption("conformance_json")
        self._says_each = bool(config.getoption("conformance_backend"))
        self._running = ""

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.results.planned = sum(theme_of(item) is not None for item in session.items)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._running = nodeid.rpartition("::")[2]

    def pytest_runtest_logfinish(self) -> None:
        self._running = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        of_theme = _told(report, _TEST)
        if not of_theme:
            return
        facts, fault = of_theme[0]
        test = self.results.test(**facts)
        test.gaps = list(dict.fromkeys(_told(report, GAP)))
        test.fault = test.fault or fault
        untried = _told(report, UNTRIED)
        if untried and not report.failed:
            test.add("untried", report.duration, untried[0])
        else:
            test.add("gap" if report.passed and test.gaps else report.outcome, report.duration, _message(report))
        if report.when == "teardown":
            test.over = True
            if self._says_each and test.outcome != "untried":  # those all come at once, and the report has their reason
                self._say(test)

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """Note Ctrl-C, or a fixture that ends the run."""
        where = f" in {self._running}" if self._running else ""
        self.results.ended = ("interrupted" if isinstance(excinfo.value, KeyboardInterrupt) else "ended") + where

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None]:
        """Write the file, when the table has been printed."""
        self.results.end(str(session.shouldfail or session.shouldstop or ""))
        yield
        if self._file is not None:
            try:
                write(self.results, self._file)
            except OSError as error:
                print(f"--conformance-json: cannot write {self._file}: {error.strerror}", file=sys.stderr)
                session.exitstatus = pytest.ExitCode.USAGE_ERROR

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        lines = as_lines(self.results)
        if lines:
            terminalreporter.section(f"conformance (suite of rdzv-plugins {suite_version()})")
        for line in lines:
            terminalreporter.line(line)

    def _say(self, test: TestResult) -> None:
        failed = test.outcome == "failed"
        writer = self._config.get_terminal_writer()
        outcome = test.outcome.upper() if failed else test.outcome
        writer.line(f"{test.theme:<11} {outcome:<7}{test.seconds:6.1f} s  {test.name}")
        if failed:
            writer.line(f"            {test.message}")
        writer.flush()


def _told(report: pytest.TestReport, name: str) -> list[Any]:
    """What a result carries under that name; that of a collection carries nothing."""
    return [value for each, value in getattr(report, "user_properties", ()) if each == name]


def _message(report: pytest.TestReport) -> str:
    """Why it failed or was skipped, in one line."""
    if report.passed:
        return ""
    if isinstance(report.longrepr, tuple):  # skipped: file, line, reason
        return " ".join(report.longrepr[2].split())
    crash = getattr(report.longrepr, "reprcrash", None)
    text = (crash.message if crash else report.longreprtext).strip()
    line = "".join(_told(report, _WORDS)) or _KIND.sub("", next(iter(text.splitlines()), ""))
    return line if report.when == "call" else f"at its {report.when}: {line}"
