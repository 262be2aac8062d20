from __future__ import annotations

import os
from pathlib import Path

import pytest
from kits.hosts.hosts import why_not


@pytest.fixture
def hosts_can_be_made(tmp_path: Path) -> None:
    reason = why_not(tmp_path)
    if reason and os.environ.get("CI") == "true":
        pytest.fail(f"CI has to run the soak: {reason}")
    if reason:
        pytest.skip(reason)
