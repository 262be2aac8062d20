from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1]))  # this folder is a package, the kits of the tests are modules
sys.path.append(str(Path(__file__).parents[1] / "hosts"))
sys.path.append(str(Path(__file__).parents[1] / "launcher"))
sys.path.append(str(Path(__file__).parents[1] / "etcd"))

from hosts import why_not


@pytest.fixture
def hosts_can_be_made(tmp_path: Path) -> None:
    reason = why_not(tmp_path)
    if reason and os.environ.get("CI") == "true":
        pytest.fail(f"CI has to run the soak: {reason}")
    if reason:
        pytest.skip(reason)
