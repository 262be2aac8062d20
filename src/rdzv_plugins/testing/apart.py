"""The tests of ``rdzv conformance`` in a process of their own: if a backend ends that, there is a report all the same.

The parent has loaded no plug-in. It passes signals on, reaps orphans, and knows from the journal what has happened.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from types import FrameType
from typing import TYPE_CHECKING, Any, BinaryIO

from rdzv_plugins.system import prctl
from rdzv_plugins.system.processes import children_now
from rdzv_plugins.testing.processes import kill, send

if TYPE_CHECKING:
    import pytest

_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_UNWIND_S = 10
"""Seconds after a signal within which the tests have to take down what they had set up."""


class Journal:
    """A plug-in of pytest: it notes what the parent reports if this process ends in a test."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._results: Any = None

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        from rdzv_plugins.testing.suite import facts_of

        self._results = item.config.pluginmanager.get_plugin("rdzv-conformance").results  # type: ignore[union-attr]
        test, limit = facts_of(item), item.config.getoption("conformance_timeout")
        self.note("phase", test=test, planned=self._results.planned, begun=time.monotonic(), limit=limit)

    pytest_runtest_call = pytest_runtest_teardown = pytest_runtest_setup

    def pytest_runtest_logfinish(self) -> None:
        self.note("ended", test=asdict(self._results.tests[-1]))

    def note(self, kind: str, **facts: Any) -> None:
        self._file.write(json.dumps([kind, facts]).encode() + b"\n")


def apart(tests: Callable[[Journal], int], report: str | None) -> int:
    """Call ``tests`` in a child of this process, and return its exit code. ``report``: the file of --json.

    What ``tests`` raises is raised in the child.
    """
    with tempfile.TemporaryFile(prefix="rdzv-conformance-", buffering=0) as file:
        prctl.adopt_orphans()
        signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED_ON)
        parent, child = os.getpid(), os.fork()
        if child == 0:
            if not prctl.die_with_parent(parent):
                os._exit(1)
            _run(tests, Journal(file))
        status, received = _wait(child)
        file.seek(0)
        entries = [json.loads(line) for line in file.read().splitlines()]
    if entries and entries[-1][0] == "over" and not os.WIFSIGNALED(status):
        return os.waitstatus_to_exitcode(status)
    _kill_all()
    return _report(entries, status, received, report)


def _run(tests: Callable[[Journal], int], journal: Journal) -> None:
    """Run the tests, and end the process: a thread that a backend has left behind would keep it for ever."""
    os.setpgid(0, 0)  # Ctrl-C reaches the parent alone, which passes it on: once
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell has its background jobs ignore it
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _PASSED_ON)
    try:
        code = tests(journal)
    finally:
        journal.note("over")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _wait(child: int) -> tuple[int, list[int]]:
    """How the child has ended, and the signals that were passed on; a second one, or no end, kills it."""
    received: list[int] = []

    def pass_on(number: int, _: FrameType | None) -> None:
        send(child, signal.SIGKILL if received else number)
        received.append(number)
        signal.alarm(_UNWIND_S)

    before = {number: signal.signal(number, pass_on) for number in (*_PASSED_ON, signal.SIGALRM)}
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _PASSED_ON)
    pid = status = 0
    while pid != child:
        pid, status = os.waitpid(-1, 0)
    signal.alarm(0)
    for number, handler in before.items():
        signal.signal(number, handler)
    return status, received


def _kill_all() -> None:
    """Kill what the tests have left: servers, nodes, and what those have started, in whatever sessions."""
    while left := children_now()(os.getpid()):
        for pid in left:
            kill(pid)
        for pid in left:  # their own children are ours then
            os.waitpid(pid, 0)


def _report(entries: list[Any], status: int, received: list[int], file: str | None) -> int:
    from rdzv_plugins.testing.report import SuiteResults, TestResult, as_lines, write

    results, phase = SuiteResults(), None
    for kind, facts in entries:
        if kind == "ended":
            results.tests.append(TestResult(**facts["test"]))
        phase = facts if kind == "phase" else None
        results.planned = facts.get("planned", results.planned)
    code = os.waitstatus_to_exitcode(status)
    how = f"with exit code {code}" if code >= 0 else f"by {signal.Signals(-code).name}"
    stopped = next((number for number in (*received, -code) if number in _PASSED_ON), None)
    results.ended = "interrupted" if stopped else f"the test process ended {how}"
    if phase is not None:
        results.ended += f" in {phase['test']['name']}"
    if phase is not None and not stopped:
        test, seconds = TestResult(**phase["test"]), time.monotonic() - phase["begun"]
        if code == 1 and seconds > phase["limit"]:  # faulthandler has ended it
            said = f"exceeded its limit of {phase['limit']:g} s and cannot be interrupted; stderr shows its threads"
            test.fault = "it hangs"
        else:
            said, test.fault = f"the process that ran it ended {how}", "it ends the process that uses it"
        test.add("failed", seconds, said)
        results.tests.append(test)
    print("\n".join(as_lines(results)) or f"conformance: {results.ended}", flush=True)
    if file is not None:
        write(results, file)
    return 128 + stopped if stopped else 1
