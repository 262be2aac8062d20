"""The suite comes to its end whatever a backend does, and says the cause before what follows from it."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from kits.conformance.toy_kit import CONFORMANCE, NONE, TIMEOUT_S, Checked, check, environment, install

QUICK = {"RDZV_CONFORMANCE_PATIENCE": "15"}
coordination = partial(check, theme="backend", harness="CoordinationHarness", variables=QUICK)
MANY = 20


def broken(checked: Checked, test: str, fault: str, saying: str) -> None:
    """One test failed, with that fault; all that builds on it was not tried, and that is what the report says."""
    checked.must_fail(test, saying=saying)
    untried = checked.names("untried")
    assert len(untried) > MANY, checked.text
    reasons = {checked.tests[name]["message"] for name in untried}
    assert reasons == {f"not tried: it builds on {checked.tests[test]['promise']!r}, which is broken ({fault})"}
    verdict = f"  verdict: does not conform: {fault}; {len(untried)} tests that build on that were not tried"
    assert verdict in checked.text.splitlines()
    assert re.search(rf"^1 failed, .*{len(untried)} not tried in ", checked.text, re.MULTILINE), checked.text
    assert checked.text.count("FAILED ") == 2  # when it came, and in the table


def test_call_that_hangs(tmp_path: Path) -> None:
    checked = coordination(tmp_path, "coordination_put_hangs")
    broken(checked, "test_each_call_is_answered_soon", "it hangs", "put() has not returned within 15 s")


def test_answers_that_take_two_seconds(tmp_path: Path) -> None:
    checked = coordination(tmp_path, "coordination_is_slow", variables={})
    broken(checked, "test_each_call_is_answered_soon", "it is slow", "create() takes ")
    message = checked.tests["test_each_call_is_answered_soon"]["message"]
    assert float(re.findall(r"create\(\) takes ([\d.]+) s", message)[0]) >= 2


def test_events_that_are_dropped(tmp_path: Path) -> None:
    checked = coordination(tmp_path, "coordination_drops_events")
    broken(checked, "test_a_watcher_hears_what_others_do", "it loses events", "has not told all within 15 s")


def test_reads_that_are_stale(tmp_path: Path) -> None:
    checked = coordination(tmp_path, "coordination_reads_stale")
    broken(checked, "test_what_one_writes_others_read", "it reads what is stale", "was written, and then read")


def test_state_that_is_stale(tmp_path: Path) -> None:
    checked = check(tmp_path, "state_reads_stale", "backend", variables=QUICK)
    broken(checked, "test_what_one_writes_others_read", "it reads what is stale", "was written, and then read")


def test_create_that_returns_a_dict(tmp_path: Path) -> None:
    code, text, data = conformance(tmp_path, "create_returns_dict", "--json=report.json", harness="DirectoryHarness")
    assert code == 1, text
    said = re.escape("create() returned a dict, which has the methods of no contract")
    assert len(re.findall(f"^ +{said}", text, re.MULTILINE)) == 2, text  # when it came, and in the table
    outcomes = {theme: outcomes_of(tests) for theme, tests in data["backends"][0]["themes"].items()}
    assert outcomes["backend"]["failed"] == 1
    assert [
        theme for theme, counts in outcomes.items() if theme != "plugin" and counts.keys() - {"failed", "untried"}
    ] == []
    assert sum(counts.get("failed", 0) for counts in outcomes.values()) == 1
    assert outcomes["plugin"]["passed"] > 10


def test_create_that_returns_a_dict_at_an_endpoint(tmp_path: Path) -> None:
    arguments = f"--rdzv-endpoint={tmp_path}", "--theme=backend"
    code, text, _ = conformance(tmp_path, "create_returns_dict", *arguments, harness="DirectoryHarness")
    assert code == 69, text
    assert "create() returned a dict, which has the methods of no contract" in text
    assert "Traceback" not in text
    assert "AttributeError" not in text


def test_test_over_its_limit_is_named_and_the_next_one_is_tried(tmp_path: Path) -> None:
    limit = (
        "--timeout=12",
        "--theme=backend",
        "--json=report.json",
        "-k",
        "guard_that or keys_are_listed or created_once",
    )
    code, text, data = conformance(tmp_path, "coordination_put_hangs", *limit)
    assert code == 1, text
    tests = data["backends"][0]["themes"]["backend"]
    assert outcomes_of(tests) == {"passed": 1, "failed": 2}
    for name in ("test_a_guard_that_has_changed_stops_the_whole_put", "test_keys_are_listed_by_prefix"):
        (message,) = [test["message"] for each, test in tests.items() if each.startswith(name)]
        assert message.startswith("it is over its limit of 12 s, in put() of coordination_put_hangs.py, line "), message


def test_test_that_cannot_be_interrupted_ends_the_run(tmp_path: Path) -> None:
    arguments = "--timeout=12", "--theme=backend", "--json=report.json", "-k", "keys_are or created_once"
    code, text, data = conformance(tmp_path, "coordination_deaf", *arguments)
    assert code == 1, text
    tests = data["backends"][0]["themes"]["backend"]
    assert outcomes_of(tests) == {"passed": 1, "failed": 1}
    hanging = "test_keys_are_listed_by_prefix_in_the_order_of_their_last_changes"
    assert "it is over its limit of 12 s and cannot be interrupted" in tests[hanging]["message"]
    assert "coordination_deaf.py" in text  # where it stands
    assert data["ended"] == f"{hanging} cannot be interrupted"
    assert f"ended early: {hanging} cannot be interrupted; 1 test was not run" in text


@pytest.mark.parametrize("toy", ["coordination_put_hangs", "coordination_deaf"])
def test_ctrl_c_ends_it_at_once_with_what_is_known(tmp_path: Path, toy: str) -> None:
    select = "created_once or keys_are_listed"
    process, output = started(tmp_path, toy, "--theme=backend", "--json=report.json", "-k", select)
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
    data = json.loads((tmp_path / "report.json").read_text())
    assert data["ended"].startswith("interrupted")
    assert outcomes_of(data["backends"][0]["themes"]["backend"])["passed"] == 1


@pytest.mark.parametrize("how", ["SIGSEGV", "SIGKILL", "exit"])
def test_backend_that_ends_the_process_of_the_tests(tmp_path: Path, how: str) -> None:
    """There is a table, the server of the harness is gone, and the test that ran is named."""
    arguments = "--theme=backend", "--json=report.json", "-k", "guard_that or keys_are_listed or created_once"
    code, text, data = conformance(
        tmp_path, "coordination_dies", *arguments, harness="ServedHarness", variables={"TOY_DIES": how}
    )
    assert code == 1, text
    tests = data["backends"][0]["themes"]["backend"]
    assert outcomes_of(tests) == {"passed": 1, "failed": 1}
    dying = "test_keys_are_listed_by_prefix_in_the_order_of_their_last_changes"
    assert (how if how != "exit" else "exit code 0") in tests[dying]["message"]
    assert dying in data["ended"]
    assert "  backend            1       1       0\n" in text, text
    assert "1 test was not run" in text
    assert wait_for_end(int((tmp_path / "server").read_text())), "the server outlives the tests"


def test_sigterm_ends_all_of_it(tmp_path: Path) -> None:
    process, output = started(tmp_path, "coordination_put_hangs", "--theme=backend", harness="ServedHarness")
    with process:
        try:
            wait_for(process, output, "passed .* test_a_key_is_created_once|passed  ")
            process.terminate()
            code = process.wait(TIMEOUT_S)
        finally:
            process.kill()
    assert code == 128 + signal.SIGTERM
    assert "  verdict: not known: the run has ended early" in output.read_text()
    assert wait_for_end(int((tmp_path / "server").read_text())), "the server outlives the tests"


def wait_for_end(pid: int) -> bool:
    deadline = time.monotonic() + TIMEOUT_S
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    return not Path(f"/proc/{pid}").exists()


def test_ctrl_c_while_a_test_is_set_up(tmp_path: Path) -> None:
    """pytest's own tmp_path has an error at the end of a run then, which is none of the user's."""
    process, output = started(tmp_path, "state_right", "--theme=backend", "-k", "token", harness="HangingHarness")
    with process:
        try:
            eventually((tmp_path / "hangs").exists, process, output)
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
    arguments = flag, "--theme=backend", "--json=report.json", "-k", "guard"
    code, text, data = conformance(tmp_path, "coordination_ignores_guard", *arguments)
    assert code == 1, text
    tests = data["backends"][0]["themes"]["backend"]
    assert outcomes_of(tests) == {"failed": failed}
    assert f"ended early: stopping after {failed} failures; {3 - failed} test" in text


def test_counts_agree(tmp_path: Path) -> None:
    code, text, data = conformance(
        tmp_path,
        "state_right",
        "--theme=backend",
        "--json=report.json",
        "-k",
        "token or guard",
        harness="DirectoryHarness",
    )
    assert code == 0, text
    counts = outcomes_of(data["backends"][0]["themes"]["backend"])
    passed, gaps = counts["passed"], counts["gap"]
    assert f"  backend     {passed:>8}{0:>8}{gaps:>8}\n" in text
    assert re.search(rf"^{passed} passed, \d+ deselected, {gaps} gaps in ", text, re.MULTILINE), text
    assert "  verdict: conforms in what was tried: backend" in text


def outcomes_of(tests: dict[str, Any]) -> dict[str, int]:
    found = [test["outcome"] for test in tests.values()]
    return {outcome: found.count(outcome) for outcome in dict.fromkeys(found)}


def started(
    directory: Path,
    toy: str,
    *arguments: str,
    harness: str = "CoordinationHarness",
    variables: Mapping[str, str] = NONE,
) -> tuple[subprocess.Popen[bytes], Path]:
    site = install(directory, toy, harness).rename(directory / "site-packages")
    output = directory / "output"
    command = [*CONFORMANCE, toy.replace("_", "-"), *arguments]
    env = environment(site, PYTEST_DISABLE_PLUGIN_AUTOLOAD="1", **variables)
    with output.open("wb") as file:
        process = subprocess.Popen(
            command, env=env, cwd=directory, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT
        )
    return process, output


def conformance(
    directory: Path,
    toy: str,
    *arguments: str,
    harness: str = "CoordinationHarness",
    variables: Mapping[str, str] = NONE,
) -> tuple[int, str, dict[str, Any]]:
    """Exit code, output and report."""
    process, output = started(directory, toy, *arguments, harness=harness, variables=variables)
    with process:
        try:
            code = process.wait(TIMEOUT_S)
        finally:
            process.kill()
    report = directory / "report.json"
    return code, output.read_text(), json.loads(report.read_text()) if report.exists() else {}


def wait_for(process: subprocess.Popen[bytes], output: Path, pattern: str) -> None:
    eventually(lambda: re.search(pattern, output.read_text()), process, output)


def eventually(happened: Callable[[], object], process: subprocess.Popen[bytes], output: Path) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not happened():
        assert process.poll() is None, output.read_text()
        assert time.monotonic() < deadline, output.read_text()
        time.sleep(0.05)
