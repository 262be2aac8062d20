"""The tests of ``rdzv conformance`` in a process of their own: if a backend ends that, there is a report all the same.

The parent has loaded no plug-in. It passes signals on, reaps orphans, and knows from the journal what has happened.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from rdzv_plugins.linux import prctl
from rdzv_plugins.linux.children import children_now

_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Apart(NamedTuple):
    """Where the tests are: here, with a ``journal`` to write to (a file descriptor), or over, with an exit ``code``."""

    journal: int = -1
    code: int | None = None


def apart(report: str | None) -> Apart:
    """Go on in a child of this process; in this one, return when it has ended. ``report``: the file of --json."""
    with tempfile.TemporaryFile(prefix="rdzv-conformance-") as file:
        prctl.adopt_orphans()
        signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED_ON)
        parent, child = os.getpid(), os.fork()
        if child == 0:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _PASSED_ON)
            os.setpgid(0, 0)  # Ctrl-C reaches the parent alone, which passes it on: once
            prctl.die_with_parent()
            if os.getppid() != parent:
                os._exit(1)
            return Apart(journal=os.dup(file.fileno()))
        for number in _PASSED_ON:
            signal.signal(number, lambda number, _: os.kill(child, number))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _PASSED_ON)
        status = _wait(child)
        file.seek(0)
        lines = [json.loads(line) for line in file.read().splitlines()]
    if not os.WIFSIGNALED(status) and (not lines or lines[-1] == ["reported"]):
        return Apart(code=os.waitstatus_to_exitcode(status))
    _kill_all()
    return Apart(code=_report(lines, status, report))


def write(journal: int, *entry: Any) -> None:
    """Add an entry to the journal, if there is one (not -1)."""
    if journal >= 0:
        os.write(journal, json.dumps(entry).encode() + b"\n")


def _wait(child: int) -> int:
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid == child:
            return status


def _kill_all() -> None:
    """Kill what the tests have left: servers, nodes, and what those have started, in whatever sessions."""
    while left := children_now()(os.getpid()):
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):  # its children are ours then
            os.waitpid(-1, 0)


def _report(lines: list[Any], status: int, file: str | None) -> int:
    """Print and write what is known; returns the exit code."""
    from rdzv_plugins.testing.suite.report import Results, as_data, as_lines

    results, running, planned = Results(), None, 0
    for kind, *entry in lines:
        if kind == "planned":
            planned = entry[0]
        elif kind == "begins":
            running = entry
        elif kind == "ended":
            running = None
            key, backend, theme, name, promise, outcome, seconds, message, gaps, fault = entry
            test = results.test(backend, theme, key, name, promise)
            test.add(outcome, seconds, message)
            test.gaps, test.fault = gaps, fault
    number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
    how = f"by {signal.Signals(number).name}" if number else f"with exit code {os.waitstatus_to_exitcode(status)}"
    if lines and lines[-1] == ["reported"]:
        print(f"conformance: the process of the tests has ended {how}, after the report", flush=True)
        return 1
    results.not_run = max(
        0, planned - sum(len(tests) for each in results.backends() for _, tests in results.themes(each))
    )
    results.ended = f"the process of the tests has ended {how}"
    if running is not None:
        key, backend, theme, name, promise = running
        results.ended += f" in {name}"
        if number not in _PASSED_ON:
            test = results.test(backend, theme, key, name, promise)
            test.add("failed", 0.0, f"the process that ran it has ended {how}")
            test.fault = "it ends the process that uses it"
            results.not_run -= 1
    print("\n".join(as_lines(results)) or f"conformance: {results.ended}", flush=True)
    if file is not None:
        Path(file).write_text(json.dumps(as_data(results), indent=2) + "\n")
    return 128 + number if number in _PASSED_ON else 1
