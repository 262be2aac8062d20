"""Theme *moves* finds a backend that takes several endpoints, and goes on at none of the others."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from kits.conformance.toy_kit import check

pytestmark = pytest.mark.thorough

check = partial(check, theme="moves", harness="CoordinationHarness")


def test_backend_that_stays_where_nobody_serves(tmp_path: Path) -> None:
    checked = check(tmp_path, "moves_not_at_all", k="killed")
    checked.must_fail("test_node_that_serves_is_killed")


def test_backend_that_does_not_declare_it_has_gaps(tmp_path: Path) -> None:
    checked = check(tmp_path, "coordination_right")
    assert checked.exit_code == 0, checked.text
    assert len(checked.names("gap")) == 2
