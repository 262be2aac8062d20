"""What nodes measure of the way between them, and what strangers, liars and nodes that stand still can do to them."""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from kits.eventually import eventually
from kits.wire.relay import Relay

from rdzv_plugins.elastic.trial import node as node_module
from rdzv_plugins.elastic.trial.node import NodeTrials
from rdzv_plugins.elastic.trial_keys import Partner, Task, Tried
from rdzv_plugins.options import PortRange

pytestmark = pytest.mark.thorough

HERE = "127.0.0.1"
PATIENCE_S = 60.0


class Node:
    """One, and what it tells the leader."""

    def __init__(self, gloo: bool = False) -> None:
        self.told: queue.SimpleQueue[Tried] = queue.SimpleQueue()
        self.trials = NodeTrials(PortRange(), self.told.put, lambda: 0.002, gloo)
        self.port = self.trials.open(HERE)


@pytest.fixture
def new_node() -> Iterator[Callable[..., Node]]:
    made: list[Node] = []
    before = set(threading.enumerate())

    def make(gloo: bool = False) -> Node:
        made.append(Node(gloo))
        return made[-1]

    yield make
    for each in made:
        each.trials.close()

    def left() -> list[threading.Thread]:
        return [each for each in threading.enumerate() if each.name == "rdzv-preflight" and each not in before]

    eventually(lambda: not left(), left)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is given up only because a process does not get to run for a while, or reads torch from a slow disk."""
    monkeypatch.setattr(node_module, "_DIAL_S", dict.fromkeys(node_module._DIAL_S, PATIENCE_S))
    for limit in ("_WELCOME_S", "_TURN_S", "_FLOW_S", "_GLOO_S", "_END_S"):
        monkeypatch.setattr(node_module, limit, PATIENCE_S)


def asked(me: int, *, dials=(), tests=(), trial="t", **how) -> Task:
    return Task(trial, "measure", me, dials, tests, **{"within": 100.0, "store": True, **how})


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("gloo", [False, True])
def test_two_nodes_measure_the_way_between_them_whatever_strangers_do(new_node, gloo):
    """gloo in processes with torch."""
    one, other = new_node(gloo), new_node(gloo)
    partner = (Partner(1, HERE, other.port),)
    with ExitStack() as strangers:
        for number in range(20):
            stranger = strangers.enter_context(socket.create_connection((HERE, other.port)))
            stranger.sendall(b"x" * 100 * (number % 2))
        one.trials.hear(asked(0, dials=partner, tests=partner, gloo=gloo))  # its partner's task comes later
        other.trials.hear(asked(1, gloo=gloo))
        tried = one.told.get(timeout=100)
    (way,) = tried.ways
    assert (tried.trial, tried.stage, tried.problem, tried.service_us) == ("t", "measure", "", 2000)
    assert (way.to, way.problem) == (1, "")
    assert 0 < way.latency_us < 10_000_000
    assert way.rate > 2**20
    assert (way.gloo_rate > 2**20) is gloo
    assert other.told.get(timeout=100) == Tried("t", "measure", (), 2000)


def test_the_same_task_is_done_once_and_the_next_one_too(new_node):
    node = new_node()
    for _ in range(3):
        node.trials.hear(asked(0))
    node.trials.hear(asked(0, trial="another"))
    assert {node.told.get(timeout=100).trial for _ in range(2)} == {"t", "another"}
    assert node.told.empty()


@pytest.mark.parametrize(("theirs", "problem"), [(asked(1, trial="another"), "no answer within 2 s"), (asked(5), "")])
def test_a_node_of_another_trial_and_another_one_than_is_meant_are_found_out(new_node, theirs, problem):
    one, other = new_node(), new_node()
    other.trials.hear(theirs)
    one.trials.hear(asked(0, dials=(Partner(1, HERE, other.port),)))
    (way,) = one.told.get(timeout=100).ways
    assert way.problem
    assert problem in way.problem


@pytest.mark.usefixtures("patient")
def test_who_refuses_stands_still_or_talks_nonsense_is_named_and_the_rest_measured(new_node, monkeypatch):
    monkeypatch.setitem(node_module._DIAL_S, "measure", 8.0)  # as long as the test waits for the one that stands still
    one, good = new_node(), new_node()
    good.trials.hear(asked(4))
    with socket.create_server((HERE, 0)) as still, socket.create_server((HERE, 0)) as mad, socket.socket() as closed:
        closed.bind((HERE, 0))

        def talk() -> None:
            connection, _ = mad.accept()
            with connection:
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        talking = threading.Thread(target=talk)
        talking.start()
        ports = [each.getsockname()[1] for each in (closed, still, mad)]
        partners = tuple(Partner(number, HERE, port) for number, port in enumerate([*ports, good.port], 1))
        one.trials.hear(asked(0, dials=partners, tests=partners))
        ways = {way.to: way for way in one.told.get(timeout=100).ways}
        talking.join()
    assert "refused" in ways[1].problem
    assert f"{HERE} port {ports[1]}: no answer within 8 s" in ways[2].problem
    assert ways[3].problem == "something other than a node of this job answers there"
    assert ways[4].problem == ""
    assert ways[4].rate


@pytest.mark.usefixtures("patient")
def test_a_way_that_changes_what_it_carries_is_broken(new_node):
    def change_one_bit(data: bytes) -> bytes:
        return data[:3000] + bytes([data[3000] ^ 1]) + data[3001:] if len(data) > 4000 else data

    one, other = new_node(), new_node()
    other.trials.hear(asked(1))
    with Relay(other.port) as relay:
        relay.spoil(change_one_bit)
        partner = (Partner(1, HERE, relay.port),)
        one.trials.hear(asked(0, dials=partner, tests=partner))
        (way,) = one.told.get(timeout=100).ways
    assert way.problem == "what was sent arrives changed: a checksum differs"
