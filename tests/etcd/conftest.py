from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from kits.etcd.etcd_kit import Cluster, etcd
from kits.etcd.failover_kit import Observed, SessionAt, Subject

from rdzv_plugins.backends.etcd.coordination import EtcdCoordination
from rdzv_plugins.coordination import Session
from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.kit import session
from rdzv_plugins.testing.parts import LONG, Losses, opened


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
def session_at() -> Iterator[SessionAt]:
    """Opens sessions, which are closed after the test with those who look at losses."""
    with ExitStack() as ends:

        def session_at(
            endpoints: Sequence[Endpoint], run: str = "run", ttl: float = LONG, losses: Losses | None = None, **how: Any
        ) -> Session:
            backend = EtcdCoordination(endpoints, run, **how)
            ends.callback(backend.close)
            return opened(backend, ttl, losses)

        yield session_at


@pytest.fixture
def observed() -> Iterator[Observed]:
    """Opens sessions under observation, which are closed after the test, and lost by nothing since it has looked."""
    with ExitStack() as ends:

        def observed(cluster: Cluster, **how: Any) -> Subject:
            subject = Subject(cluster, **how)
            ends.callback(lambda: subject.close() or _not_lost(subject))
            return subject

        yield observed


def _not_lost(subject: Subject) -> None:
    assert subject.losses.none
