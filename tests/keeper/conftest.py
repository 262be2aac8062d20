from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from keeper_kit import Agents


@pytest.fixture
def agents(tmp_path: Path) -> Iterator[Agents]:
    """Starts agents with a keeper, and ends whatever is left of them."""
    with Agents(tmp_path) as agents:
        yield agents
