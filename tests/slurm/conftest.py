from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from kits.hosts.hosts import Lan, require
from kits.launcher.harness import new_cluster
from kits.needed import programs_needed
from kits.slurm.slurm_jobs import User
from kits.slurm.slurm_kit import PROGRAMS, Slurm


@pytest.fixture(scope="session")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    """One cluster for all tests."""
    require(tmp_path_factory.mktemp("namespaces"))
    programs_needed(*PROGRAMS, install="slurmctld slurmd slurm-client munge util-linux")
    folder = Path(tempfile.mkdtemp(prefix="rdzv-slurm-"))  # the path of a socket has to be short
    (folder / "etc").mkdir()
    cluster = Slurm(folder, Lan(folder / "etc"))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.close()
        shutil.rmtree(folder)


@pytest.fixture
def user(slurm: Slurm, tmp_path: Path) -> Iterator[User]:
    """Who starts jobs; afterwards the nodes are free again, and nothing that was started is left."""
    for cluster in new_cluster(tmp_path):
        yield User(slurm, cluster)
        slurm.recover()
        cluster.wait_gone()
