"""The report of a run: what passed, what failed and why, and what a backend does not promise; as text and as JSON."""

from __future__ import annotations

import json
import re
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from kits.conformance.toy_kit import environment, run

from rdzv_plugins.testing.report import SuiteResults, as_data, as_lines

TESTS = '''
import threading
import pytest
from rdzv_plugins.testing import Harness
from rdzv_plugins.testing.suite import Theme


class SomeTheme(Theme):
    theme = "scale"

    @pytest.fixture
    def broken(self):
        raise OSError("no room left")

    def test_that_passes(self, harness): ...

    @pytest.mark.parametrize("number", [1, 2])
    def test_of_several(self, harness, number):
        """Each of them passes."""

    def test_that_fails(self, harness):
        """A promise in words.

        And more of it.
        """
        values = [1, 2]
        assert values == [1, 3], "the second is not three"

    def test_that_says_nothing(self, harness):
        last, again = 7, 7
        assert (
            again > last
        )

    def test_that_cannot_begin(self, harness, broken): ...

    def test_gap(self, harness):
        self.gap("there is no such thing")

    def test_gap_too(self, harness):
        self.gap("there is no such thing")
        self.gap("not tried: no means")

    def test_skipped(self, harness):
        pytest.skip("not here")


@pytest.fixture(scope="session")
def harness():
    harness = Harness()
    harness.backend = "parallel"
    return harness


class TestIt(SomeTheme): ...


def test_of_no_theme(): ...
'''
SUITE = version("rdzv-plugins")
COUNTS = """\
  theme         passed  failed    gaps skipped
  scale              3       3       2       1
"""


def run_suite(directory: Path, tests: str, *arguments: str) -> tuple[int, str, Any]:
    """Exit code, output, and the report if there is one."""
    (directory / "test_it.py").write_text(tests)
    command = [sys.executable, "-m", "pytest", "-c", "/dev/null", "--rootdir=.", "-p", "no:cacheprovider"]
    command += ["-p", "rdzv_plugins.testing.plugin", "--conformance-json=report.json", *arguments, "test_it.py"]
    code, text = run(command, environment(PYTEST_DISABLE_PLUGIN_AUTOLOAD="1"), directory)
    report = directory / "report.json"
    return code, text, json.loads(report.read_text()) if report.exists() and report.stat().st_size else None


@pytest.mark.parametrize("processes", [[], ["-p", "xdist", "-n1"]], ids=["one process", "xdist"])
def test_table_and_json_of_a_run(tmp_path: Path, processes: list[str]) -> None:
    code, text, data = run_suite(tmp_path, TESTS, *processes)
    assert code == 1, text
    assert re.search(r"conformance of parallel \(rdzv-plugins .*elastic.*\)\n" + COUNTS, text)
    for line in (
        "    FAILED  A promise in words: test_that_fails\n            the second is not three\n",
        "    FAILED  that cannot begin: test_that_cannot_begin\n            at its setup: OSError: no room",
        "    skipped skipped: Skipped: not here\n",
        "    gap     2 tests: there is no such thing\n",
        "    gap     gap too: not tried: no means\n",
        "  verdict: does not conform: 3 promises are broken\n",
    ):
        assert line in text
    assert re.search(r"2 failed, 4 passed, 1 skipped, (1 error, 2 gaps|2 gaps, 1 error) in ", text), text
    (backend,) = data["backends"]
    facts = [data["suite"], *(backend[name] for name in ("verdict", "backend", "distribution"))]
    assert facts == [SUITE, "does not conform: 3 promises are broken", "parallel", "rdzv-plugins"]
    assert {"elastic", "token"} < {*backend["capabilities"]}
    tests = backend["themes"].pop("scale")
    assert backend["themes"] == {}
    assert {name: test["outcome"] for name, test in tests.items()} == {
        **dict.fromkeys(("test_that_passes", "test_of_several[1]", "test_of_several[2]"), "passed"),
        **dict.fromkeys(("test_that_fails", "test_that_says_nothing", "test_that_cannot_begin"), "failed"),
        **dict.fromkeys(("test_gap", "test_gap_too"), "gap"),
        "test_skipped": "skipped",
    }
    assert tests["test_gap_too"]["gaps"] == ["there is no such thing", "not tried: no means"]
    for words in ("again > last", "is not true", "7 > 7", "test_it.py, line "):
        assert words in tests["test_that_says_nothing"]["message"]
    assert tests["test_of_several[1]"]["promise"] == "Each of them passes"


def test_themes_may_be_chosen_and_other_tests_stay(tmp_path: Path) -> None:
    code, text, data = run_suite(tmp_path, TESTS, "--conformance-themes=plugin,store", "-v")
    assert code == 0, text
    assert "test_of_no_theme PASSED" in text
    assert "9 deselected" in text
    assert data == {"suite": SUITE, "ended": "", "backends": []}
    code, text, _ = run_suite(tmp_path, TESTS, "--conformance-themes=plugin,shop")
    assert code == 4
    assert "unknown theme 'shop'; themes: plugin, backend," in text


@pytest.mark.parametrize(
    ("tests", "code"),
    [("raise OSError('this file is broken')", 2), ("from rdzv_plugins.testing import *", 5)],  # themes are no tests
)
def test_file_without_tests_of_its_own_is_told_as_ever(tmp_path: Path, tests: str, code: int) -> None:
    found, text, _ = run_suite(tmp_path, tests)
    assert found == code, text
    assert "INTERNALERROR" not in text


def test_file_that_cannot_be_written_is_said_before_any_test_runs_or_after_the_table(tmp_path: Path) -> None:
    code, text, _ = run_suite(tmp_path, TESTS, "--conformance-json=not/there.json")
    assert code == 4, text
    assert "test_it.py" not in text
    tests = TESTS + "\ndef test_last():\n    import os\n    os.rename('to', 'elsewhere')\n"
    (tmp_path / "to").mkdir()
    code, text, _ = run_suite(tmp_path, tests, "--conformance-json=to/report.json")
    assert code == 4, text
    table, _, end = text.partition(COUNTS)
    assert table
    assert "cannot write to/report.json" in end


def test_tests_of_one_name_are_told_apart_by_class_or_file_and_themes_come_in_their_order() -> None:
    results = SuiteResults()
    for theme, where in (
        ("of a stranger", "it.py::TestIt"),
        ("scale", "one.py::TestIt"),
        ("scale", "two.py::TestIt"),
        ("store", "it.py::TestTls"),
        ("store", "it.py::TestPlain"),
    ):
        test = results.test("nobody-has-it", theme, f"{where}::test_x", "test_x", "a promise")
        assert results.test("nobody-has-it", theme, f"{where}::test_x", "test_x", "a promise") is test
    test.add("failed", 1.0, "word " * 200)
    assert [(theme, [*tests]) for theme, tests in as_data(results)["backends"][0]["themes"].items()] == [
        ("store", ["TestTls::test_x", "TestPlain::test_x"]),
        ("scale", ["one.py::TestIt::test_x", "two.py::TestIt::test_x"]),
        ("of a stranger", ["test_x"]),
    ]
    first, *lines = as_lines(results)
    assert "nobody-has-it (unknown distribution" in first
    assert any(line.endswith(" word ...") and len(line) < 500 for line in lines)
