"""Tests that measure etcd are skipped where it is not installed; CI has to run them."""

from __future__ import annotations

import os

import pytest

from rdzv_plugins.errors import MissingDependency
from rdzv_plugins.testing.services.etcd import require_etcd


@pytest.fixture
def etcd_installed() -> None:
    """Or the test is skipped; CI fails."""
    try:
        require_etcd()
    except MissingDependency as error:
        if os.environ.get("CI") == "true":
            pytest.fail(f"CI has to run the tests with etcd: {error}")
        pytest.skip(f"{error} {error.remedy}")


needs_etcd = pytest.mark.usefixtures("etcd_installed")
