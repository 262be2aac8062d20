"""Theme *backend* finds what is wrong with a state, a coordination service or a handler, and nothing that is right."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from kits.conformance.toy_kit import check

pytestmark = pytest.mark.thorough

# what never happens is waited for: not for a minute
check = partial(check, variables={"RDZV_CONFORMANCE_PATIENCE": "10"})
coordination = partial(check, theme="backend", harness="CoordinationHarness")
state = partial(check, theme="backend")


def test_right_coordination_backend_passes(tmp_path: Path) -> None:
    """What takes no time; the rest is that of ``parallel``."""
    quick = "not stopped and not killed and not nothing_is_asked"
    checked = check(tmp_path, "coordination_right", "backend", harness="CoordinationHarness", k=quick, variables={})
    checked.must_pass()
    assert len(checked.names("passed")) > 20
    gaps = [name for name in checked.names("gap") if "watch" in name or "session" in name or "guard" in name]
    assert gaps == ["test_a_session_can_be_ended_by_others"]  # which a backend need not offer


def test_right_state_backend_passes(tmp_path: Path) -> None:
    checked = state(tmp_path, "state_right", variables={})
    checked.must_pass()
    assert len(checked.names("passed")) == 11
    assert {"not for a RendezvousBackend: it is what a CoordinationBackend promises"} < {
        gap for test in checked.tests.values() for gap in test["gaps"]
    }


def test_watch_that_loses_an_event(tmp_path: Path) -> None:
    checked = coordination(tmp_path, "coordination_loses_event", k="from_a_revision or every_change or cancel")
    checked.must_fail(
        "test_a_watch_from_a_revision_misses_nothing_and_repeats_nothing",
        "test_a_watch_begins_with_what_is_there_and_goes_on_with_every_change",
        saying="has not told all",
    )


def test_guard_that_is_ignored(tmp_path: Path) -> None:
    checked = coordination(tmp_path, "coordination_ignores_guard", k="guard or put or created or state")
    checked.must_fail(
        "test_a_guard_that_has_changed_stops_the_whole_put",
        "test_a_guard_among_the_items_is_compare_and_put",
        "test_many_who_compare_and_put_at_once_lose_nothing",
        "test_one_put_takes_as_many_items_as_a_large_job_has_nodes",
    )


def test_session_that_is_said_to_live_for_too_long(tmp_path: Path) -> None:
    checked = coordination(tmp_path, "coordination_knows_too_much", k="knows_until")
    checked.must_fail("test_a_session_knows_until_when_it_lives")


def test_ephemeral_keys_that_stay(tmp_path: Path) -> None:
    checked = coordination(tmp_path, "coordination_ephemeral_stays", k="goes_with or killed_process_go[fork] or idle")
    checked.must_fail(
        "test_an_ephemeral_key_goes_with_its_session_and_watchers_hear_of_it",
        "test_the_keys_of_a_killed_process_go[fork]",
        saying="the watch has not told all",
    )


def test_call_after_cancel(tmp_path: Path) -> None:
    checked = coordination(tmp_path, "coordination_calls_after_cancel", k="cancel or drops")
    checked.must_fail(
        "test_no_call_after_cancel", "test_ending_a_watch_drops_the_calls_behind_the_one_that_runs[cancel]"
    )


def test_updates_that_are_lost(tmp_path: Path) -> None:
    checked = state(tmp_path, "state_loses_update", k="update or token")
    checked.must_fail("test_no_update_is_lost_between_processes_and_the_state_outlives_them", saying="were lost")


def test_token_that_is_ignored(tmp_path: Path) -> None:
    checked = state(tmp_path, "state_ignores_token", k="token")
    checked.must_fail(
        "test_a_token_is_good_for_one_write", "test_the_first_one_writes_without_a_token_and_nobody_else_does"
    )


def test_runs_that_share_a_state(tmp_path: Path) -> None:
    checked = state(tmp_path, "state_mixes_runs", k="apart or none")
    checked.must_fail("test_states_of_two_runs_are_kept_apart")


def test_run_id_that_is_a_path(tmp_path: Path) -> None:
    checked = state(tmp_path, "state_run_id_is_path", k="apart or none")
    checked.must_fail("test_states_of_two_runs_are_kept_apart")


def test_writer_that_is_killed_and_leaves_half_a_state(tmp_path: Path) -> None:
    checked = state(tmp_path, "state_torn_write", k="writer_that_is_killed or none")
    checked.must_fail("test_a_writer_that_is_killed_leaves_the_old_state_or_the_new_one")


def test_sessions_that_outlive_their_time(tmp_path: Path) -> None:
    checked = coordination(tmp_path, "coordination_lives_longer", k="stopped_process or says_of_itself")
    checked.must_fail("test_the_keys_of_a_stopped_process_go_after_its_time_to_live", saying="has not told all within")


def test_harness_that_is_wrong_about_the_kind(tmp_path: Path) -> None:
    checked = check(tmp_path, "coordination_right", "backend", harness="HandlerHarness", k="returns")
    checked.must_fail("test_create_returns_what_the_harness_says", saying="create() returned a 'coordination'")


def test_handler_that_was_closed_and_does_not_say_so(tmp_path: Path) -> None:
    checked = check(tmp_path, "handler_never_closed", "backend", harness="HandlerHarness", k="one_node or at_once")
    checked.must_fail("test_a_job_of_one_node_is_complete_at_once_and_can_be_closed")
