"""Theme *rendezvous* finds nodes that do not agree who is where, and nodes that are forgotten.

And the failures of nodes, of theme *failure*, find nodes that are not told, or leave something behind.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from kits.conformance.toy_kit import check

pytestmark = pytest.mark.thorough

# what never happens is waited for: not for a minute
check = partial(check, harness="CoordinationHarness", variables={"RDZV_CONFORMANCE_PATIENCE": "20"})


def test_two_nodes_of_the_same_rank(tmp_path: Path) -> None:
    checked = check(tmp_path, "rendezvous_same_rank", "rendezvous", k="agree or honoured")
    checked.must_fail(
        "test_all_nodes_agree_on_one_world",
        "test_given_node_ranks_are_honoured",
        saying="the 3 nodes of one round have the ranks [0, 0, 0]",
    )


def test_node_that_believes_in_the_world_of_an_earlier_round(tmp_path: Path) -> None:
    checked = check(tmp_path, "rendezvous_old_world", "rendezvous", k="agree or late_node or lost_member")
    checked.must_fail(
        "test_late_node_enters_where_there_is_room", "test_lost_member_and_the_others_go_on", saying="agree on its size"
    )
    assert checked.names("passed") == {"test_all_nodes_agree_on_one_world"}


def test_late_node_that_is_forgotten(tmp_path: Path) -> None:
    checked = check(tmp_path, "rendezvous_forgets_late", "rendezvous", k="agree or late_node or surplus")
    checked.must_fail("test_late_node_enters_where_there_is_room", "test_surplus*")
    assert checked.names("passed") == {"test_all_nodes_agree_on_one_world"}


def test_first_round_without_a_last_call(tmp_path: Path) -> None:
    checked = check(tmp_path, "rendezvous_no_last_call", "rendezvous", k="last_call")
    checked.must_fail(
        "test_first_round_begins_at_the_maximum_or_after_the_last_call", saying="before the end of its last call"
    )


def test_nodes_that_are_not_told_that_the_endpoint_is_gone(tmp_path: Path) -> None:
    checked = check(tmp_path, "coordination_loses_silently", "failure", k="serves_the_endpoint")
    checked.must_fail("test_node_that_serves_the_endpoint_is_killed*")
    assert len(checked.names("failed")) == 2


def test_agents_that_leave_descriptors_behind(tmp_path: Path) -> None:
    checked = check(tmp_path, "coordination_leaves_descriptor", "failure", k="agents_that_end or losses_leave")
    checked.must_fail("test_agents_that_end_leave_nothing_behind", saying="'descriptors'")
    assert checked.names("passed") == {"test_rounds_with_losses_leave_nothing_behind"}
