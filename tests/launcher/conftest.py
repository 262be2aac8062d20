from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from kits.etcd import etcd_kit
from kits.launcher.elastic_kit import EtcdMeeting, Meeting, TieredMeeting
from kits.launcher.harness import Cluster, Said, new_cluster

from rdzv_launcher.tools import cli


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    yield from new_cluster(tmp_path)


@pytest.fixture
def rdzv(capsys: pytest.CaptureFixture[str]) -> Callable[..., Said]:
    """A command of ``rdzv`` to its end, in this process."""

    def run(*arguments: object) -> Said:
        capsys.readouterr()
        try:
            code = cli.main([str(each) for each in arguments])
        except SystemExit as ended:  # argparse's way
            code = int(str(ended.code))
        return Said(code, *capsys.readouterr())

    return run


@pytest.fixture(scope="module")
def one_etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[etcd_kit.Cluster]:
    """An etcd of one member for all tests of a file; each has a run of its own."""
    with etcd_kit.etcd(tmp_path_factory.mktemp("etcd")) as etcd:
        yield etcd


@pytest.fixture
def backend(request: pytest.FixtureRequest) -> str:
    """The elastic backend by which the agents of ``meeting`` meet."""
    return str(getattr(request, "param", "parallel"))


@pytest.fixture
def meeting(backend: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Meeting]:
    """Starts agents by an elastic backend."""
    if backend == "etcd":
        made: Meeting = EtcdMeeting(tmp_path, request.getfixturevalue("one_etcd"))
    else:
        made = {"parallel": Meeting, "tiered": TieredMeeting}[backend](tmp_path)
    with closing(made):
        yield made
