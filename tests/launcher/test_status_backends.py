"""``rdzv status`` of real jobs, by every backend: what is known of their nodes, their store and its proxies."""

from __future__ import annotations

import base64
import contextlib
import json
import pickle
import re
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kits.etcd import etcd_kit
from kits.eventually import eventually
from kits.launcher.elastic_kit import EtcdMeeting, Job, in_one_round
from kits.launcher.harness import Agent, Cluster, Said
from torch.distributed import TCPStore

HOST = socket.gethostname()


class Asks:
    """``rdzv status`` of an endpoint."""

    def __init__(self, rdzv: Callable[..., Said]) -> None:
        self._rdzv = rdzv

    def _ask(self, endpoint: str, *flags: str) -> Said:
        return self._rdzv("status", f"--rdzv-endpoint={endpoint}", *flags)

    def told(self, endpoint: str, *flags: str) -> str:
        said = self._ask(endpoint, *flags)
        assert said.code == 0, said
        return said.out

    def told_soon(self, pattern: str, *asked: str) -> str:
        """What is said once it matches; it may not know of the run yet."""
        said: Said = eventually(
            lambda: (s := self._ask(*asked)).code == 0 and re.search(pattern, s.out) and s, lambda: self._ask(*asked)
        )
        return said.out

    def refused(self, endpoint: str, *flags: str, code: int = 68) -> str:
        said = self._ask(endpoint, *flags)
        assert said.code == code, said
        return said.err


@pytest.fixture
def asks(rdzv: Callable[..., Said]) -> Asks:
    return Asks(rdzv)


@pytest.fixture
def train(one_etcd: etcd_kit.Cluster, tmp_path: Path) -> Iterator[Job]:
    with contextlib.closing(EtcdMeeting(tmp_path, one_etcd)) as meeting:
        yield Job(meeting, 2, script="says.py", conf="ttl=60")


def test_etcd_says_who_is_there_who_leads_and_what_is_waited_for(train: Job, asks: Asks) -> None:
    endpoint = train.meeting.endpoint
    flags = [f"--rdzv-id={train.run_id}"]  # the backend is found by what answers
    first = train.node(0)
    first.wait_for("1 of 2 nodes have joined")
    text = asks.told_soon("1 of 2 nodes have joined", endpoint, *flags)
    assert f"led by {HOST} (node rank 0, pid {first.pid})\n" in text
    assert "missing: node rank 1\n" in text
    assert isinstance(train.meeting, EtcdMeeting)
    before = train.meeting.held(train.run_id)
    asks.told(endpoint, *flags)
    assert train.meeting.held(train.run_id) == before, "asking changes nothing"
    second = train.node(1)
    in_one_round(first, second)
    data = json.loads(asks.told(endpoint, *flags, "--json"))
    assert (data["run"], data["backend"], data["round"]["state"]) == (train.run_id, "etcd", "complete")
    nodes = [(node["rank"], node["host"], node["pid"], node["there"]) for node in data["round"]["nodes"]]
    assert nodes == [(0, HOST, first.pid, True), (1, HOST, second.pid, True)]
    train.finish(first, second)


def holds_on(cluster: Cluster, stop: Path, **job: Any) -> Agent:
    return cluster.run("holds_on.py", "wait", stop, 0, nnodes=2, nproc=2, options=["--rdzv-id=train"], **job)


@pytest.mark.thorough
def test_static_says_who_is_there_and_who_is_missing_and_where_its_store_is(cluster: Cluster, asks: Asks) -> None:
    stop, job = cluster.directory / "stop", {"backend": "static", "conf": "store=parallel,linger=30"}
    first = holds_on(cluster, stop, rank=0, **job)
    cluster.wait_listening()
    text = asks.told_soon("is not complete", cluster.endpoint)
    assert "missing: node rank 1\n" in text
    assert f"  nodes: 0 on {HOST} (pid {first.pid})\n" in text
    asks.refused(cluster.endpoint, "--rdzv-backend=static", "--rdzv-id=other", code=76)
    second = holds_on(cluster, stop, rank=1, **job)
    second.wait_for("MASTER_PORT")
    text = asks.told_soon("complete: 2 nodes", cluster.endpoint, "--rdzv-backend=static", "--rdzv-id=train")
    assert f"  nodes: 0 on {HOST} (pid {first.pid}), 1 on {HOST} (pid {second.pid})\n" in text
    assert "\n  the workers' store:\n    store at 127.0.0.1:" in text
    stop.write_text("now")
    assert [first.wait(), second.wait()] == [0, 0]


@pytest.mark.thorough
def test_c10d_says_who_is_there_and_where_its_store_is(cluster: Cluster, asks: Asks) -> None:
    stop, job = cluster.directory / "stop", {"backend": "c10d", "conf": "linger=30"}
    first = holds_on(cluster, stop, **job)
    cluster.wait_listening()
    text = asks.told_soon("1 of 2 nodes are there", cluster.endpoint, "--rdzv-backend=c10d")
    assert f"  nodes: 0 on 127.0.0.1 (pid {first.pid})\n" in text
    second = holds_on(cluster, stop, **job)
    second.wait_for("MASTER_PORT")
    store = r"\n  the workers' store at 127.0.0.1:\d+ cannot be asked: .* is a TCPStore of torch"
    text = asks.told_soon(store, cluster.endpoint, "--rdzv-id=train")
    assert all(f"(pid {node.pid})" in text for node in (first, second))
    assert "'other'" in asks.refused(cluster.endpoint, "--rdzv-backend=c10d", "--rdzv-id=other")
    stop.write_text("now")
    assert [first.wait(), second.wait()] == [0, 0]


@pytest.mark.thorough
def test_the_endpoint_of_a_job_leads_to_its_store_and_its_proxies(cluster: Cluster, asks: Asks) -> None:
    stop = cluster.directory / "stop"
    agent = cluster.run("holds_on.py", "wait", stop, 0, backend="tiered", nproc=2)
    agent.wait_for(r'"RANK": 1')
    text = asks.told(cluster.endpoint)
    assert f"  nodes: 0 on {HOST} (2 workers)\n" in text
    assert f"\n        node 0 on {HOST} (pid {agent.pid}) at 127.0.0.1:" in text
    (run,) = json.loads(asks.told(cluster.endpoint, "--json"))["runs"]
    (node,) = run["round"]["nodes"]
    assert (node["rank"], node["pid"], node["workers"], node["there"]) == (0, agent.pid, 2, True)
    (keyspace,) = run["round"]["store"]["statistics"]["keyspaces"]
    (trunk,) = keyspace["trunks"]
    assert (keyspace["name"], trunk["attached"]) == ("workers-1", True)
    assert keyspace["connections"] == 2, "one for the node, and the one that asks"
    stop.write_text("now")
    assert agent.wait() == 0, agent.text


class Harm:
    def __reduce__(self) -> tuple[Any, ...]:
        return time.sleep, (10_000,)


def test_a_state_that_is_none_of_torchs_is_not_run(asks: Asks) -> None:
    torchs = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    for state in (base64.b64encode(pickle.dumps(Harm())), b"not base 64"):
        torchs.set("torch.rendezvous.train", state)
        asks.refused(f"127.0.0.1:{torchs.port}", "--rdzv-backend=c10d", "--rdzv-id=train")
