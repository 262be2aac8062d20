"""Each theme finds what is wrong with a backend, names it, and finds nothing in one that is right."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from kits.conformance.toy_kit import Checked, check

pytestmark = pytest.mark.thorough


@dataclass(frozen=True)
class Fault:
    """One toy, and the tests that find its fault: the beginnings of their names, without ``test_``."""

    theme: str
    toy: str
    failing: str
    saying: str = ""
    """A pattern, in what they say."""
    passing: str = ""
    """Tests that do not mind."""
    harness: str = ""
    """Another one than all toys of its kind have."""


PATIENCE = {"plugin": "10", "backend": "10", "rendezvous": "60", "failure": "20"}
"""Seconds by theme: what never happens is waited for, but not for a minute. In others real launchers start."""
BREAK = "connections_that_break"
LEFT = "nothing_is_left_of_a_service nothing_is_left_of_sessions"
OLD_KEYS = "a_new_round_has_none_of_the_old_keys"
DIALLED = "StateHarness"

FAULTS = [
    Fault("plugin", "plugin-imports-torch", "loading_imports_nothing loading_is_fast", "import"),
    Fault("plugin", "plugin-imports-client", "loading_imports_nothing", "imports redis_like_client", "name_and"),
    Fault("plugin", "plugin-is-slow", "loading_is_fast", "s of CPU time", "loading_imports"),
    Fault("plugin", "plugin-badly-named", "name_and_summary aliases"),
    Fault("plugin", "plugin-of-another-name", "entry_point_has", "rdzv-plugins.plugin-of-another-name", "aliases"),
    Fault("plugin", "plugin-options-unexplained", "every_option options_have defaults wrong_type", "option 'silent'"),
    Fault("plugin", "plugin-validate-raises", "wrong_endpoint", "not by UsageError", "good_request"),
    Fault("plugin", "plugin-hides-endpoint", "nobody_at_the_endpoint", "is not said", harness=DIALLED),
    Fault("backend", "coordination-loses-event", "a_watch_from_a_revision a_watch_begins", "not told all", "no_call"),
    Fault(
        "backend",
        "coordination-ignores-guard",
        "a_guard_that_has_changed a_guard_among many_who_compare one_put_takes",
        passing="a_key_is_created_once",
    ),
    Fault("backend", "coordination-knows-too-much", "a_session_knows_until"),
    Fault(
        "backend",
        "coordination-ephemeral-stays",
        "an_ephemeral_key_goes the_keys_of_a_killed_process_go[fork]",
        "has not told all",
    ),
    Fault("backend", "coordination-calls-after-cancel", "no_call_after_cancel ending_a_watch_drops"),
    Fault("backend", "coordination-lives-longer", "the_keys_of_a_stopped", "not told all", "what_a_session_says"),
    Fault("backend", "state-loses-update", "no_update_is_lost", "were lost", "a_token_is_good"),
    Fault("backend", "state-ignores-token", "a_token_is_good the_first_one_writes"),
    Fault("backend", "state-mixes-runs", "states_of_two_runs", passing="what_nobody_has_written"),
    Fault("backend", "state-torn-write", "a_writer_that_is_killed", passing="what_nobody_has_written"),
    Fault("backend", "coordination-right", "create_returns", "returned a 'coordination'", harness="HandlerHarness"),
    Fault("backend", "handler-never-closed", "a_job_of_one_node", passing="what_has_to_return_at_once"),
    Fault("rendezvous", "rendezvous-same-rank", "all_nodes_agree given_node_ranks", r"have the ranks \[0, 0, 0\]"),
    Fault("rendezvous", "rendezvous-old-world", "lost_member", "agree on its size", "all_nodes_agree"),
    Fault("rendezvous", "rendezvous-no-last-call", "first_round_begins", "before the end of its last call"),
    Fault("rendezvous", "rendezvous-ignores-rank", "given_node_ranks", "ranks that were given"),
    Fault("failure", "coordination-loses-silently", "node_that_serves_the_endpoint"),
    Fault("failure", "coordination-loses-silently", BREAK, "on_lost was not called", "a_slow_network"),
    Fault("failure", "coordination-rises-again", BREAK, "the session goes on, and "),
    Fault("failure", "coordination-late-answer", "a_network_that_is_parted_for_a_moment", "with a time-out of 0.3 s"),
    Fault("failure", "coordination-leaves-descriptor", LEFT, "'descriptors':"),
    Fault("failure", "coordination-leaves-descriptor", "agents_that_end", "'descriptors'", "rounds_with_losses"),
    Fault("failure", "state-served-from-cache", "a_state_whose_service a_state_that_cannot"),
    Fault("failure", "state-empty-when-lost", "a_state_that_cannot a_state_whose_connections", harness=DIALLED),
    Fault("launch", "launch-ends-well", "failure_for_good agent_that_is_told", r"with \[0, 9\]"),
    Fault("launch", "store-of-torch", "worker_that_is_killed", "an earlier round|still running", harness=DIALLED),
    Fault("moves", "moves-not-at-all", "node_that_serves_is_killed"),
    Fault("scale", "scale-polls", "idle_node", "has asked for something"),
    Fault("scale", "scale-asks-for-each", "requests_of_a_node", "requests", "idle_node"),
    Fault(  # torch's own handler, as 2.13 has it
        "store",
        "store-of-torch",
        f"{OLD_KEYS} a_late_worker a_job_of_one_node",
        "workers of a new round find the old key",
        "set_and_get",
        DIALLED,
    ),
    Fault("store", "store-of-agents-stays", OLD_KEYS, "agents of a new round find the old key", "a_late_worker"),
]


@pytest.fixture(scope="module")
def checks(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[Fault, Future[Checked]]]:
    """The suite on the toys of all tests that were chosen, some at a time: it waits more than it computes."""

    def one(fault: Fault, directory: Path) -> Checked:
        patience = {"RDZV_CONFORMANCE_PATIENCE": PATIENCE.get(fault.theme, "90")}
        k = " or ".join((*fault.failing.split(), *fault.passing.split()))
        return check(directory, fault.toy, fault.theme, harness=fault.harness, k=k, variables=patience)

    given = (getattr(item, "callspec", None) for item in request.session.items)
    chosen = [each.params["fault"] for each in given if each and isinstance(each.params.get("fault"), Fault)]
    with ThreadPoolExecutor(3) as pool:
        yield {fault: pool.submit(one, fault, tmp_path_factory.mktemp("toy")) for fault in chosen}
        pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.theme}: {fault.toy}")
def test_fault_is_found(checks: dict[Fault, Future[Checked]], fault: Fault) -> None:
    failing, passing = (names.split() for names in (fault.failing, fault.passing))
    checked = checks[fault].result()
    checked.must_fail(*failing)
    assert re.search(fault.saying, checked.messages)
    assert checked.with_beginnings("passed", passing) or not passing, checked.text


@pytest.mark.parametrize(
    ("toy", "test", "fault", "saying"),
    [
        ("put-hangs", "test_each_call_is_answered_soon", "it hangs", r"put\(\) has not returned within 15 s"),
        ("is-slow", "test_each_call_is_answered_soon", "it is slow", r"create\(\) takes [2-9][\d.]* s"),
        ("drops-events", "test_a_watcher_hears_what_others_do", "it loses events", "has not told all within 15 s"),
        ("reads-stale", "test_what_one_writes_others_read", "it reads what is stale", "was written, and then read"),
    ],
)
def test_what_builds_on_what_is_broken_is_not_tried(tmp_path: Path, toy, test, fault, saying) -> None:
    """One test failed, with that fault; all that builds on it was not tried, and that is what the report says."""
    patience = {"RDZV_CONFORMANCE_PATIENCE": "15"} if toy != "is-slow" else {}
    checked = check(tmp_path, f"coordination-{toy}", "backend", variables=patience)
    checked.must_fail(test.removeprefix("test_"))
    assert re.search(saying, checked.messages)
    untried = checked.names("untried")
    assert len(untried) > 20, checked.text
    reasons = {checked.tests[name]["message"] for name in untried}
    assert reasons == {f"not tried: it builds on {checked.tests[test]['promise']!r}, which is broken ({fault})"}
    assert f"  verdict: does not conform: {fault}; {len(untried)} " in checked.text, checked.text


def test_create_that_returns_a_dict(tmp_path: Path) -> None:
    checked = check(tmp_path, "create-returns-dict", "")
    assert checked.exit_code == 1, checked.text
    outcomes = {**checked.outcomes}
    assert outcomes.pop("plugin")["passed"] > 10
    assert outcomes["backend"]["failed"] == sum(counts["failed"] for counts in outcomes.values()) == 1
    assert {each for counts in outcomes.values() for each in +counts} == {"failed", "untried"}
    at_endpoint = check(
        tmp_path / "site-create-returns-dict", "create-returns-dict", "", more=("--rdzv-endpoint=/tmp",)
    )
    assert at_endpoint.exit_code == 69
    for text in (checked.text, at_endpoint.text):
        assert "create() returned a dict" in text
        assert "Traceback" not in text


@pytest.mark.parametrize(
    ("toy", "theme", "k", "least"),
    [
        # what takes no time; the rest is that of ``parallel``
        ("coordination-right", "backend", "not stopped and not killed and not nothing_is_asked", 21),
        ("state-right", "backend", "", 10),
        ("state-served", "failure", "state or slow", 4),
    ],
)
def test_nothing_is_found_in_a_right_backend(tmp_path: Path, toy: str, theme: str, k: str, least: int) -> None:
    checked = check(tmp_path, toy, theme, k=k)
    checked.must_pass()
    passed, gaps = (len(checked.names(outcome)) for outcome in ("passed", "gap"))
    assert passed >= least
    assert f"  {theme:<12}{passed:>8}{0:>8}{gaps:>8}\n" in checked.text
    assert f"  verdict: conforms in what was tried: {theme}" in checked.text
