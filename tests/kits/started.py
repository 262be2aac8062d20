"""A plug-in of pytest: which tests failed, and whether each had started a process, for ``tests/run.py``.

What a test starts is seen by Python's audit events, not marked: its own processes, those of its fixtures, also where
these serve several tests, and the agents that ``kits.warm`` forks.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

FOLDER = "RDZV_FAILURES"
"""Variable of the folder that gets ``failed.json`` (name of the test -> has it started a process) and their output."""

_STARTS = {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system", "rdzv.forks.start"}

_started = False  # a process, since this was last set to False
_fixtures: set[tuple[str, str]] = set()  # (where it is defined, its name) of those that have started one


def _note(event: str, _: tuple[Any, ...]) -> None:
    global _started
    if event in _STARTS:
        _started = True


sys.addaudithook(_note)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any]) -> Generator[None, Any, Any]:
    global _started
    before, _started = _started, False
    try:
        return (yield)
    finally:
        if _started:
            _fixtures.add((fixturedef.baseid, fixturedef.argname))
        _started = _started or before


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    global _started
    _started = False
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    report = yield
    names = getattr(item, "fixturenames", ())  # a doctest has none
    report.started_process = _started or any(name in names and item.nodeid.startswith(at) for at, name in _fixtures)
    return report


class Failures:
    """Those of the whole run, kept by the process that is told of all tests."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._failed: dict[str, bool] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not report.failed:
            return
        self._failed[report.nodeid] = getattr(report, "started_process", False)  # a tester that crashed says nothing
        name = re.sub(r"[^\w.-]+", "-", report.nodeid)[-150:]
        with (self._folder / f"{name}.txt").open("a") as file:
            print(report.nodeid, report.when, report.longreprtext, sep="\n", file=file)
            for title, text in report.sections:
                print(f"--- {title}", text, sep="\n", file=file)

    def pytest_sessionfinish(self) -> None:
        (self._folder / "failed.json").write_text(json.dumps(self._failed, indent=1))


def pytest_configure(config: pytest.Config) -> None:
    folder = os.environ.pop(FOLDER, None)  # it is not for the runs of pytest that tests start, nor for its own testers
    if folder:
        config.pluginmanager.register(Failures(Path(folder)))
