"""The suite comes to its end whatever a backend does, and says the cause before what follows from it."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from kits.conformance.toy_kit import CONFORMANCE, NONE, TIMEOUT_S, check, environment, install
from kits.eventually import eventually

pytestmark = pytest.mark.thorough

MANY = 20
GUARD = "test_a_guard_that_has_changed_stops_the_whole_put"
LISTED = "test_keys_are_listed_by_prefix_in_the_order_of_their_last_changes"
THREE = ("--theme=backend", "--json=report.json", "-k", "guard_that or keys_are_listed or created_once")
TWO = (*THREE[:-1], "keys_are_listed or created_once")


@pytest.mark.parametrize(
    ("toy", "test", "fault", "saying"),
    [
        ("put-hangs", "test_each_call_is_answered_soon", "it hangs", r"put\(\) has not returned within 15 s"),
        ("is-slow", "test_each_call_is_answered_soon", "it is slow", r"create\(\) takes [2-9][\d.]* s"),
        ("drops-events", "test_a_watcher_hears_what_others_do", "it loses events", "has not told all within 15 s"),
        ("reads-stale", "test_what_one_writes_others_read", "it reads what is stale", "was written, and then read"),
        ("state", "test_what_one_writes_others_read", "it reads what is stale", "was written, and then read"),
    ],
)
def test_what_builds_on_what_is_broken_is_not_tried(tmp_path: Path, toy, test, fault, saying) -> None:
    """One test failed, with that fault; all that builds on it was not tried, and that is what the report says."""
    name, harness = (
        ("state-reads-stale", "DirectoryHarness") if toy == "state" else (f"coordination-{toy}", COORDINATION)
    )
    patience = {"RDZV_CONFORMANCE_PATIENCE": "15"} if toy != "is-slow" else {}
    checked = check(tmp_path, name, "backend", harness=harness, variables=patience)
    checked.must_fail(test)
    assert re.search(saying, checked.tests[test]["message"])
    untried = checked.names("untried")
    assert len(untried) > MANY, checked.text
    reasons = {checked.tests[name]["message"] for name in untried}
    assert reasons == {f"not tried: it builds on {checked.tests[test]['promise']!r}, which is broken ({fault})"}
    assert re.search(rf"^  verdict: does not conform: {fault}; {len(untried)} ", checked.text, re.MULTILINE), (
        checked.text
    )
    assert checked.text.count("FAILED ") == 2  # when it came, and in the table


COORDINATION = "CoordinationHarness"
SERVED = "ServedHarness"
"""With a server beside it, whose pid is in the file ``server``."""


def test_create_that_returns_a_dict(tmp_path: Path) -> None:
    ended = conformance(tmp_path, "create-returns-dict", "--json=report.json", harness="DirectoryHarness")
    assert ended.code == 1, ended.text
    said = re.escape("create() returned a dict, which has the methods of no contract")
    assert len(re.findall(f"^ +{said}", ended.text, re.MULTILINE)) == 2, ended.text  # when it came, and in the table
    outcomes = {theme: ended.outcomes(theme) for theme in ended.data["backends"][0]["themes"]}
    assert outcomes.pop("plugin")["passed"] > 10
    assert outcomes["backend"]["failed"] == sum(counts.get("failed", 0) for counts in outcomes.values()) == 1
    assert set().union(*outcomes.values()) == {"failed", "untried"}


def test_create_that_returns_a_dict_at_an_endpoint(tmp_path: Path) -> None:
    arguments = f"--rdzv-endpoint={tmp_path}", "--theme=backend"
    ended = conformance(tmp_path, "create-returns-dict", *arguments, harness="DirectoryHarness")
    assert ended.code == 69, ended.text
    assert "create() returned a dict" in ended.text
    assert "Traceback" not in ended.text


def test_test_over_its_limit_is_named_and_the_next_one_is_tried(tmp_path: Path) -> None:
    ended = conformance(tmp_path, "coordination-put-hangs", "--timeout=12", *THREE)
    assert ended.code == 1, ended.text
    assert ended.outcomes() == {"passed": 1, "failed": 2}
    for name in (GUARD, LISTED):
        message = ended.tests()[name]["message"]
        assert message.startswith("it is over its limit of 12 s, in put() of coordination_toys.py, line "), message


def test_test_that_cannot_be_interrupted_ends_the_run_and_shows_where_it_stands(tmp_path: Path) -> None:
    ended = conformance(tmp_path, "coordination-deaf", "--timeout=12", *TWO, harness=SERVED)
    assert ended.code == 1, ended.text
    assert "coordination_toys.py" in ended.text
    eventually(lambda: not server(tmp_path).exists(), lambda: "the server outlives the tests")


def test_ctrl_c_ends_it_with_what_is_known(tmp_path: Path) -> None:
    process, output = started(tmp_path, "coordination-put-hangs", *TWO, harness=SERVED)
    with process:
        try:
            wait_for(process, output, "passed .* test_a_key_is_created_once")  # results come as they come
            process.send_signal(signal.SIGINT)
            code = process.wait(TIMEOUT_S)
        finally:
            process.kill()
    text = output.read_text()
    assert code == 130, text
    assert "  backend            1       0       0\n" in text, text
    assert "  verdict: not known: the run has ended early" in text
    assert json.loads((tmp_path / "report.json").read_text())["ended"].startswith("interrupted")
    eventually(lambda: not server(tmp_path).exists(), lambda: "the server outlives the tests")


def server(directory: Path) -> Path:
    return Path("/proc", (directory / "server").read_text())


def test_ctrl_c_while_a_test_is_set_up(tmp_path: Path) -> None:
    """pytest's own tmp_path has an error at the end of a run then, which is none of the user's."""
    process, output = started(tmp_path, "state-right", "--theme=backend", "-k", "token", harness="HangingHarness")
    with process:
        try:
            eventually((tmp_path / "hangs").exists, output.read_text)
            process.send_signal(signal.SIGINT)
            code = process.wait(TIMEOUT_S)
        finally:
            process.kill()
    text = output.read_text()
    assert code == 130, text
    assert "internal error" not in text
    assert re.search(r"^\d+ deselected in ", text, re.MULTILINE), text  # pytest comes to its end


@pytest.mark.parametrize(("flag", "failed"), [("-x", 1), ("--maxfail=2", 2)])
def test_it_can_be_ended_at_a_failure(tmp_path: Path, flag: str, failed: int) -> None:
    ended = conformance(tmp_path, "coordination-ignores-guard", flag, *THREE[:-1], "guard")
    assert ended.code == 1, ended.text
    assert ended.outcomes() == {"failed": failed}
    assert f"ended early: stopping after {failed} failures; {3 - failed} test" in ended.text


def test_counts_agree(tmp_path: Path) -> None:
    ended = conformance(tmp_path, "state-right", *THREE[:-1], "token or guard", harness="DirectoryHarness")
    assert ended.code == 0, ended.text
    passed, gaps = ended.outcomes()["passed"], ended.outcomes()["gap"]
    assert f"  backend     {passed:>8}{0:>8}{gaps:>8}\n" in ended.text
    assert re.search(rf"^{passed} passed, \d+ deselected, {gaps} gaps in ", ended.text, re.MULTILINE), ended.text
    assert "  verdict: conforms in what was tried: backend" in ended.text


class Ended:
    """Exit code, output and report."""

    def __init__(self, code: int, output: Path, report: Path) -> None:
        self.code, self.text = code, output.read_text()
        self.data: dict[str, Any] = json.loads(report.read_text()) if report.exists() else {}

    def tests(self, theme: str = "backend") -> dict[str, Any]:
        return self.data["backends"][0]["themes"][theme]

    def outcomes(self, theme: str = "backend") -> dict[str, int]:
        found = [test["outcome"] for test in self.tests(theme).values()]
        return {outcome: found.count(outcome) for outcome in dict.fromkeys(found)}


def started(
    directory: Path, toy: str, *arguments: str, harness: str = COORDINATION, variables: Mapping[str, str] = NONE
) -> tuple[subprocess.Popen[bytes], Path]:
    site = install(directory, toy, harness).rename(directory / "site-packages")
    output = directory / "output"
    env = environment(site, PYTEST_DISABLE_PLUGIN_AUTOLOAD="1", **variables)
    with output.open("wb") as file:
        process = subprocess.Popen(
            [*CONFORMANCE, toy, *arguments],
            env=env,
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    return process, output


def conformance(directory: Path, toy: str, *arguments: str, **more: Any) -> Ended:
    process, output = started(directory, toy, *arguments, **more)
    with process:
        try:
            code = process.wait(TIMEOUT_S)
        finally:
            process.kill()
    return Ended(code, output, directory / "report.json")


def wait_for(process: subprocess.Popen[bytes], output: Path, pattern: str) -> None:
    eventually(lambda: process.poll() is not None or re.search(pattern, output.read_text()), output.read_text)
    assert process.poll() is None, output.read_text()
