from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from kits.etcd.etcd_kit import Cluster, etcd
from kits.launcher import harness

from rdzv_plugins.kit import session


@pytest.fixture(autouse=True)
def _long_good_byes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever closes a session waits until etcd knows: what is left behind then is looked at."""
    monkeypatch.setattr(session, "_GOOD_BYE_S", 30.0)


@pytest.fixture
def single(tmp_path: Path) -> Iterator[Cluster]:
    """An etcd of one member, empty."""
    with etcd(tmp_path) as cluster:
        yield cluster


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Cluster]:
    """An etcd of three members, empty, that elects a leader within a second, and so grants short leases."""
    with etcd(tmp_path, members=3, heartbeat=20, election=200) as cluster:
        yield cluster


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Cluster]:
    """An etcd of one member with little room."""
    with etcd(tmp_path, arguments=[f"--quota-backend-bytes={1 << 20}"]) as cluster:
        yield cluster


@pytest.fixture
def agents(tmp_path: Path) -> Iterator[harness.Cluster]:
    """Starts jobs."""
    yield from harness.new_cluster(tmp_path)
