from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kits.etcd import etcd_kit
from kits.examples import distributions
from kits.launcher import harness


def built_once(factory: pytest.TempPathFactory, name: str, build: Callable[[Path, Path], None]) -> Path:
    """The directory of the wheels, for all processes of a run, in which these have been built by one of them."""
    root = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent
    with (root / "distributions.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (root / f"built-{name}").exists():
            with tempfile.TemporaryDirectory(dir=root) as copies:
                build(root / "wheels", Path(copies))
            (root / f"built-{name}").touch()
    return root / "wheels"


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of this project's wheel."""
    return built_once(tmp_path_factory, "project", distributions.build_wheel)


@pytest.fixture(scope="session")
def all_wheels(wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With those of the example distributions."""
    return built_once(tmp_path_factory, "examples", distributions.build_examples)


@pytest.fixture(scope="session")
def installed(all_wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[distributions.CleanEnvironment]:
    """This project and all examples in one environment. Tests leave it as it is."""
    root = tmp_path_factory.mktemp("installed")
    environment = distributions.CleanEnvironment(root / "env")
    environment.install(all_wheels, *distributions.EXAMPLES)
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
