"""Simulated native nodes do what a node does, and notice every answer that is not right."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any, cast

import pytest
from kits.bench.bench_kit import find
from msgspec import structs

from rdzv_launcher.bench import _load
from rdzv_launcher.bench.method.results import read_result
from rdzv_launcher.bench.method.turns import DidNotFinish
from rdzv_launcher.bench.rendezvous.keeper import KeptRun
from rdzv_launcher.bench.rendezvous.phases import wrong_places
from rdzv_launcher.tools import cli as tools
from rdzv_plugins.coordination import Session
from rdzv_plugins.elastic import keys
from rdzv_plugins.elastic.keys import Assignment, Member, Round, decode, encode
from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.kvstore.coordination.sessions import NativeCoordination
from rdzv_plugins.kvstore.native.server import StoreServer

pytestmark = pytest.mark.thorough

NODES = 64
RUN = "simulated"
TTL_S = 60.0
"""Nodes are driven by the test, and say nothing while it does something else."""
SETTINGS = '{"settings": {"nnodes": "64"}, "torch": "2"'


class Leader:
    """A session of whoever leads them, and the nodes: those of one process."""

    def __init__(self, server: StoreServer, session: Session) -> None:
        self.server, self.session = server, session
        self.nodes = self.made(server.port)
        self.ids = [node.id for node in self.nodes.all]
        self.wake, self.waker = socket.socketpair()

    @staticmethod
    def made(port: int) -> _load.Nodes:
        nodes = []
        for number in range(NODES):
            me = Member(f"node{number:02}", "host", "machine", 1, "127.0.0.1", "127.0.0.1", 1)
            nodes.append((me.node_id, encode(me).decode().removesuffix("}"), f"127.1.0.{number % 3 + 1}"))
        by = f'{SETTINGS}, "by": "node"}}'
        return _load.Nodes("127.0.0.1", port, run=RUN, ttl=TTL_S, settings=by, alike=SETTINGS, nodes=nodes)

    def put(self, **items: object) -> None:
        assert self.session.put(items, timeout=10)

    def tell(self, round_: int, ids: list[str], change: Callable[[Assignment], Assignment] = lambda a: a) -> None:
        """All of them have places in a round, which is complete; ``change`` is made to the last one's."""
        port = self.server.port
        places = {}
        for rank, node in enumerate(ids):
            place = Assignment(round_, rank, len(ids), node, master_addr="127.0.0.1", master_port=port)
            places[keys.NODES + node] = encode(change(place) if node == ids[-1] else place)
        self.put(**places)
        self.put(**{keys.ROUND: encode(Round(round_, "complete", len(ids)))})

    def join(self, joins: int) -> None:
        """Until so many have joined; raises what goes wrong."""
        self.nodes.expect(joins)
        assert self.nodes.drive(self.wake.fileno())
        assert self.nodes.joined == joins

    def facts(self) -> dict[int, dict[str, int]]:
        return {
            number: {"rank": node.rank, "world": node.world, "round": node.round}
            for number, node in enumerate(self.nodes.all)
        }


@pytest.fixture
def leader() -> Iterator[Leader]:
    with ExitStack() as ends, StoreServer("127.0.0.1") as server:
        backend = NativeCoordination(Endpoint("127.0.0.1", server.port), RUN, name="test", who="the server")
        ends.callback(backend.close)
        made = Leader(server, backend.open_session(TTL_S, on_lost=lambda error: None, timeout=10))
        ends.enter_context(made.wake)
        ends.enter_context(made.waker)
        yield made


def test_nodes_join_and_join_again_after_one_has_gone(leader) -> None:
    leader.tell(1, leader.ids)
    leader.nodes.join()
    leader.join(NODES)
    facts = leader.facts()
    assert facts == {number: {"rank": number, "world": NODES, "round": 1} for number in range(NODES)}
    assert wrong_places(facts) == ""
    assert {tuple(node.asked.items()) for node in leader.nodes.all} == {(("open_session", 1), ("put", 3), ("watch", 2))}
    leader.nodes.close(0)
    leader.put(**{keys.ROUND: encode(Round(1, "over", NODES, "one was lost", "lost"))})
    leader.tell(2, leader.ids[:0:-1])
    leader.join(NODES - 1)
    facts = leader.facts()
    del facts[0]
    assert facts == {n: {"rank": NODES - 1 - n, "world": NODES - 1, "round": 2} for n in range(1, NODES)}
    held, _ = leader.session.list(keys.MEMBERS, timeout=10)
    said = [decode(Member, kv.value) for kv in held]
    assert {(each.after, each.reached) for each in said} == {(1, 2)}
    assert len(said) == NODES - 1
    assert {node.asked["put"] for node in leader.nodes.all[1:]} == {5}


def test_what_the_keeper_says_is_heard_while_they_wait(leader) -> None:
    leader.nodes.join()
    leader.nodes.expect(NODES)
    leader.waker.send(b"report")
    assert not leader.nodes.drive(leader.wake.fileno())
    assert leader.wake.recv(100) == b"report"
    leader.tell(1, leader.ids)
    leader.join(NODES)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"node_id": "node07"}, "simulated node node63: it was told the place of node node07"),
        ({"rank": NODES}, "it was told rank 64 of 64"),
        ({"rank": -1}, "it was told rank -1 of 64"),
        ({"world": NODES + 1}, "it was told a world of 65 nodes, and all of 64"),
        ({"master_addr": ""}, "it was asked to serve the workers' store, which a simulated node cannot"),
        ({"left_out": "it is late"}, "it has no place: it is late"),
        ({"refused": "twice"}, "it has no place: twice"),
    ],
)
def test_wrong_place_is_noticed(leader, change, error) -> None:
    leader.tell(1, leader.ids, lambda place: structs.replace(place, **change))
    leader.nodes.join()
    with pytest.raises(_load.LoadError, match=error):
        leader.join(NODES)


@pytest.mark.parametrize(
    ("key", "value", "error"),
    [
        (keys.ROUND, b'{"number":"one"}', "not a whole number: one"),
        (keys.ROUND, b'{"number":1,"state":3}', "not a text: 3"),
        (keys.ROUND, b'{"number":[1]}', r"not a flat JSON object: \{\"number\":\[1\]\}"),
        (keys.ROUND, b'{"number":1', "not a flat JSON object"),
        (keys.ROUND, encode(Round(1, "failed")), "round 1 has failed"),
        (keys.END, b"that is all", "the job has ended: that is all"),
        (keys.JOB, b'{"settings": {"nnodes": "4"}, "torch": "2", "by": "x"}', "the job has other settings"),
    ],
)
def test_wrong_word_is_noticed(leader, key, value, error) -> None:
    leader.put(**{key: value})
    leader.nodes.join()
    with pytest.raises(_load.LoadError, match=error):
        leader.join(NODES)


def test_service_that_goes_is_noticed(leader) -> None:
    leader.tell(1, leader.ids)
    leader.nodes.join()
    leader.join(NODES)
    leader.server.close()
    with pytest.raises(_load.LoadError, match="simulated node node"):
        leader.join(NODES)


def test_stranger_is_noticed(leader) -> None:
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        nodes = leader.made(stranger.getsockname()[1])
        nodes.join()
        leader.waker.send(b"x")
        while not nodes.drive(leader.wake.fileno()) and not leader.wake.recv(1):
            pass
        connection, _ = stranger.accept()
        with connection:
            connection.send(b"HTTP/1.1 400 Bad Request\r\n")
            with pytest.raises(_load.LoadError, match="what answers is not a native store of this version"):
                nodes.drive(leader.wake.fileno())


def test_store_that_listens_late_is_dialled_again(leader) -> None:
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))  # nobody listens there yet
        leader.tell(1, leader.ids, lambda each: structs.replace(each, master_port=place.getsockname()[1]))
        leader.nodes.join()
        leader.join(NODES - 1)
        with StoreServer(listen_fd=place.detach()):
            leader.join(1)


PLACE = {"rank": 0, "world": 2, "round": 4}


@pytest.mark.parametrize(
    ("changes", "wrong"),
    [
        ({}, ""),
        ({"rank": 0}, "rank 0 is that of 2 nodes, node 0 is one of them"),
        ({"rank": 2}, "node 5 has rank 2 in a round of 2 nodes"),
        ({"world": 3}, "node 5 was told a world of 3 nodes, of which there are 2"),
        ({"round": 5}, "the nodes are in rounds 4, 5"),
    ],
)
def test_places_that_do_not_fit_together_are_wrong(changes, wrong) -> None:
    assert wrong_places({0: PLACE, 5: {**PLACE, "rank": 1, **changes}}) == wrong


class Child(SimpleNamespace):
    __hash__ = object.__hash__


def test_round_with_wrong_places_is_no_figure() -> None:
    """The keeper of the run, with a process that answers what it is told to answer."""
    nodes = [{"number": number, "asked": None, "leads": False, "key": ""} | PLACE for number in (0, 1)]
    report = {"joins": 2, "known_at": None, "cpu_s": 0.0, "cpu_after_s": 0.0, "memory_mib": 0.0}
    answers = {"nodes": {"nodes": nodes} | report, "joined": {"began": 1.0, "last": 2.0}}
    child = Child(numbers=[0, 1], expected=2, pid=7, send=lambda *words, **more: None)
    children = SimpleNamespace(living=[child], ask=lambda group, key, limit_s, late: {child: answers[key]})
    service = {"probe": "", "endpoint": "", "machine": {"address": ""}, "pids": [], "apart": False}
    task = {"service": service, "processes": [], "native": True}
    run = KeptRun(task, cast(Any, children), cast(Any, None))
    with pytest.raises(DidNotFinish, match="wrong places: rank 0 is that of 2 nodes, node 0 is one of them"):
        run._measure("joined", lambda: None, 1.0)
    nodes[1]["rank"] = 1
    assert run._measure("joined", lambda: None, 1.0).seconds == 1


def test_native_nodes_are_measured(capfd, tmp_path) -> None:
    flags = "--quick --json --simulate=native --server=process --processes=2 --hosts=loopback --nodes=64 --ttl=20"
    targets = ("--backends=parallel,tiered,static", "--references=none")
    assert tools.main(["bench", "rendezvous", *flags.split(), *targets]) == 0
    file = tmp_path / "result.jsonl"
    file.write_text(capfd.readouterr().out)
    result = read_result(file)
    (case,) = result.details
    assert case["processes"] == 4
    (run,) = case["targets"]["parallel"]
    assert run["unfinished"] == ""
    assert run["join"]["per_node"] == {"open_session": 1, "put": 3, "watch": 2}
    assert run["loss"]["per_node"] == {"put": 2}
    assert run["join"]["served"]["open_session"] == NODES
    assert run["loss"]["served"]["put"] >= 2 * (NODES - 1)
    for phase in ("join", "loss"):
        (seconds,) = find(result, "64 nodes", "parallel", f"cpu_first_{phase}").samples
        assert seconds > 0
    reasons = {name: find(result, "64 nodes", name, "join").unfinished for name in ("tiered", "static")}
    assert reasons == {
        "tiered": "a node gave up: not measured: simulated native nodes have no proxies",
        "static": "not measured: simulated native nodes speak to a native store alone",
    }
    assert json.dumps(result.manifest["options"]["simulate"]) == '"native"'
