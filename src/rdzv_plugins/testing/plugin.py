"""The pytest plug-in of the conformance suite: sets its options and the order of its tests, and ensures that each ends.

``pytest_plugins = ["rdzv_plugins.testing.plugin"]`` in a top-level conftest, or ``pytest -p
rdzv_plugins.testing.plugin``. Works under pytest-xdist: what the report needs travels with each test's result.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Generator
from contextlib import AbstractContextManager

import pytest

from rdzv_plugins.testing.contract.parts import PATIENCE
from rdzv_plugins.testing.suite import THEMES
from rdzv_plugins.testing.suite.collector import TEST, WORDS, Collector
from rdzv_plugins.testing.suite.ground import fault_of, note_broken
from rdzv_plugins.testing.suite.guard import Guard
from rdzv_plugins.testing.suite.items import facts_of, ground_step, in_words, promise_of, theme_of
from rdzv_plugins.testing.suite.theme import GAP, UNTRIED

logger = logging.getLogger(__name__)

_LIMIT_S = max(300.0, 5 * PATIENCE)
_collector = pytest.StashKey[Collector]()
_guard = pytest.StashKey[Guard]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options ``--conformance-...``."""
    group = parser.getgroup("conformance", "the conformance suite of rdzv-plugins")
    group.addoption("--conformance-json", metavar="FILE", help="write the report to FILE, as JSON")
    group.addoption(
        "--conformance-themes", metavar="A,B", default="", help=f"run only these themes: {', '.join(THEMES)}"
    )
    group.addoption(
        "--conformance-timeout",
        metavar="SECONDS",
        type=float,
        default=_LIMIT_S,
        help=f"a test of the suite that takes longer has failed (default {_LIMIT_S:g})",
    )
    group.addoption("--conformance-backend", metavar="NAME", default="", help="run_all.py: the backend to test")
    group.addoption("--conformance-endpoint", metavar="WHERE", help="run_all.py: where its service runs already")
    group.addoption("--conformance-journal", metavar="FD", type=int, default=-1, help="run_all.py: for its parent")
    group.addoption("--conformance-conf", metavar="K=V,...", default="", help="run_all.py: --rdzv-conf of its jobs")


def pytest_configure(config: pytest.Config) -> None:
    """Gather the results where the run is reported: not in a process of pytest-xdist that runs tests."""
    if not hasattr(config, "workerinput"):
        file = config.getoption("conformance_json")
        if file is not None:
            try:
                open(file, "a").close()  # better to say so now than when all tests have run
            except OSError as error:
                raise pytest.UsageError(f"--conformance-json: cannot write {file}: {error.strerror}") from None
        config.stash[_collector] = Collector(config)
        config.pluginmanager.register(config.stash[_collector], "rdzv-conformance")
    collector = config.stash.get(_collector, None)
    still, last_words = (collector.still, collector.last_words) if collector else (_unheard, _unheard)
    alone = bool(config.getoption("conformance_backend"))
    config.stash[_guard] = Guard(config.getoption("conformance_timeout"), still, last_words, alone=alone)


@pytest.hookimpl(tryfirst=True)  # then pytest gathers what shares a fixture
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the themes that were not requested, and put first what the others build on; other tests stay."""
    wanted = [name for name in config.getoption("conformance_themes").split(",") if name]
    unknown = sorted(set(wanted) - set(THEMES))
    if unknown:
        raise pytest.UsageError(f"--conformance-themes: no theme {unknown[0]!r}; there are {', '.join(THEMES)}")
    if wanted:
        out = [item for item in items if (theme := theme_of(item)) is not None and theme.theme not in wanted]
        items[:] = [item for item in items if item not in out]
        config.hook.pytest_deselected(items=out)
    # one harness for all: before every other theme; otherwise in each class, which may have a harness of its own
    alone = bool(config.getoption("conformance_backend"))
    first: dict[object, int] = {}
    place = {
        item: first.setdefault(None if alone else getattr(item, "cls", None) or item, len(first)) for item in items
    }
    steps = {item: step for item in items if (step := ground_step(item)) is not None}
    items.sort(key=lambda item: (place[item], item not in steps, steps.get(item, 0)))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Watch the tests, if there is a theme among them."""
    config = session.config
    tests = [item.nodeid for item in session.items if theme_of(item) is not None]
    collector = config.stash.get(_collector, None)
    if collector is not None and tests:
        collector.plan(len(tests))
    if tests and not config.getoption("usepdb") and not config.getoption("collectonly"):
        config.stash[_guard].start()


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


def pytest_unconfigure(config: pytest.Config) -> None:
    """Stop watching and let go: everything has ended."""
    if _guard in config.stash:
        config.stash[_guard].stop()
    if _collector in config.stash:
        config.stash[_collector].close()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, None, None]:
    """Set a test up within its time limit."""
    collector = item.config.stash.get(_collector, None)
    if collector is not None and theme_of(item) is not None:
        collector.begins(item)
    with _limited(item):
        return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """Call a test within its time limit."""
    with _limited(item):
        return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, None, None]:
    """Take down what a test has set up, within its time limit."""
    with _limited(item):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add to the result what the report needs to know, wherever that is read."""
    report = yield
    if theme_of(item) is not None:
        fault = ""
        if report.failed and call.excinfo is not None and ground_step(item) is not None:
            fault = fault_of(getattr(item, "function", None), call.excinfo.value)
            harness = getattr(item, "funcargs", {}).get("harness")
            if harness is not None:
                note_broken(harness, promise_of(item), fault)
        report.user_properties.append((TEST, [*facts_of(item), fault]))
        if report.failed and call.excinfo is not None and (words := in_words(call.excinfo)):
            report.user_properties.append((WORDS, words))
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_report_teststatus(report: pytest.TestReport, config: pytest.Config) -> tuple[str, str, str] | None:
    """Have pytest count as the report does; and if each result gets a line as it comes, print no dots."""
    names = {name for name, _ in getattr(report, "user_properties", ())}  # that of a collection has none
    if TEST not in names:
        return None
    dots = not config.getoption("conformance_backend")
    if report.skipped and UNTRIED in names:
        return "not tried", "n" * dots, "NOT TRIED" * dots
    if report.passed and report.when == "call":
        category, letter, word = ("gaps", "g", "GAP") if GAP in names else ("passed", ".", "PASSED")
        return category, letter * dots, word * dots
    if report.failed and not dots:
        return "failed" if report.when == "call" else "error", "", ""
    return None


def _limited(item: pytest.Item) -> AbstractContextManager[None]:
    guard = item.config.stash.get(_guard, None)
    if guard is None or not guard.watches or theme_of(item) is None:
        return contextlib.nullcontext()
    return guard.phase(item)


def _unheard(*_: object) -> None:
    """Ignore what the guard reports, in a process of pytest-xdist, which reports its end itself."""
