"""``rdzv status``: what an endpoint says of its jobs, their nodes, rounds and stores, by every backend."""

from __future__ import annotations

import base64
import json
import pickle
import re
import socket
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest
from kits.eventually import eventually
from kits.launcher.elastic_kit import EtcdMeeting, Job, Meeting, in_one_round
from kits.launcher.harness import Cluster, Said
from torch.distributed import TCPStore

from rdzv_launcher.tools import job as tools
from rdzv_plugins.elastic import keys
from rdzv_plugins.elastic.keys import Assignment, Member, Round, encode
from rdzv_plugins.elastic.observer import observe
from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.kvstore.coordination.sessions import NativeCoordination
from rdzv_plugins.kvstore.native.server import StoreServer

HOST = socket.gethostname()
PATIENCE_S = 60


class Asks:
    """``rdzv status`` of an endpoint."""

    def __init__(self, rdzv: Callable[..., Said]) -> None:
        self._rdzv = rdzv

    def __call__(self, endpoint: str, *flags: str, code: int = 0) -> str:
        """What it says, or what it says on standard error if it is refused."""
        said = self._rdzv("status", f"--rdzv-endpoint={endpoint}", *flags)
        assert said.code == code, said
        return said.err if code else said.out

    def soon(self, pattern: str, endpoint: str, *flags: str) -> str:
        """What is said once it matches; it may not know of the run yet."""

        def matching() -> Said | None:
            said = self._rdzv("status", f"--rdzv-endpoint={endpoint}", *flags)
            return said if said.code == 0 and re.search(pattern, said.out) else None

        said: Said = eventually(matching, lambda: f"no {pattern!r}")
        return said.out


@pytest.fixture
def asks(rdzv: Callable[..., Said]) -> Asks:
    return Asks(rdzv)


@pytest.mark.parametrize("backend", ["parallel", pytest.param("etcd", marks=pytest.mark.thorough)], indirect=True)
def test_it_says_who_is_there_who_leads_and_what_is_waited_for(meeting: Meeting, asks: Asks) -> None:
    job = Job(meeting, 2, script="says.py", conf="ttl=60")
    endpoint, flags = meeting.endpoint, [f"--rdzv-id={job.run_id}"]  # the backend is found by what answers
    first = job.node(0)
    first.wait_for("1 of 2 nodes have joined")
    text = asks.soon("1 of 2 nodes have joined", endpoint, *flags)
    assert "missing: node rank 1\n" in text
    if isinstance(meeting, EtcdMeeting):
        assert f"led by {HOST} (node rank 0, pid {first.pid})\n" in text
        before = meeting.held(job.run_id)
        asks(endpoint, *flags)
        assert meeting.held(job.run_id) == before, "asking changes nothing"
    second = job.node(1)
    in_one_round(first, second)
    data = json.loads(asks(endpoint, *flags, "--json"))
    run, name = (data, "run") if isinstance(meeting, EtcdMeeting) else (data["runs"][0], "name")
    assert (run[name], run["round"]["state"]) == (job.run_id, "complete")
    nodes = [(node["rank"], node["host"], node["pid"], node["there"]) for node in run["round"]["nodes"]]
    assert nodes == [(0, HOST, first.pid, True), (1, HOST, second.pid, True)]
    job.finish(first, second)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("backend", "conf", "waiting", "store"),
    [
        ("static", "store=parallel,linger=30", "is not complete", r"the workers' store:\n    store at 127.0.0.1:"),
        ("c10d", "linger=30", "1 of 2 nodes are there", "the workers' store at .* gives no statistics: .* a TCPStore"),
    ],
)
def test_a_job_of_torchs_store(cluster: Cluster, asks: Asks, backend: str, conf: str, waiting: str, store: str) -> None:
    stop, host = cluster.directory / "stop", {"static": HOST, "c10d": "127.0.0.1"}[backend]

    def node(rank: int) -> Any:
        given = {"rank": rank} if backend == "static" else {}
        options = {"backend": backend, "conf": conf, "options": ["--rdzv-id=train"], **given}
        return cluster.run("says.py", stop, 0, nnodes=2, nproc=2, **options)

    first = node(0)
    cluster.wait_listening()
    flags = [f"--rdzv-backend={backend}"]
    text = asks.soon(waiting, cluster.endpoint, *flags)
    assert f"  nodes: 0 on {host} (pid {first.pid})\n" in text
    assert backend == "c10d" or "missing: node rank 1\n" in text
    asks(cluster.endpoint, *flags, "--rdzv-id=other", code=76 if backend == "static" else 68)
    second = node(1)
    second.wait_for("MASTER_PORT")
    text = asks.soon(store, cluster.endpoint, "--rdzv-id=train")
    assert all(f"(pid {each.pid})" in text for each in (first, second))
    stop.touch()
    assert [first.wait(), second.wait()] == [0, 0]


@pytest.mark.thorough
def test_the_endpoint_of_a_job_leads_to_its_store_and_its_proxies(cluster: Cluster, asks: Asks) -> None:
    stop = cluster.directory / "stop"
    agent = cluster.run("says.py", stop, 0, backend="tiered", nproc=2)
    agent.wait_for('"RANK": "1"')
    text = asks(cluster.endpoint)
    assert f"  nodes: 0 on {HOST} (2 workers)\n" in text
    assert f"\n        node 0 on {HOST} (pid {agent.pid}) at 127.0.0.1:" in text
    (run,) = json.loads(asks(cluster.endpoint, "--json"))["runs"]
    (keyspace,) = run["round"]["store"]["statistics"]["keyspaces"]
    (trunk,) = keyspace["trunks"]
    assert (keyspace["name"], trunk["attached"]) == ("workers-1", True)
    assert keyspace["connections"] == 2, "one for the node, and the one that asks"
    stop.touch()
    assert agent.wait() == 0, agent.text


class Harm:
    def __reduce__(self) -> tuple[Any, ...]:
        return time.sleep, (10_000,)


def test_a_state_that_is_none_of_torchs_is_not_run(asks: Asks) -> None:
    torchs = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    for state in (base64.b64encode(pickle.dumps(Harm())), b"not base 64"):
        torchs.set("torch.rendezvous.train", state)
        asks(f"127.0.0.1:{torchs.port}", "--rdzv-backend=c10d", "--rdzv-id=train", code=68)


class Run:
    """The nodes of a run at a server, as far as their keys go."""

    def __init__(self, server: StoreServer, name: str) -> None:
        self._service = NativeCoordination(Endpoint("127.0.0.1", server.port), name, name="test", who="the test")
        self.session = self._service.open_session(60, on_lost=lambda _: None, timeout=PATIENCE_S)

    def put(self, key: str, value: bytes, *, ephemeral: bool = False) -> None:
        self.session.put({key: value}, ephemeral=ephemeral, timeout=PATIENCE_S)

    def join(self, *ids: str) -> None:
        for each in ids:
            member = Member(each, f"host-{each}", "m", 1, "127.0.0.1", "127.0.0.1", 2)
            self.put(keys.MEMBERS + each, encode(member), ephemeral=True)

    def complete(self, number: int, port: int, *ids: str, store: str = "parallel") -> None:
        for rank, each in enumerate(ids):
            node = (each, f"host-{each}", "m", 100 + rank, "127.0.0.1", 2, None, "127.0.0.1", port)
            self.put(keys.NODES + each, encode(Assignment(number, rank, len(ids), *node)))
        self.put("job", json.dumps({"settings": {"store": store}}).encode())
        self.put(keys.ROUND, encode(Round(number, "complete", len(ids))))

    def close(self) -> None:
        self._service.close()


@pytest.fixture
def open_() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def servers(open_: ExitStack) -> list[StoreServer]:
    """The servers at the endpoints of jobs."""
    return [open_.enter_context(StoreServer("127.0.0.1", threads=1)) for _ in range(2)]


def at(*servers: StoreServer) -> str:
    return ",".join(f"127.0.0.1:{each.port}" for each in servers)


def nobody(open_: ExitStack) -> int:
    """A port at which nobody listens, nor can begin to."""
    taken = open_.enter_context(socket.socket())
    taken.bind(("127.0.0.1", 0))
    return int(taken.getsockname()[1])


def test_the_workers_store_of_the_round_is_found_and_shown(
    open_: ExitStack, servers: list[StoreServer], asks: Asks
) -> None:
    server, run = servers[0], open_.enter_context(closing(Run(servers[0], "train")))
    run.join("a", "b")
    store = open_.enter_context(StoreServer("127.0.0.1", threads=1, name="workers-3"))
    run.complete(3, store.port, "a", "b")
    client = TCPStore("127.0.0.1", store.port, is_master=False)
    client.set("here", "1")
    assert client.check(["here"]), "it is there: nobody answers when it is set"
    before = server.stats()["runs"]
    text, data = asks(at(server)), json.loads(asks(at(server), "--json"))
    eventually(lambda: server.stats()["runs"] == before, lambda: "asking leaves a trace in the run")
    assert "\n  nodes: 0 on host-a (2 workers), 1 on host-b (2 workers)\n" in text
    assert f"\n    keyspace 'workers-3', port {store.port}: 1 keys, 0 queues, 6 B\n" in text
    (found,) = data["runs"]
    assert found["round"]["store"]["statistics"]["requests"]["set"] == 1
    told = [(node["rank"], node["host"], node["workers"], node["there"]) for node in found["round"]["nodes"]]
    assert told == [(0, "host-a", 2, True), (1, "host-b", 2, True)]


def test_what_cannot_be_reached_or_read_is_named_and_nothing_else_suffers(
    open_: ExitStack, servers: list[StoreServer], asks: Asks
) -> None:
    """A store that is gone, and keys of another version."""
    runs = [open_.enter_context(closing(Run(servers[0], name))) for name in ("train", "waits", "newer")]
    port = nobody(open_)
    runs[0].join("a")
    runs[0].complete(1, port, "a", "b")
    runs[1].put(keys.PROGRESS, b"1 of 2 nodes: host-x")
    runs[2].put(keys.ROUND, b"not JSON")
    text = asks(at(servers[0]))
    assert "  gone: 1 on host-b (pid 101)\n" in text
    assert f"127.0.0.1:{port} gives no statistics" in text
    assert "1 of 2 nodes: host-x\n" in text
    assert all(f"run '{each}'" in text for each in ("train", "waits", "newer"))


def test_of_several_endpoints_the_one_that_serves_the_job_is_found(
    open_: ExitStack, servers: list[StoreServer], rdzv: Callable[..., Said], asks: Asks
) -> None:
    runs = [open_.enter_context(closing(Run(each, "train"))) for each in servers]
    open_.enter_context(closing(Run(servers[0], "other")))
    for each in runs:
        each.join("a", "b")
    runs[0].put(keys.ROUND, encode(Round(3, "over", 2, "its server stood still")))
    runs[1].complete(4, 1, "a", "b", store="torch")
    refusing = [f"127.0.0.1:{nobody(open_)}" for _ in range(3)]
    endpoint = f"{at(*servers)},{refusing[0]}"
    found = rdzv("status", f"--rdzv-endpoint={endpoint}", "--rdzv-id=train")
    assert "round 4 " in found.out
    assert all(each in found.err for each in (refusing[0], at(servers[1])))
    assert "'other', 'train'" in asks(endpoint, code=2)
    assert "'third'" in asks(endpoint, "--rdzv-id=third", code=68)
    assert asks(",".join(refusing), code=68)
    assert "a:1" in asks("a:1,a:1", code=2)
    # as rdzv stacks and rdzv top reach a job
    args = Namespace(rdzv_endpoint=endpoint, rdzv_backend="", rdzv_id="train", rdzv_conf="")
    service, name = tools.Meeting(tools.request_of(args), 60.0, who="the test", otherwise="Leave it.").service()
    assert (observe(service, 60.0).number, name) == (4, "train")
