from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parents[1] / "etcd"))  # etcd_service: sessions are tested over etcd, too
sys.path.append(str(Path(__file__).parents[1] / "launcher"))  # harness: etcd_kit's
# Torch's client asks a name server for the name of ::ffff:127.0.0.1 at each connect: where that loses one query in
# a hundred, 5 s each.
os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:1")

from coordination_kit import NativeService, Service, opened
from etcd_kit import Cluster, etcd
from store_servers import KINDS, Server, lifeline, running

from rdzv_plugins.coordination import Session


@pytest.fixture(params=KINDS)
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """An empty server; torch's own is among them, so that a test that is wrong about torch's semantics fails too."""
    with running(request.param) as server, lifeline(server, 60):
        yield server


@pytest.fixture(params=[kind for kind in KINDS if kind != "torch"])
def ours(request: pytest.FixtureRequest) -> Iterator[Server]:
    """Our server, empty."""
    with running(request.param) as server, lifeline(server, 60):
        yield server


@pytest.fixture(scope="session")
def etcd_of_all(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One for all tests, which do not share their keys."""
    with etcd(tmp_path_factory.mktemp("etcd")) as cluster:
        yield cluster


@pytest.fixture(params=["native", "etcd"])
def service(request: pytest.FixtureRequest) -> Iterator[Service]:
    """A coordination service without a key."""
    service: Service
    if request.param == "native":
        service = NativeService()
    else:
        from etcd_service import EtcdService  # its packages are an extra

        service = EtcdService(request.getfixturevalue("etcd_of_all"))
    yield service
    service.close()


@pytest.fixture
def one(service: Service) -> Session:
    """A node's session with it."""
    return opened(service.backend())


@pytest.fixture
def two(service: Service) -> Session:
    """Another node's."""
    return opened(service.backend())
