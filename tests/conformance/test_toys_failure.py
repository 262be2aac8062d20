"""Theme *failure* finds who is not told of a failure, and what is left behind; and nothing that is right."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from kits.conformance.toy_kit import check

pytestmark = pytest.mark.thorough

# what never happens is waited for: not for a minute
check = partial(check, theme="failure", variables={"RDZV_CONFORMANCE_PATIENCE": "10"})
coordination = partial(check, harness="CoordinationHarness")


def test_loss_that_nobody_is_told_of(tmp_path: Path) -> None:
    checked = coordination(tmp_path, "coordination_loses_silently", k="connections_that_break or slow")
    checked.must_fail("test_connections_that_break_while_the_service_goes_on", saying="on_lost was not called")


def test_loss_that_is_told_twice(tmp_path: Path) -> None:
    checked = coordination(tmp_path, "coordination_loses_twice", k="connections_that_break or slow")
    checked.must_fail("test_connections_that_break_while_the_service_goes_on", saying="on_lost was called twice")


def test_session_that_is_replaced_in_secret(tmp_path: Path) -> None:
    checked = coordination(tmp_path, "coordination_rises_again", k="connections_that_break or slow")
    checked.must_fail("test_connections_that_break_while_the_service_goes_on", saying="the session goes on, and ")


def test_request_that_exceeds_its_time_out(tmp_path: Path) -> None:
    checked = coordination(
        tmp_path, "coordination_late_answer", k="parted_for_a_moment or connections_that_break", variables={}
    )
    checked.must_fail("test_a_network_that_is_parted_for_a_moment_loses_nobody", saying="with a time-out of 0.3 s")


def test_thread_that_stays(tmp_path: Path) -> None:
    checked = coordination(tmp_path, "coordination_leaves_thread", k="left")
    checked.must_fail(
        "test_nothing_is_left_of_a_service_that_was_closed",
        "test_nothing_is_left_of_sessions_that_were_cut_off",
        saying="threads",
    )
    assert "toy-leak" in checked.text


def test_descriptor_that_stays(tmp_path: Path) -> None:
    checked = coordination(tmp_path, "coordination_leaves_descriptor", k="left")
    checked.must_fail(
        "test_nothing_is_left_of_a_service_that_was_closed",
        "test_nothing_is_left_of_sessions_that_were_cut_off",
        saying="'descriptors':",
    )


def test_right_state_of_a_service_passes(tmp_path: Path) -> None:
    checked = check(tmp_path, "state_served", harness="ServedHarness", k="state or slow")
    checked.must_pass()
    assert len(checked.names("passed")) == 5


def test_state_that_is_read_of_a_service_that_is_not_there(tmp_path: Path) -> None:
    checked = check(tmp_path, "state_served_from_cache", harness="ServedHarness", k="state or slow")
    checked.must_fail(
        "test_a_state_whose_service_is_killed_and_started_again",
        "test_a_state_that_cannot_be_reached_any_more_is_an_error_and_not_an_empty_state",
    )


def test_state_that_is_said_to_be_empty_when_it_cannot_be_reached(tmp_path: Path) -> None:
    checked = check(tmp_path, "state_empty_when_lost", harness="StateHarness", k="reached or break")
    checked.must_fail(
        "test_a_state_that_cannot_be_reached_any_more_is_an_error_and_not_an_empty_state",
        "test_a_state_whose_connections_break_is_right_or_says_that_it_is_lost",
    )
