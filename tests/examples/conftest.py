from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from kits.etcd import etcd_kit
from kits.examples import distributions
from kits.launcher import harness


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the wheels of this project and of the example distributions: one for all processes of a run."""
    root = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent
    directory = root / "distributions"
    with (root / "distributions.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (directory / "done").exists():
            shutil.rmtree(directory, ignore_errors=True)  # where another process has failed
            directory.mkdir()
            distributions.build_wheels(directory)
            (directory / "done").touch()
    return directory / "wheels"


@pytest.fixture(scope="session")
def installed(wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[distributions.CleanEnvironment]:
    """This project and both examples in one environment. Tests leave it as it is."""
    root = tmp_path_factory.mktemp("installed")
    environment = distributions.CleanEnvironment(root / "env")
    environment.install(wheels, *distributions.EXAMPLES)
    yield environment
    shutil.rmtree(root)


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[harness.Cluster]:
    """Starts processes, and ends them all."""
    yield from harness.new_cluster(tmp_path)


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[etcd_kit.Cluster]:
    """An etcd of one member, empty."""
    with etcd_kit.etcd(tmp_path) as cluster:
        yield cluster
