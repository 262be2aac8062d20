from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from kits.etcd import etcd_kit
from kits.launcher.elastic_kit import EtcdMeeting, Meeting
from kits.launcher.harness import Cluster, new_cluster


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Starts agents."""
    yield from new_cluster(tmp_path)


@pytest.fixture(scope="module")
def one_etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[etcd_kit.Cluster]:
    """An etcd of one member for all tests of a file; each has a run of its own."""
    with etcd_kit.etcd(tmp_path_factory.mktemp("etcd")) as etcd:
        yield etcd


@pytest.fixture(params=["parallel", "etcd"])
def backend(request: pytest.FixtureRequest) -> str:
    """The elastic backends."""
    return str(request.param)


@pytest.fixture
def meeting(backend: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Meeting]:
    """Starts agents by an elastic backend."""
    etcd = request.getfixturevalue("one_etcd") if backend == "etcd" else None
    with closing(Meeting(tmp_path) if etcd is None else EtcdMeeting(tmp_path, etcd)) as meeting:
        yield meeting
