"""Theme *scale* finds requests that grow with time, and with the number of nodes."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from kits.conformance.toy_kit import check

pytestmark = pytest.mark.thorough

check = partial(check, theme="scale", harness="CoordinationHarness")


def test_watches_that_poll(tmp_path: Path) -> None:
    checked = check(tmp_path, "scale_polls", k="idle")
    checked.must_fail("test_idle_node_asks_nothing", saying="has asked for something while it was idle")


def test_requests_that_grow_with_the_number_of_nodes(tmp_path: Path) -> None:
    checked = check(tmp_path, "scale_asks_for_each")
    checked.must_fail("test_requests_of_a_node_are_the_same_for_any_number_of_nodes", saying="requests")
    assert checked.names("passed") == {"test_idle_node_asks_nothing"}
