from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parents[1] / "launcher"))

from fleet import Fleet
from harness import new_cluster
from hosts import Lan, why_not


@pytest.fixture(scope="session")
def hosts_can_be_made(tmp_path_factory: pytest.TempPathFactory) -> None:
    reason = why_not(tmp_path_factory.mktemp("namespaces"))
    if reason and os.environ.get("CI") == "true":
        pytest.fail(f"CI has to run the tests with hosts: {reason}")
    if reason:
        pytest.skip(reason)


@pytest.fixture
def fleet(hosts_can_be_made: None, tmp_path: Path) -> Iterator[Fleet]:
    (tmp_path / "etc").mkdir()
    lan = Lan(tmp_path / "etc")
    try:
        for cluster in new_cluster(tmp_path):
            yield Fleet(lan, cluster)
    finally:
        lan.close()
