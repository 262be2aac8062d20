"""``rdzv status`` at the endpoint of jobs: their rounds, and the workers' store of each, wherever it is."""

from __future__ import annotations

import contextlib
import json
import socket
from argparse import Namespace
from collections.abc import Iterator
from typing import Any

import pytest
from kits.eventually import eventually
from torch.distributed import TCPStore

from rdzv_launcher.tools import status
from rdzv_launcher.tools.job import Meeting, request_of
from rdzv_plugins.elastic import keys
from rdzv_plugins.elastic.keys import Assignment, Member, Round, encode
from rdzv_plugins.elastic.observing import observe
from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.errors import EndpointUnreachable, UsageError
from rdzv_plugins.kvstore.coordination.sessions import NativeCoordination
from rdzv_plugins.kvstore.native.server import StoreServer

TIMEOUT_S = 60


@pytest.fixture
def meeting() -> Iterator[StoreServer]:
    """The server at the endpoint of several runs."""
    with StoreServer("127.0.0.1", threads=1) as server:
        yield server


class Run:
    """The nodes of a run, as far as their keys go."""

    def __init__(self, meeting: StoreServer, name: str) -> None:
        self._service = NativeCoordination(Endpoint("127.0.0.1", meeting.port), name, name="test", who="the test")
        self.session = self._service.open_session(60, on_lost=lambda _: None, timeout=TIMEOUT_S)

    def put(self, **items: bytes) -> None:
        self.session.put({key.replace("__", "/"): value for key, value in items.items()}, timeout=TIMEOUT_S)

    def join(self, *ids: str) -> None:
        for each in ids:
            member = Member(each, f"host-{each}", "m", 1, "127.0.0.1", "127.0.0.1", 2)
            self.session.put({keys.MEMBERS + each: encode(member)}, ephemeral=True, timeout=TIMEOUT_S)

    def complete(self, number: int, port: int, *ids: str, address: str = "127.0.0.1", store: str = "parallel") -> None:
        for rank, each in enumerate(ids):
            place = Assignment(
                number, rank, len(ids), each, f"host-{each}", "m", 100 + rank, "127.0.0.1", 2, None, address, port
            )
            self.session.put({keys.NODES + each: encode(place)}, timeout=TIMEOUT_S)
        self.put(job=json.dumps({"settings": {"store": store}}).encode())
        self.declare(Round(number, "complete", len(ids)))

    def declare(self, round_: Round) -> None:
        self.session.put({keys.ROUND: encode(round_)}, timeout=TIMEOUT_S)

    def close(self) -> None:
        self._service.close()


@pytest.fixture
def run(meeting: StoreServer) -> Iterator[Run]:
    with contextlib.closing(Run(meeting, "train")) as run:
        yield run


def asked(endpoint: str, run_id: str = "", *, json: bool = False) -> Namespace:
    where = {"rdzv_endpoint": endpoint, "rdzv_backend": "", "rdzv_id": run_id, "rdzv_conf": ""}
    return Namespace(**where, json=json, timeout=60.0)


def ask(server: StoreServer, capsys: pytest.CaptureFixture[str], *, json: bool = False) -> str:
    assert status.run(asked(f"127.0.0.1:{server.port}", json=json)) == 0
    return capsys.readouterr().out


def round_of(server: StoreServer, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    (run,) = json.loads(ask(server, capsys, json=True))["runs"]
    found: dict[str, Any] = run["round"]
    return found


def test_the_workers_store_of_the_round_is_found_and_shown(meeting: StoreServer, run: Run, capsys) -> None:
    run.join("a", "b")
    with StoreServer("127.0.0.1", threads=1, name="workers-3") as store:
        run.complete(3, store.port, "a", "b")
        client = TCPStore("127.0.0.1", store.port, is_master=False)
        client.set("here", "1")
        assert client.check(["here"]), "it is there: nobody answers when it is set"
        before = meeting.stats()["runs"]
        text, found = ask(meeting, capsys), round_of(meeting, capsys)
        eventually(lambda: meeting.stats()["runs"] == before, lambda: "asking leaves a trace in the run")
    assert "\n  nodes: 0 on host-a (2 workers), 1 on host-b (2 workers)\n" in text
    assert f"\n    keyspace 'workers-3', port {store.port}: 1 keys, 0 queues, 6 B\n" in text
    assert found["store"]["statistics"]["requests"]["set"] == 1
    assert [(node["rank"], node["host"], node["workers"], node["there"]) for node in found["nodes"]] == [
        (0, "host-a", 2, True),
        (1, "host-b", 2, True),
    ]


def test_a_store_that_cannot_be_reached_is_named_and_nothing_else_suffers(
    meeting: StoreServer, run: Run, capsys
) -> None:
    run.join("a")
    with socket.socket() as nobody, contextlib.closing(Run(meeting, "other")) as other:
        nobody.bind(("127.0.0.1", 0))
        port = nobody.getsockname()[1]
        run.complete(1, port, "a", "b")
        other.put(all__progress=b"1 of 2 nodes: host-x")
        text = ask(meeting, capsys)
    assert "  no longer there: 1 on host-b (pid 101)\n" in text
    assert f"127.0.0.1:{port} cannot be asked" in text
    assert "1 of 2 nodes: host-x\n" in text


@pytest.fixture
def places() -> Iterator[list[StoreServer]]:
    """The servers at the endpoints of jobs that name several."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(StoreServer("127.0.0.1", threads=1)) for _ in range(2)]


@pytest.fixture
def refusing() -> Iterator[list[str]]:
    """Endpoints at which nobody listens, nor can begin to."""
    with contextlib.ExitStack() as stack:
        taken = [stack.enter_context(socket.socket()) for _ in range(3)]
        for each in taken:
            each.bind(("127.0.0.1", 0))
        yield [f"127.0.0.1:{each.getsockname()[1]}" for each in taken]


def test_of_several_endpoints_the_one_that_serves_the_job_is_found(
    places: list[StoreServer], refusing: list[str], capsys
) -> None:
    with contextlib.ExitStack() as stack:
        runs = [stack.enter_context(contextlib.closing(Run(place, "train"))) for place in places]
        stack.enter_context(contextlib.closing(Run(places[0], "other")))
        runs[0].join("a", "b")
        runs[0].declare(Round(3, "over", 2, "its server stood still"))
        runs[1].join("a", "b")
        runs[1].complete(4, 1, "a", "b", store="torch")
        gone = refusing[0]
        endpoint = ",".join([*(f"127.0.0.1:{place.port}" for place in places), gone])
        assert status.run(asked(endpoint, "train")) == 0
        found = capsys.readouterr()
        serving = f"127.0.0.1:{places[1].port}"
        assert "round 4 " in found.out
        assert all(each in found.err for each in (gone, serving))
        with pytest.raises(UsageError, match="'other', 'train'"):
            status.run(asked(endpoint))
        with pytest.raises(EndpointUnreachable, match="'third'"):
            status.run(asked(endpoint, "third"))
        # as rdzv stacks and rdzv top reach a job
        meeting = Meeting(request_of(asked(endpoint, "train")), 60.0, who="the test", otherwise="Leave it.")
        service, name = meeting.service()
        assert (observe(service, 60.0).number, name) == (4, "train")
    with pytest.raises(EndpointUnreachable):
        status.run(asked(",".join(refusing)))
    with pytest.raises(UsageError, match="a:1"):
        status.run(asked("a:1,a:1"))


def test_keys_of_another_version_are_a_problem_of_that_run_alone(meeting: StoreServer, run: Run, capsys) -> None:
    run.put(all__round=b"not JSON")
    with contextlib.closing(Run(meeting, "other")):
        text = ask(meeting, capsys)
    assert all(f"run '{each}'" in text for each in ("train", "other"))
