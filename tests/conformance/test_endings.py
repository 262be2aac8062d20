"""The suite comes to its end whatever a backend does, and says what it knows."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from pathlib import Path

import pytest
from kits.conformance.toy_kit import CONFORMANCE, TIMEOUT_S, check, environment, install
from kits.eventually import eventually

thorough = pytest.mark.thorough

SERVED = "ServedHarness"
"""With a server beside it, whose pid is in the file ``server``."""
GUARD = "test_a_guard_that_has_changed_stops_the_whole_put"
LISTED = "test_keys_are_listed_by_prefix_in_the_order_of_their_last_changes"
TWO = "keys_are_listed or created_once"
LIMIT = ("--timeout=12",)


def server(directory: Path) -> Path:
    return Path("/proc", (directory / "server").read_text())


@pytest.mark.parametrize(
    ("toy", "how", "said"),
    [
        ("coordination-dies", "exit", "exit code 0"),
        pytest.param("coordination-dies", "SIGSEGV", "SIGSEGV", marks=thorough),
        pytest.param("coordination-deaf", "", "exceeded its limit of 12 s", marks=thorough),
    ],
)
def test_backend_that_ends_the_process_of_the_tests(tmp_path: Path, toy: str, how: str, said: str) -> None:
    """Or blocks it for ever. There is a table, the test that ran is named, and the server of the harness is gone."""
    checked = check(tmp_path, toy, "backend", harness=SERVED, k=TWO, variables={"TOY_DIES": how}, more=LIMIT)
    assert checked.exit_code == 1, checked.text
    assert checked.outcomes["backend"] == {"passed": 1, "failed": 1}
    assert said in checked.tests[LISTED]["message"]
    assert LISTED in checked.ended
    assert "  backend            1       1       0\n" in checked.text, checked.text
    assert how == "exit" or "coordination_toys.py" in checked.text, "its threads are shown"
    assert not server(tmp_path).exists()


@thorough
def test_test_over_its_limit_is_named_and_the_next_one_is_tried(tmp_path: Path) -> None:
    checked = check(tmp_path, "coordination-put-hangs", "backend", k=f"guard_that or {TWO}", more=LIMIT)
    assert checked.exit_code == 1, checked.text
    assert checked.outcomes["backend"] == {"passed": 1, "failed": 2}
    for name in (GUARD, LISTED):
        message = checked.tests[name]["message"]
        assert message.startswith("exceeded its limit of 12 s, in put() of coordination_toys.py, line "), message


@thorough
@pytest.mark.parametrize(
    ("toy", "harness", "k", "number"),
    [
        ("coordination-put-hangs", SERVED, TWO, signal.SIGINT),
        ("coordination-deaf", SERVED, TWO, signal.SIGINT),
        ("coordination-put-hangs", SERVED, TWO, signal.SIGTERM),
        ("state-right", "HangingHarness", "token", signal.SIGINT),  # while a test is set up
    ],
)
def test_signal_ends_it_with_what_is_known(tmp_path: Path, toy: str, harness: str, k: str, number: int) -> None:
    output, hangs = tmp_path / "output", tmp_path / "hangs"
    env = environment(install(tmp_path, toy, harness), PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
    command = [*CONFORMANCE, toy, "--theme=backend", "--json=report.json", "-k", k]

    def under_way() -> bool:
        one = re.search("passed .* test_a_key_is_created_once", output.read_text())  # results come as they come
        return process.poll() is not None or bool(one) or hangs.exists()

    with output.open("wb") as file:
        process = subprocess.Popen(command, env=env, cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=file, stderr=file)
    with process:
        try:
            eventually(under_way, output.read_text)
            process.send_signal(number)
            code = process.wait(TIMEOUT_S)
        finally:
            process.kill()
    text = output.read_text()
    assert code == 128 + number, text
    assert "internal error" not in text  # of pytest's own tmp_path, which is none of the user's
    assert json.loads((tmp_path / "report.json").read_text())["ended"].startswith("interrupted")
    if harness == SERVED:
        assert "  backend            1       0       0\n" in text, text
        assert "  verdict: unknown: the run ended early" in text
        assert not server(tmp_path).exists()


@thorough
@pytest.mark.parametrize(("flag", "failed"), [("-x", 1), ("--maxfail=2", 2)])
def test_it_can_be_ended_at_a_failure(tmp_path: Path, flag: str, failed: int) -> None:
    checked = check(tmp_path, "coordination-ignores-guard", "backend", k="guard", more=(flag,))
    assert checked.exit_code == 1, checked.text
    assert checked.outcomes["backend"] == {"failed": failed}
    assert f"ended early: stopping after {failed} failures; {3 - failed} test" in checked.text
