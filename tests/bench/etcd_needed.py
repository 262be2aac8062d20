"""Tests that measure etcd are skipped where it is not installed; CI has to run them."""

from __future__ import annotations

import os

import pytest

from launcher.bench.etcd_server import what_is_missing


@pytest.fixture
def etcd_installed() -> None:
    """Or the test is skipped; CI fails."""
    missing = what_is_missing()
    if missing is not None:
        if os.environ.get("CI") == "true":
            pytest.fail(f"CI has to run the tests with etcd: {missing[0]}")
        pytest.skip(" ".join(missing))


needs_etcd = pytest.mark.usefixtures("etcd_installed")
