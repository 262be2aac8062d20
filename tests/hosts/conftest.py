from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from kits.hosts.fleet import Fleet
from kits.hosts.hosts import Lan, require
from kits.launcher.harness import new_cluster


@pytest.fixture(scope="session")
def hosts_can_be_made(tmp_path_factory: pytest.TempPathFactory) -> None:
    require(tmp_path_factory.mktemp("namespaces"))


@pytest.fixture
def fleet(hosts_can_be_made: None, tmp_path: Path) -> Iterator[Fleet]:
    (tmp_path / "etc").mkdir()
    with closing(Lan(tmp_path / "etc")) as lan, ExitStack() as ends:
        for cluster in new_cluster(tmp_path):
            yield Fleet(lan, cluster, ends)
