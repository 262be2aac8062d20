from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parents[1] / "launcher"))  # harness: jobs
sys.path.append(str(Path(__file__).parents[1] / "etcd"))  # etcd_kit: an etcd

import etcd_kit
import harness


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[harness.Cluster]:
    """Starts processes, and ends them all."""
    yield from harness.new_cluster(tmp_path)


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[etcd_kit.Cluster]:
    """An etcd of one member, empty."""
    with etcd_kit.etcd(tmp_path) as cluster:
        yield cluster
