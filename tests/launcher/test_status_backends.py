"""``rdzv status`` of jobs whose nodes do not meet at a native store: what is known of them, by every such backend."""

from __future__ import annotations

import base64
import contextlib
import json
import pickle
import re
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kits.etcd import etcd_kit
from kits.eventually import eventually
from kits.launcher.elastic_kit import EtcdMeeting, Job, in_one_round
from kits.launcher.harness import BIN, Agent, Cluster, free_port, server
from torch.distributed import TCPStore

HOST = socket.gethostname()
PATIENCE_S = 60


def status(endpoint: str, *flags: str) -> subprocess.CompletedProcess[str]:
    command = [str(BIN / "rdzv"), "status", f"--rdzv-endpoint={endpoint}", *flags]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def asked(endpoint: str, *flags: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    ended = status(endpoint, *flags)
    assert ended.returncode == code, ended.stdout + ended.stderr
    return ended


def told(endpoint: str, *flags: str) -> str:
    return asked(endpoint, *flags).stdout


def told_soon(pattern: str, endpoint: str, *flags: str) -> str:
    """What is said once it matches."""
    last = ""

    def matches() -> str:
        nonlocal last
        ended = status(endpoint, *flags)  # it may not know of the run yet
        last = ended.stdout + ended.stderr
        return ended.stdout if ended.returncode == 0 and re.search(pattern, ended.stdout) else ""

    return str(eventually(matches, lambda: f"no {pattern!r} in:\n{last}"))


def refused(endpoint: str, *flags: str, code: int = 68) -> str:
    message = asked(endpoint, *flags, code=code).stderr
    assert "Traceback" not in message
    return message


@pytest.fixture
def train(one_etcd: etcd_kit.Cluster, tmp_path: Path) -> Iterator[Job]:
    with contextlib.closing(EtcdMeeting(tmp_path, one_etcd)) as meeting:
        yield Job(meeting, 2, conf="ttl=60")


def test_etcd_says_who_is_there_who_leads_and_what_is_waited_for(train: Job) -> None:
    endpoint = train.meeting.endpoint
    flags = [f"--rdzv-id={train.run_id}"]  # the backend is found by what answers
    first = train.node(0)
    first.wait_for("1 of 2 nodes have joined")
    text = told_soon("1 of 2 nodes have joined", endpoint, *flags)
    assert f"led by {HOST} (node rank 0, pid {first.pid})\n" in text
    assert "missing: node rank 1\n" in text
    second = train.node(1)
    in_one_round(first, second)
    data = json.loads(told(endpoint, *flags, "--json"))
    assert (data["run"], data["backend"], data["round"]["state"]) == (train.run_id, "etcd", "complete")
    nodes = [(node["rank"], node["host"], node["pid"], node["there"]) for node in data["round"]["nodes"]]
    assert nodes == [(0, HOST, first.pid, True), (1, HOST, second.pid, True)]
    train.finish(first, second)


@pytest.mark.thorough
def test_asking_changes_nothing_at_etcd(train: Job) -> None:
    train.node(0).wait_for("1 of 2 nodes have joined")
    told_soon("1 of 2 nodes have joined", train.meeting.endpoint, "--rdzv-backend=etcd", f"--rdzv-id={train.run_id}")
    assert isinstance(train.meeting, EtcdMeeting)
    before = train.meeting.held(train.run_id)
    told(train.meeting.endpoint, "--rdzv-backend=etcd", f"--rdzv-id={train.run_id}")
    assert train.meeting.held(train.run_id) == before
    told(train.meeting.endpoint, "--rdzv-backend=etcd", "--rdzv-id=nobodys")
    assert train.meeting.held("nobodys") == {}


def test_at_etcd_a_run_has_to_be_named(one_etcd: etcd_kit.Cluster) -> None:
    assert "--rdzv-id" in refused(one_etcd.endpoint, code=2)


def test_static_says_who_is_there_and_who_is_missing_and_where_its_store_is(cluster: Cluster) -> None:
    stop = cluster.directory / "stop"

    def node(rank: int) -> Agent:
        options = ["--rdzv-id=train"]
        args = ("wait", stop, 0)
        conf = "store=parallel,linger=30"
        return cluster.run(
            "holds_on.py", *args, backend="static", nnodes=2, rank=rank, nproc=2, conf=conf, options=options
        )

    first = node(0)
    cluster.wait_listening()
    text = told_soon("is not complete", cluster.endpoint)
    assert "missing: node rank 1\n" in text
    assert f"  nodes: 0 on {HOST} (pid {first.pid})\n" in text
    refused(cluster.endpoint, "--rdzv-backend=static", "--rdzv-id=other", code=76)
    second = node(1)
    second.wait_for("MASTER_PORT")
    text = told_soon("complete: 2 nodes", cluster.endpoint, "--rdzv-backend=static", "--rdzv-id=train")
    assert f"  nodes: 0 on {HOST} (pid {first.pid}), 1 on {HOST} (pid {second.pid})\n" in text
    assert "\n  the workers' store:\n    store at 127.0.0.1:" in text
    stop.write_text("now")
    assert [first.wait(), second.wait()] == [0, 0]


@pytest.mark.thorough
def test_c10d_says_who_is_there_and_where_its_store_is(cluster: Cluster) -> None:
    stop = cluster.directory / "stop"

    def node() -> Agent:
        options = ["--rdzv-id=train"]
        args = ("wait", stop, 0)
        return cluster.run("holds_on.py", *args, backend="c10d", nnodes=2, nproc=2, conf="linger=30", options=options)

    first = node()
    cluster.wait_listening()
    text = told_soon("1 of 2 nodes are there", cluster.endpoint, "--rdzv-backend=c10d")
    assert f"  nodes: 0 on 127.0.0.1 (pid {first.pid})\n" in text
    second = node()
    second.wait_for("MASTER_PORT")
    store = r"\n  the workers' store at 127.0.0.1:\d+ cannot be asked: .* is a TCPStore of torch"
    text = told_soon(store, cluster.endpoint, "--rdzv-id=train")
    assert f"(pid {first.pid})" in text
    assert f"(pid {second.pid})" in text
    assert "'other'" in refused(cluster.endpoint, "--rdzv-backend=c10d", "--rdzv-id=other")
    stop.write_text("now")
    assert [first.wait(), second.wait()] == [0, 0]


@pytest.fixture
def torchs() -> TCPStore:
    return TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


class Harm:
    def __reduce__(self) -> tuple[Any, ...]:
        return time.sleep, (10_000,)


def test_a_state_that_is_none_of_torchs_is_not_run() -> None:
    torchs = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    for state in (base64.b64encode(pickle.dumps(Harm())), b"not base 64"):
        torchs.set("torch.rendezvous.train", state)
        refused(f"127.0.0.1:{torchs.port}", "--rdzv-backend=c10d", "--rdzv-id=train")


def test_wrong_backends_and_nobody_are_told_apart() -> None:
    port = free_port()
    for flags in (["--rdzv-backend=static"], ["--rdzv-backend=etcd", "--rdzv-id=a", "--timeout=3"]):
        assert "connection refused" in refused(f"127.0.0.1:{port}", *flags)
    with server(port, b"HTTP/1.1 400 Bad Request\r\n\r\n"):
        assert "connection refused" not in refused(f"127.0.0.1:{port}", "--rdzv-backend=static")
    refused(f"127.0.0.1:{port}", "--rdzv-backend=statik", code=2)
