from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parents[1] / "wire"))  # wire_client: raw requests

from harness import Cluster, new_cluster


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    yield from new_cluster(tmp_path)
