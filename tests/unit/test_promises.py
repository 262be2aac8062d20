"""tests/PROMISES.md, the ledger of what is proved where: it has no gap and no dead name."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from kits import ROOT

LEDGER = (ROOT / "tests/PROMISES.md").read_text()
TO_COME = {
    "test_a_node_that_finds_itself_broken_is_left_out",
}
"""Scenarios that the ledger names and nobody has written yet."""
STORIES = re.compile(r"simulation/test_(?:scenarios|agent|static_scenarios)\w*\.py::(\w+)")
LIST = """
import sys, pytest
class Listing:
    def pytest_collection_finish(self, session):
        for item in session.items:
            print("\\nTEST", item.get_closest_marker("thorough") is None, item.nodeid)
sys.exit(pytest.main(["--collect-only", "-q", "-n0", "-p", "no:cacheprovider", *sys.argv[1:]], plugins=[Listing()]))
"""


def table(ledger: str) -> list[list[str]]:
    """The rows, each with its promise, scenarios, tests of the gate, and further tests."""
    lines = [line[1:-1].split("|") for line in ledger.splitlines() if re.match(r"\| (?!promise )", line)]
    return [[cell.strip() for cell in cells] for cells in lines]


def names(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def written(name: str) -> bool:
    """Whether there is such a test, as far as texts show: those of the conformance suite are inherited."""
    file, _, test = name.partition("::")
    places = [ROOT / "tests" / file]
    if not places[0].is_file():
        return False
    if file.startswith("conformance/"):
        places += (ROOT / "src/rdzv_plugins/testing").rglob("*.py")
    function = test.rpartition("::")[2].partition("[")[0]
    return not test or any(f"def {function}(" in each.read_text() for each in places)


def wrong(ledger: str, tests: dict[str, bool], to_come: set[str]) -> list[str]:
    """What is wrong with a ledger. ``tests``: name, with and without parameters, or file -> is any of it in the gate.

    Further tests that are not among them are looked for in the text of their file.
    """
    scenarios = {name.rpartition("::")[2]: gate for name, gate in tests.items() if name.startswith("simulation/")}
    rows = [(row[0], *map(names, row[1:])) for row in table(ledger)]
    told = {story for _, stories, *_ in rows for story in stories}
    coming = told - scenarios.keys()
    found = [f"a gap: {row[0]}" for row in table(ledger) if not row[1] or not names(row[2])]
    found += [f"not in the gate: {name}" for name in told - coming if not scenarios[name]]
    found += [f"not in the gate: {name}" for *_, gate, _ in rows for name in gate if not tests.get(name)]
    found += [f"no such test: {each}" for *_, more in rows for each in more if each not in tests and not written(each)]
    found += [f"no such scenario, or no longer to come: {name}" for name in coming ^ to_come]
    stories = {match[1] for name in tests if (match := STORIES.fullmatch(name))}
    return found + [f"without a promise: {name}" for name in stories - told]


@pytest.fixture(scope="module")
def tests(request: pytest.FixtureRequest) -> dict[str, bool]:
    """Of the simulation and of the files of which the ledger names tests of the gate, as pytest collects them.

    A run of all tests has them at hand; collecting them once more would take as long as forty other tests.
    """
    files = {f"tests/{name.partition('::')[0]}" for _, _, gate, _ in table(LEDGER) for name in names(gate)}
    assert [file for file in files if not (ROOT / file).is_file()] == [], "dead names"
    here = [(item.get_closest_marker("thorough") is None, item.nodeid) for item in request.session.items]
    if files - {test.partition("::")[0] for _, test in here}:
        listing = [sys.executable, "-c", LIST, "tests/simulation", *sorted(files)]
        done = subprocess.run(listing, cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr
        listed = re.findall(r"^TEST (True|False) (.*)$", done.stdout, re.MULTILINE)
        here = [(gate == "True", test) for gate, test in listed]
    found: dict[str, bool] = {}
    for gate, node in here:
        test = node.removeprefix("tests/")
        for name in (test, test.partition("[")[0], test.partition("::")[0]):
            found[name] = found.get(name, False) or gate
    return found


def test_the_ledger_is_whole(tests: dict[str, bool]) -> None:
    assert wrong(LEDGER, tests, TO_COME) == []


def test_each_invariant_is_a_promise() -> None:
    promises = " ".join(promise for promise, *_ in table(LEDGER))
    assert {f"I{number}" for number in range(1, 14)} <= set(re.findall(r"\bI\d+\b", promises))
