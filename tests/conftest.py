from __future__ import annotations

import gc
import signal
from pathlib import Path

import pytest
from hypothesis.internal.conjecture import providers

# Hypothesis tries constants of all modules that are loaded: what a test tries would depend on the tests beside it
providers._get_local_constants = lambda: providers._local_constants

# the conformance suite's report, and what tests/run.py needs; pytest takes such a line from a top-level conftest only
pytest_plugins = ["rdzv_plugins.testing.plugin", "kits.started"]

# as a terminal has them: what CI, nohup or a script starts in the background ignores them, and so do its children
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    # below nohup the run goes on, and what it starts is as anywhere else
    signal.signal(signal.SIGHUP, lambda *_: None)


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """The report of the conformance suite is for who asks for it: ``--conformance-json=FILE``."""
    report = config.pluginmanager.get_plugin("rdzv-conformance")
    if report is not None and config.getoption("conformance_json") is None:
        config.pluginmanager.unregister(report)


_THRESHOLDS = gc.get_threshold()
gc.set_threshold(50_000, 20, 20)  # while tests are collected, next to nothing is garbage

LONG = [
    "simulation/test_random_jobs.py",
    "examples/test_rdzv_redis.py",
    "examples/test_rdzv_file.py",
    "examples/test_rdzv_http.py",
    "examples/test_readme.py",
    "slurm/test_slurm_ends.py",
]
"""Files that take minutes. They are begun first: a run ends when the last file does."""

SHORT = ["bench/test_bench_load.py", "bench/test_bench_settings.py"] + [
    f"wire/test_{name}.py" for name in ("order", "proxy_savings", "unix", "attacks", "linearizability")
]
"""Files that take a moment. They are next: a tester that has a file with a test or two is given another one with it."""

MIXED = ("launcher", "plugins", "slurm", "unit", "wire")
"""Folders whose files take turns: what the launcher's tests do is wait, what those of the store do is compute."""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    files = dict.fromkeys(item.path for item in items)
    place: dict[Path, tuple[int, float]] = {}
    for name in MIXED:
        folder = [file for file in files if file.parent == here / name]
        place |= {file: (2, number / len(folder)) for number, file in enumerate(folder)}
    place |= {here / name: (0, number) for number, name in enumerate(LONG + SHORT)}
    items.sort(key=lambda item: place.get(item.path, (1, 0)))


def pytest_collection_finish() -> None:
    """What is there now stays: no later search for garbage looks through thousands of tests."""
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)
