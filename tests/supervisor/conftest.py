from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from kits.supervisor.supervisor_kit import Agents


@pytest.fixture
def agents(tmp_path: Path) -> Iterator[Agents]:
    """Starts agents with a supervisor, and ends whatever is left of them."""
    with Agents(tmp_path) as agents:
        yield agents
