"""The etcd of `rdzv bench rendezvous`: it serves, says why it does not, and leaves nothing."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from etcd_needed import etcd_installed, needs_etcd  # noqa: F401
from harness import wait_until

from launcher.bench.etcd_server import EtcdServer, ask_metrics


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


def none_left(directory: Path) -> None:
    wait_until(lambda: not etcds(directory), 30, lambda: f"still there: {etcds(directory)}")


@needs_etcd
def test_etcd_serves_until_the_end_of_the_block_and_leaves_nothing(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("ETCD_LISTEN_CLIENT_URLS", "http://127.0.0.1:1")  # of somebody else's etcd
    with EtcdServer(str(tmp_path)) as server:
        server.wait_ready()
        assert ask_metrics(server.port).syncs > 0
        assert server.pid in etcds(tmp_path)
        assert [*tmp_path.glob("*/member/wal")]
    assert etcds(tmp_path) == []
    assert [*tmp_path.iterdir()] == []


def test_etcd_that_does_not_start_says_why(tmp_path, monkeypatch) -> None:
    (tmp_path / "etcd").write_text("#!/bin/sh\necho no luck today >&2\nexit 3\n")
    (tmp_path / "etcd").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    data = tmp_path / "data"
    data.mkdir()
    with EtcdServer(str(data)) as server, pytest.raises(Exception, match=r"etcd did not start\n  \| no luck today"):
        server.wait_ready()
    assert [*data.iterdir()] == []


@needs_etcd
def test_etcd_ends_with_the_process_that_watches_over_it(tmp_path) -> None:
    with EtcdServer(str(tmp_path)) as server:
        server.wait_ready()
        (watcher,) = set(etcds(tmp_path)) - {server.pid}
        os.kill(watcher, signal.SIGKILL)
        none_left(tmp_path)
