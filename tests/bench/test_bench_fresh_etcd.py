"""The etcd that `rdzv bench rendezvous` measures: a new one for each run, with its data on a disk."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from kits.bench.etcd_needed import etcd_installed, needs_etcd  # noqa: F401

from rdzv_plugins.endpoints import parse_endpoint
from rdzv_plugins.errors import RdzvError
from rdzv_plugins.testing.builtin import EtcdHarness
from rdzv_plugins.testing.services.counts import of_etcd

pytestmark = pytest.mark.thorough


def etcds(directory: Path) -> list[int]:
    """The processes whose command names it."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            try:
                command = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if str(directory).encode() in command:
                found.append(int(entry.name))
    return found


@needs_etcd
def test_each_job_has_an_etcd_of_its_own_and_the_last_one_leaves_nothing(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("ETCD_LISTEN_CLIENT_URLS", "http://127.0.0.1:1")  # of somebody else's etcd
    with EtcdHarness().afresh(tmp_path) as harness:
        assert (harness.service, [*tmp_path.iterdir()]) == (None, [])
        before: set[int] = set()
        for _ in range(2):
            endpoint = parse_endpoint(harness.endpoint(tmp_path), None)
            assert of_etcd(endpoint).syncs > 0
            assert harness.service is not None
            assert {*harness.service.pids} == {*etcds(tmp_path)}, "the one before has gone"
            assert before.isdisjoint(harness.service.pids)
            before = {*harness.service.pids}
            assert len([*tmp_path.glob("*/0/data/member/wal")]) == 1
    assert etcds(tmp_path) == []
    assert [*tmp_path.iterdir()] == []


@needs_etcd
def test_etcd_that_does_not_start_says_why_and_leaves_nothing(tmp_path, monkeypatch) -> None:
    (tmp_path / "etcd").write_text("#!/bin/sh\necho no luck today >&2\nexit 3\n")
    (tmp_path / "etcd").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    data = tmp_path / "data"
    data.mkdir()
    with (
        EtcdHarness().afresh(data) as harness,
        pytest.raises(RdzvError, match=r"ended with code 3\n  \| no luck today"),
    ):
        harness.endpoint(tmp_path)
    assert [*data.iterdir()] == []
