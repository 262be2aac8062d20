"""Theme *store* finds a store that is not new in each round, or not the workers' own."""

from __future__ import annotations

from pathlib import Path

import pytest
from kits.conformance.toy_kit import check

pytestmark = pytest.mark.thorough

ROUNDS = "round or one_node or meet or get"


def test_store_that_outlives_its_round(tmp_path: Path) -> None:
    """torch's own handler, as 2.13 has it."""
    checked = check(tmp_path, "store_of_torch", "store", harness="StateHarness", k=ROUNDS)
    stale = ("test_a_new_round_has_none_of_the_old_keys", "test_a_late_worker_writes_nothing_into_the_new_round")
    checked.must_fail(*stale, "test_a_job_of_one_node")
    assert "the workers of a new round find the old key" in checked.text
    assert {"test_set_and_get", "test_get_waits_for_the_key"} <= checked.names("passed")


def test_store_of_agents_that_outlives_its_round(tmp_path: Path) -> None:
    checked = check(tmp_path, "store_of_agents_stays", "store", harness="HandlerHarness", k=ROUNDS)
    checked.must_fail("test_a_new_round_has_none_of_the_old_keys", saying="the agents of a new round find the old key")
