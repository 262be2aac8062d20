"""Each theme finds what is wrong with a backend, names it, and finds nothing in one that is right."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from kits.conformance.toy_kit import CONFORMANCE, check, environment, install, run

pytestmark = pytest.mark.thorough


@dataclass(frozen=True)
class Fault:
    """One toy, the tests that are run and those that are to fail; an asterisk ends the beginning of several names."""

    theme: str
    toy: str
    harness: str
    k: str
    failing: tuple[str, ...]
    saying: str = ""
    """In the message of each of them."""
    told: str = ""
    """In the output."""
    passing: tuple[str, ...] | None = None
    patience: int = 10
    """What never happens is waited for: not for a minute."""


STATE, COORDINATION, HANDLER = "DirectoryHarness", "CoordinationHarness", "HandlerHarness"
SERVED = "served_toys:ServedStateHarness"
RANK = "test_given_node_rank"
FAILURE = "test_failure_for_good_ends_the_job_on_every_node_with_its_exit_code"
STOPPED = "test_agent_that_is_told_to_stop"
ONE_WORLD = "test_all_nodes_agree_on_one_world"
BREAK = ("test_connections_that_break_while_the_service_goes_on",)
LEFT = ("test_nothing_is_left_of_a_service_that_was_closed", "test_nothing_is_left_of_sessions_that_were_cut_off")
NOT_REACHED = "test_a_state_that_cannot_be_reached_any_more_is_an_error_and_not_an_empty_state"
OLD_KEYS = "test_a_new_round_has_none_of_the_old_keys"


def plugin(toy: str, k: str, *failing: str, saying: str = "", told: str = "", harness: str = STATE) -> Fault:
    return Fault("plugin", toy, harness, k, failing, saying, told)


def of_state(toy: str, k: str, *failing: str, saying: str = "") -> Fault:
    return Fault("backend", toy, STATE, k, failing, saying)


def coordination(theme: str, toy: str, k: str, *failing: str, **more) -> Fault:
    return Fault(theme, toy, COORDINATION, k, failing, **more)


FAULTS = [
    plugin(
        "plugin-imports-torch",
        "torch or fast",
        "test_loading_imports_no_torch",
        "test_loading_is_fast",
        saying="import",
    ),
    plugin("plugin-is-slow", "loading", "test_loading_is_fast", saying="s of CPU time"),
    plugin(
        "plugin-options-unexplained",
        "option or default or type or range",
        "test_every_option_has_help",
        "test_options_have_types_that_text_can_give",
        "test_defaults_parse_from_their_text",
        "test_wrong_type_is_refused",
        told="option 'silent'",
    ),
    plugin(
        "plugin-validate-raises", "endpoint or request", "test_wrong_endpoint_is_refused", saying="not by UsageError"
    ),
    plugin(
        "plugin-hides-endpoint",
        "nobody",
        "test_nobody_at_the_endpoint",
        saying="is not said",
        harness="StateHarness",
    ),
    coordination(
        "backend",
        "coordination-loses-event",
        "from_a_revision or every_change or cancel",
        "test_a_watch_from_a_revision_misses_nothing_and_repeats_nothing",
        "test_a_watch_begins_with_what_is_there_and_goes_on_with_every_change",
        saying="has not told all",
    ),
    coordination(
        "backend",
        "coordination-ignores-guard",
        "guard or put or created or state",
        "test_a_guard_that_has_changed_stops_the_whole_put",
        "test_a_guard_among_the_items_is_compare_and_put",
        "test_many_who_compare_and_put_at_once_lose_nothing",
        "test_one_put_takes_as_many_items_as_a_large_job_has_nodes",
    ),
    coordination("backend", "coordination-knows-too-much", "knows_until", "test_a_session_knows_until_when_it_lives"),
    coordination(
        "backend",
        "coordination-ephemeral-stays",
        "goes_with or killed_process_go[fork] or idle",
        "test_an_ephemeral_key_goes_with_its_session_and_watchers_hear_of_it",
        "test_the_keys_of_a_killed_process_go[fork]",
        saying="the watch has not told all",
    ),
    coordination(
        "backend",
        "coordination-calls-after-cancel",
        "cancel or drops",
        "test_no_call_after_cancel",
        "test_ending_a_watch_drops_the_calls_behind_the_one_that_runs[cancel]",
    ),
    coordination(
        "backend",
        "coordination-lives-longer",
        "stopped_process or says_of_itself",
        "test_the_keys_of_a_stopped_process_go_after_its_time_to_live",
        saying="has not told all within",
    ),
    of_state(
        "state-loses-update",
        "update or token",
        "test_no_update_is_lost_between_processes_and_the_state_outlives_them",
        saying="were lost",
    ),
    of_state(
        "state-ignores-token",
        "token",
        "test_a_token_is_good_for_one_write",
        "test_the_first_one_writes_without_a_token_and_nobody_else_does",
    ),
    of_state("state-mixes-runs", "apart or none", "test_states_of_two_runs_are_kept_apart"),
    of_state(
        "state-torn-write",
        "writer_that_is_killed or none",
        "test_a_writer_that_is_killed_leaves_the_old_state_or_the_new_one",
    ),
    Fault(
        "backend",
        "coordination-right",
        HANDLER,
        "returns",
        ("test_create_returns_what_the_harness_says",),
        saying="create() returned a 'coordination'",
    ),
    Fault(
        "backend",
        "handler-never-closed",
        HANDLER,
        "one_node or at_once",
        ("test_a_job_of_one_node_is_complete_at_once_and_can_be_closed",),
    ),
    coordination(
        "rendezvous",
        "rendezvous-same-rank",
        "agree or honoured",
        ONE_WORLD,
        "test_given_node_ranks_are_honoured",
        saying="the 3 nodes of one round have the ranks [0, 0, 0]",
        patience=20,
    ),
    coordination(
        "rendezvous",
        "rendezvous-old-world",
        "agree or late_node or lost_member",
        "test_late_node_enters_where_there_is_room",
        "test_lost_member_and_the_others_go_on",
        saying="agree on its size",
        passing=(ONE_WORLD,),
        patience=20,
    ),
    coordination(
        "rendezvous",
        "rendezvous-no-last-call",
        "last_call",
        "test_first_round_begins_at_the_maximum_or_after_the_last_call",
        saying="before the end of its last call",
        patience=20,
    ),
    coordination(
        "failure",
        "coordination-loses-silently",
        "serves_the_endpoint",
        "test_node_that_serves_the_endpoint_is_killed*",
        patience=20,
    ),
    coordination(
        "failure",
        "coordination-leaves-descriptor",
        "agents_that_end or losses_leave",
        "test_agents_that_end_leave_nothing_behind",
        saying="'descriptors'",
        passing=("test_rounds_with_losses_leave_nothing_behind",),
        patience=20,
    ),
    *(
        coordination("failure", f"coordination-{toy}", "connections_that_break or slow", *BREAK, saying=saying)
        for toy, saying in (
            ("loses-silently", "on_lost was not called"),
            ("loses-twice", "on_lost was called twice"),
            ("rises-again", "the session goes on, and "),
        )
    ),
    coordination(
        "failure",
        "coordination-late-answer",
        "parted_for_a_moment or connections_that_break",
        "test_a_network_that_is_parted_for_a_moment_loses_nobody",
        saying="with a time-out of 0.3 s",
        patience=90,
    ),
    coordination("failure", "coordination-leaves-thread", "left", *LEFT, saying="threads", told="toy-leak"),
    coordination("failure", "coordination-leaves-descriptor", "left", *LEFT, saying="'descriptors':"),
    Fault(
        "failure",
        "state-served-from-cache",
        SERVED,
        "state or slow",
        ("test_a_state_whose_service_is_killed_and_started_again", NOT_REACHED),
    ),
    Fault(
        "failure",
        "state-empty-when-lost",
        "StateHarness",
        "reached or break",
        (NOT_REACHED, "test_a_state_whose_connections_break_is_right_or_says_that_it_is_lost"),
    ),
    Fault(
        "launch",
        "launch-ends-well",
        HANDLER,
        f"{FAILURE} or {STOPPED} or {RANK}",
        (FAILURE, STOPPED),
        told="a worker ended with 9 for good, the launchers with [0, 9]",
        passing=(RANK,),
        patience=90,
    ),
    Fault("launch", "launch-ignores-rank", STATE, RANK, (RANK,), saying="given were node ranks 1 and 0", patience=90),
    coordination("moves", "moves-not-at-all", "killed", "test_node_that_serves_is_killed", patience=90),
    coordination(
        "scale", "scale-polls", "idle", "test_idle_node_asks_nothing", saying="has asked for something", patience=90
    ),
    coordination(
        "scale",
        "scale-asks-for-each",
        "",
        "test_requests_of_a_node_are_the_same_for_any_number_of_nodes",
        saying="requests",
        passing=("test_idle_node_asks_nothing",),
        patience=90,
    ),
    Fault(
        "store",
        "store-of-torch",  # torch's own handler, as 2.13 has it
        "StateHarness",
        "round or one_node or meet or get",
        (OLD_KEYS, "test_a_late_worker_writes_nothing_into_the_new_round", "test_a_job_of_one_node"),
        told="the workers of a new round find the old key",
        patience=90,
    ),
    Fault(
        "store",
        "store-of-agents-stays",
        HANDLER,
        "round or one_node or meet or get",
        (OLD_KEYS,),
        saying="the agents of a new round find the old key",
        patience=90,
    ),
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.theme}: {fault.toy}")
def test_fault_is_found(tmp_path: Path, fault: Fault) -> None:
    patience = {"RDZV_CONFORMANCE_PATIENCE": str(fault.patience)}
    checked = check(tmp_path, fault.toy, fault.theme, harness=fault.harness, k=fault.k, variables=patience)
    checked.must_fail(*fault.failing, saying=fault.saying)
    assert fault.told in checked.text
    assert fault.passing is None or checked.names("passed") == {*fault.passing}


RIGHT = {
    # what takes no time; the rest is that of ``parallel``
    "coordination-right": ("backend", COORDINATION, "not stopped and not killed and not nothing_is_asked", 21),
    "state-right": ("backend", STATE, "", 11),
    "state-served": ("failure", SERVED, "state or slow", 5),
}


@pytest.mark.parametrize("toy", RIGHT)
def test_nothing_is_found_in_a_right_backend(tmp_path: Path, toy: str) -> None:
    theme, harness, k, least = RIGHT[toy]
    checked = check(tmp_path, toy, theme, harness=harness, k=k)
    checked.must_pass()
    assert len(checked.names("passed")) >= least


def test_gaps_are_what_a_backend_need_not_offer(tmp_path: Path) -> None:
    checked = check(tmp_path, "state-right", "plugin")
    checked.must_pass()
    assert checked.names("gap") == {"test_nobody_at_the_endpoint"}  # it is a directory: nobody need be there
    checked = check(tmp_path, "coordination-right", "moves", harness=COORDINATION)
    assert checked.exit_code == 0, checked.text
    assert len(checked.names("gap")) == 2


def test_store_of_the_first_round_in_the_second(tmp_path: Path) -> None:
    """torch's own handler, as 2.13 has it; or a worker goes on asking for the store of the first round."""
    restart = "test_worker_that_is_killed_costs_one_restart_and_all_meet_in_a_fresh_store"
    checked = check(tmp_path, "store-of-torch", "launch", harness="StateHarness", k=restart)
    checked.must_fail(restart)
    seen = ("has found its key of an earlier round in the store of this one", " still runs after ")
    assert any(fault in checked.tests[restart]["message"] for fault in seen), checked.tests[restart]


def test_import_of_a_client_library(tmp_path: Path) -> None:
    library = tmp_path / "library"
    metadata = library / "redis_like_client-2.0.dist-info"
    metadata.mkdir(parents=True)
    (library / "redis_like_client.py").write_text("")
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: redis-like-client\nVersion: 2.0\n")
    (metadata / "RECORD").write_text("redis_like_client.py,,\nredis_like_client-2.0.dist-info/METADATA,,\n")
    checked = check(tmp_path, "plugin-imports-client", "plugin", beside=[library], k="loading or name")
    checked.must_fail("test_loading_imports_no_client_library", saying="imports redis_like_client when it is loaded")


def test_entry_that_is_not_well_formed(tmp_path: Path) -> None:
    backend = "Plugin_Badly_Named"
    checked = check(tmp_path, "plugin-badly-named", "plugin", backend=backend, k="summary or alias")
    checked.must_fail("test_name_and_summary", "test_aliases")
    backend = "the-name-of-the-backend"
    checked = check(tmp_path, "plugin-of-another-name", "plugin", backend=backend, k="entry_point or alias")
    checked.must_fail("test_entry_point_has_the_name_of_the_backend", saying="rdzv-plugins.plugin-of-another-name")


def test_plugin_that_is_broken_is_named_before_any_test(tmp_path: Path) -> None:
    site = install(tmp_path, "plugin-is-broken")
    code, text = run([*CONFORMANCE, "plugin-is-broken"], environment(site), tmp_path)
    assert code == 69
    assert "plug-in 'plugin-is-broken' of rdzv-plugin-is-broken 1.0" in text
    assert "raised RuntimeError at import: not today" in text
