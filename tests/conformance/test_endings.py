"""The suite comes to its end whatever a backend does, and says the cause before what follows from it."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from kits.conformance.toy_kit import CONFORMANCE, TIMEOUT_S, check, environment, install
from kits.eventually import eventually

pytestmark = pytest.mark.thorough

MANY = 20
COORDINATION = "CoordinationHarness"
SERVED = "ServedHarness"
"""With a server beside it, whose pid is in the file ``server``."""
GUARD = "test_a_guard_that_has_changed_stops_the_whole_put"
LISTED = "test_keys_are_listed_by_prefix_in_the_order_of_their_last_changes"
THREE = "guard_that or keys_are_listed or created_once"
TWO = "keys_are_listed or created_once"


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


def test_create_that_returns_a_dict(tmp_path: Path) -> None:
    checked = check(tmp_path, "create-returns-dict", "")
    assert checked.exit_code == 1, checked.text
    said = re.escape("create() returned a dict, which has the methods of no contract")
    assert len(re.findall(f"^ +{said}", checked.text, re.MULTILINE)) == 2, (
        checked.text
    )  # when it came, and in the table
    outcomes = {**checked.outcomes}
    assert outcomes.pop("plugin")["passed"] > 10
    assert outcomes["backend"]["failed"] == sum(counts["failed"] for counts in outcomes.values()) == 1
    assert {each for counts in outcomes.values() for each in +counts} == {"failed", "untried"}


def test_create_that_returns_a_dict_at_an_endpoint(tmp_path: Path) -> None:
    checked = check(tmp_path, "create-returns-dict", "backend", more=(f"--rdzv-endpoint={tmp_path}",))
    assert checked.exit_code == 69, checked.text
    assert "create() returned a dict" in checked.text
    assert "Traceback" not in checked.text


def test_test_over_its_limit_is_named_and_the_next_one_is_tried(tmp_path: Path) -> None:
    limit = ("--timeout=12",)
    checked = check(tmp_path, "coordination-put-hangs", "backend", harness=COORDINATION, k=THREE, more=limit)
    assert checked.exit_code == 1, checked.text
    assert checked.outcomes["backend"] == {"passed": 1, "failed": 2}
    for name in (GUARD, LISTED):
        message = checked.tests[name]["message"]
        assert message.startswith("it is over its limit of 12 s, in put() of coordination_toys.py, line "), message


def test_test_that_cannot_be_interrupted_ends_the_run_and_shows_where_it_stands(tmp_path: Path) -> None:
    checked = check(tmp_path, "coordination-deaf", "backend", harness=SERVED, k=TWO, more=("--timeout=12",))
    assert checked.exit_code == 1, checked.text
    assert checked.outcomes["backend"] == {"passed": 1, "failed": 1}
    assert "it is over its limit of 12 s" in checked.tests[LISTED]["message"]
    assert LISTED in checked.ended
    assert "coordination_toys.py" in checked.text
    assert not server(tmp_path).exists()


@pytest.mark.parametrize("how", ["SIGSEGV", "SIGKILL"])
def test_signal_of_the_process_of_the_tests_is_named(tmp_path: Path, how: str) -> None:
    dies = {"TOY_DIES": how}
    checked = check(tmp_path, "coordination-dies", "backend", harness=SERVED, k=THREE, variables=dies)
    assert checked.exit_code == 1, checked.text
    assert checked.outcomes["backend"] == {"passed": 1, "failed": 1}
    assert how in checked.tests[LISTED]["message"]
    assert not server(tmp_path).exists()


def server(directory: Path) -> Path:
    return Path("/proc", (directory / "server").read_text())


def stopped(directory: Path, toy: str, k: str, harness: str, number: int, when: Callable[[Path], object]) -> str:
    """The output of a run that gets a signal once ``when`` is true of its output so far."""
    output = directory / "output"
    env = environment(install(directory, toy, harness), PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
    command = [*CONFORMANCE, toy, "--theme=backend", "--json=report.json", "-k", k]
    with output.open("wb") as file:
        process = subprocess.Popen(
            command, env=env, cwd=directory, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT
        )
    with process:
        try:
            eventually(lambda: process.poll() is not None or when(output), output.read_text)
            process.send_signal(number)
            code = process.wait(TIMEOUT_S)
        finally:
            process.kill()
    assert code == 128 + number, output.read_text()
    return output.read_text()


@pytest.mark.parametrize(
    ("toy", "number"),
    [("put-hangs", signal.SIGINT), ("deaf", signal.SIGINT), ("put-hangs", signal.SIGTERM)],
)
def test_signal_ends_it_with_what_is_known(tmp_path: Path, toy: str, number: int) -> None:
    one = "passed .* test_a_key_is_created_once"  # results come as they come
    text = stopped(
        tmp_path, f"coordination-{toy}", TWO, SERVED, number, lambda output: re.search(one, output.read_text())
    )
    assert "  backend            1       0       0\n" in text, text
    assert "  verdict: not known: the run has ended early" in text
    assert json.loads((tmp_path / "report.json").read_text())["ended"].startswith("interrupted")
    assert not server(tmp_path).exists()


def test_ctrl_c_while_a_test_is_set_up(tmp_path: Path) -> None:
    """pytest's own tmp_path has an error at the end of a run then, which is none of the user's."""
    hangs = tmp_path / "hangs"
    text = stopped(tmp_path, "state-right", "token", "HangingHarness", signal.SIGINT, lambda _: hangs.exists())
    assert "internal error" not in text
    assert re.search(r"^\d+ deselected in ", text, re.MULTILINE), text  # pytest comes to its end


@pytest.mark.parametrize(("flag", "failed"), [("-x", 1), ("--maxfail=2", 2)])
def test_it_can_be_ended_at_a_failure(tmp_path: Path, flag: str, failed: int) -> None:
    checked = check(tmp_path, "coordination-ignores-guard", "backend", harness=COORDINATION, k="guard", more=(flag,))
    assert checked.exit_code == 1, checked.text
    assert checked.outcomes["backend"] == {"failed": failed}
    assert f"ended early: stopping after {failed} failures; {3 - failed} test" in checked.text


def test_counts_agree(tmp_path: Path) -> None:
    checked = check(tmp_path, "state-right", "backend", k="token or guard")
    assert checked.exit_code == 0, checked.text
    passed, gaps = checked.outcomes["backend"]["passed"], checked.outcomes["backend"]["gap"]
    assert f"  backend     {passed:>8}{0:>8}{gaps:>8}\n" in checked.text
    assert re.search(rf"^{passed} passed, \d+ deselected, {gaps} gaps in ", checked.text, re.MULTILINE), checked.text
    assert "  verdict: conforms in what was tried: backend" in checked.text
