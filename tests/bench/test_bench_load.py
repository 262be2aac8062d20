"""The native load generators (clients, nodes, proxies) count right, and notice every answer that is not right."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest
from msgspec import structs

from rdzv_launcher.bench import _load
from rdzv_launcher.bench.method.turns import DidNotFinish
from rdzv_launcher.bench.processes.load import proxies
from rdzv_plugins.elastic import keys
from rdzv_plugins.elastic.keys import Assignment, Member, Round, encode
from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.kvstore.coordination.sessions import NativeCoordination
from rdzv_plugins.kvstore.native.proxy import StoreProxy
from rdzv_plugins.kvstore.native.server import StoreServer

pytestmark = pytest.mark.thorough

LIMIT_S = 60.0

# clients of a store

N, ROUNDS, GETS = 20, 3, 4
REQUESTS = {
    "barrier": {"add": N * ROUNDS, "set": ROUNDS, "wait": (N - 1) * ROUNDS},
    "mesh": {"set": N, "wait": 2 * GETS * N, "get": GETS * N},
    "one_key": {"set": ROUNDS, "wait": (N - 1) * ROUNDS, "get": N * ROUNDS},
    "fill": {"set": 512, "get": 1},
    "multi_get": {"wait": N * ROUNDS, "multi_get": N * ROUNDS},
}
Answer = Callable[[socket.socket], object]


def connect(port: int, count: int = N, *, storm: bool = False, limit_s: float = LIMIT_S) -> tuple:
    load = _load.Load("127.0.0.1", port)
    return load, load.connect(count, window=count, sources=[], storm=storm, limit_s=limit_s)


def run(load: _load.Load, workload: str, limit_s: float = LIMIT_S) -> _load.Figures:
    return load.run(workload, prefix="/test", rounds=ROUNDS, gets=GETS, limit_s=limit_s)


def test_counts_are_those_of_the_server() -> None:
    with StoreServer("127.0.0.1") as server:
        load, figures = connect(server.port)
        assert (figures.requests, figures.timed, figures.failures) == (2 * N, N, {})
        seen = server.stats()["requests"]
        assert (seen["validate"], seen["ping"]) == (N, N)
        for workload, expected in REQUESTS.items():
            before = server.stats()["requests"]
            figures = run(load, workload)
            assert figures.requests == sum(expected.values())
            assert 0 < figures.p50_us <= figures.p99_us <= figures.seconds * 1e6
            after = server.stats()["requests"]
            assert {name: n - before[name] for name, n in after.items() if n != before[name]} == expected, workload
        load.close()


@contextmanager
def fake_server(answer: Answer, nonce: bytes = b"") -> Iterator[int]:
    """A server that shakes hands as it should, and then does what the test says; its port."""

    def serve() -> None:
        with listener.accept()[0] as client:
            asked = client.recv(10, socket.MSG_WAITALL)[6:]
            client.sendall(nonce or asked)
            answer(client)
            try:
                while client.recv(65536):  # until the load hangs up
                    pass
            except ConnectionResetError:
                pass

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()[1]
        thread.join()


def after(end: bytes, reply: bytes) -> Answer:
    """Send ``reply`` to the request that ends with ``end``."""

    def answer(client: socket.socket) -> None:
        said = b""
        while not said.endswith(end):
            said += client.recv(65536)
        client.sendall(reply)

    return answer


def hang_up(client: socket.socket) -> None:
    client.recv(65536)
    client.shutdown(socket.SHUT_WR)


ADD, GET = struct.pack("<q", 1), b"/small/1511"  # how the request ends
WRONG_REPLIES = {
    "a count beyond the clients": ("barrier", after(ADD, struct.pack("<q", 2)), _load.LoadError, "add: 2"),
    "another length": ("fill", after(GET, struct.pack("<q", 17)), _load.LoadError, "get: byte 0 of 24"),
    "another value": ("fill", after(GET, struct.pack("<q", 16) + b"?"), _load.LoadError, "get: byte 8 of 24"),
    "more than asked for": ("barrier", after(ADD, bytes(9)), _load.LoadError, "add: byte 8 of 8"),
    "a closed connection": ("barrier", hang_up, _load.ConnectionLost, "connection 0"),
}


@pytest.mark.parametrize(("workload", "answer", "kind", "named"), WRONG_REPLIES.values(), ids=WRONG_REPLIES)
def test_wrong_reply_of_a_store_is_named(workload, answer, kind, named) -> None:
    with fake_server(answer) as port:
        load, _ = connect(port, 1)
        with pytest.raises(kind, match=f"^{workload}: connection 0: .*{named}|^{workload}: {named}"):
            run(load, workload)
        load.close()


def test_wrong_answer_to_ping_ends_even_a_storm() -> None:
    with fake_server(lambda client: None, nonce=b"pong") as port, pytest.raises(_load.LoadError, match="ping: byte 0"):
        connect(port, 1, storm=True)


def test_store_that_does_not_answer_is_no_liar() -> None:
    with fake_server(lambda client: None) as port:
        load, _ = connect(port, 1)
        with pytest.raises(_load.TimeLimit, match=r"1 of 1 clients .* connection 0 .* add$"):
            run(load, "barrier", limit_s=0.1)
        load.close()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        _, figures = connect(silent.getsockname()[1], 3, storm=True, limit_s=0.1)
        assert [*figures.failures.values()] == [3]
        port = silent.getsockname()[1]
    load, figures = connect(port, 3, storm=True)
    assert figures.failures == {"connect: Connection refused": 3}
    with pytest.raises(_load.LoadError, match="connection 0 is not there"):
        run(load, "barrier")


# nodes, whose leader is the test

NODES = 64
TTL_S = 60.0
"""Nodes are driven by the test, and say nothing while it does something else."""
SETTINGS = '{"settings": {"nnodes": "64"}, "torch": "2"'


class Leader:
    """A session of whoever leads them, and the nodes: those of one process."""

    def __init__(self, server: StoreServer, ends: ExitStack) -> None:
        backend = NativeCoordination(Endpoint("127.0.0.1", server.port), "simulated", name="test", who="the server")
        ends.callback(backend.close)
        self.server = server
        self.session = backend.open_session(TTL_S, on_lost=lambda error: None, timeout=10)
        self.nodes = self.made(server.port)
        self.ids = [node.id for node in self.nodes.all]
        self.wake, self.waker = (ends.enter_context(end) for end in socket.socketpair())

    @staticmethod
    def made(port: int) -> _load.Nodes:
        nodes = []
        for number in range(NODES):
            me = Member(f"node{number:02}", "host", "machine", 1, "127.0.0.1", "127.0.0.1", 1)
            nodes.append((me.node_id, encode(me).decode().removesuffix("}"), f"127.1.0.{number % 3 + 1}"))
        by = f'{SETTINGS}, "by": "node"}}'
        return _load.Nodes("127.0.0.1", port, run="simulated", ttl=TTL_S, settings=by, alike=SETTINGS, nodes=nodes)

    def put(self, **items: object) -> None:
        assert self.session.put(items, timeout=10)

    def tell(self, round_: int, ids: list[str], **last: object) -> None:
        """All of them have places in a round, which is complete; ``last`` is changed in the last one's."""
        places = {}
        for rank, node in enumerate(ids):
            place = Assignment(round_, rank, len(ids), node, master_addr="127.0.0.1", master_port=self.server.port)
            places[keys.NODES + node] = encode(structs.replace(place, **last) if node == ids[-1] else place)
        self.put(**places)
        self.put(**{keys.ROUND: encode(Round(round_, "complete", len(ids)))})

    def join(self, joins: int) -> None:
        """Until so many have joined; raises what goes wrong."""
        self.nodes.expect(joins)
        assert self.nodes.drive(self.wake.fileno())
        assert self.nodes.joined == joins

    def places(self) -> list[tuple[int, int, int]]:
        return [(node.rank, node.world, node.round) for node in self.nodes.all]


@pytest.fixture
def leader() -> Iterator[Leader]:
    with ExitStack() as ends, StoreServer("127.0.0.1") as server:
        yield Leader(server, ends)


def test_nodes_join_and_join_again_after_one_has_gone(leader) -> None:
    leader.tell(1, leader.ids)
    leader.nodes.join()
    leader.waker.send(b"report")  # what the keeper says is heard while they wait
    leader.nodes.expect(NODES)
    assert not leader.nodes.drive(leader.wake.fileno())
    assert leader.wake.recv(100) == b"report"
    leader.join(NODES)
    assert leader.places() == [(number, NODES, 1) for number in range(NODES)]
    assert {tuple(node.asked.items()) for node in leader.nodes.all} == {(("open_session", 1), ("put", 3), ("watch", 2))}
    leader.nodes.close(0)
    leader.put(**{keys.ROUND: encode(Round(1, "over", NODES, "one was lost", "lost"))})
    leader.tell(2, leader.ids[:0:-1])
    leader.join(NODES - 1)
    assert leader.places()[1:] == [(NODES - 1 - number, NODES - 1, 2) for number in range(1, NODES)]
    assert {node.asked["put"] for node in leader.nodes.all[1:]} == {5}
    leader.server.close()
    with pytest.raises(_load.LoadError, match="simulated node node"):
        leader.join(NODES)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"node_id": "node07"}, "node63: .* node07"),
        ({"rank": NODES}, "rank 64 of 64"),
        ({"world": NODES + 1}, "65 nodes"),
        ({"master_addr": ""}, "serve the workers' store"),
        ({"left_out": "it is late"}, "no place: it is late"),
    ],
)
def test_wrong_place_is_noticed(leader, change, error) -> None:
    leader.tell(1, leader.ids, **change)
    leader.nodes.join()
    with pytest.raises(_load.LoadError, match=error):
        leader.join(NODES)


# proxies at a root

PROXIES, EACH, PARENTS = 24, 3, 2


@pytest.mark.parametrize("parents", [0, PARENTS])
def test_proxies_get_through_every_phase_and_are_counted_by_the_root(parents) -> None:
    with ExitStack() as opened:
        root = opened.enter_context(StoreServer("127.0.0.1"))
        tier = [StoreProxy(Endpoint("127.0.0.1", root.port), leaf=False, timeout=60) for _ in range(parents)]
        for parent in tier:
            opened.callback(parent.close)
        roots = [f"127.0.0.1:{parent.listen()}" for parent in tier] or [f"127.0.0.1:{root.port}"]
        simulated = opened.enter_context(proxies("it", roots, PROXIES, EACH))
        for figures, requests in (
            (simulated.attach(window=5, sources=["127.0.0.1", "127.0.0.2"], limit_s=LIMIT_S), PROXIES),
            (simulated.add("add", limit_s=LIMIT_S), PROXIES),
            (simulated.barrier("barrier", rounds=ROUNDS, limit_s=LIMIT_S), PROXIES * ROUNDS),
        ):
            assert figures.requests == requests
        asked = root.stats()["requests"]
        if parents:
            assert [parent.stats()["requests"]["attach"] for parent in tier] == [PROXIES // PARENTS] * PARENTS
            assert asked["attach"] == PARENTS
            assert PARENTS * ROUNDS <= asked["arrive"] < PROXIES * ROUNDS
        else:
            assert (asked["attach"], asked["arrive"]) == (PROXIES, PROXIES * ROUNDS)
            assert asked["forward"] == PROXIES + ROUNDS, "each has added, and one has read the counters"
        with pytest.raises(_load.LoadError, match="it is attached already"):
            simulated.attach(window=1, sources=[], limit_s=LIMIT_S)


def test_root_that_is_silent_and_one_that_is_gone_are_told_apart() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        pytest.raises(DidNotFinish, match="attach: 2 of 2 proxies"),
        proxies("it", [f"127.0.0.1:{silent.getsockname()[1]}"], 2, 1) as simulated,
    ):
        simulated.attach(window=2, sources=[], limit_s=0.1)
    with StoreServer("127.0.0.1") as server:
        simulated = _load.Proxies([(f"127.0.0.1:{server.port}", -1)], count=2, workers=1)
        simulated.attach(window=2, sources=[], limit_s=LIMIT_S)
    with pytest.raises(_load.ConnectionLost, match=r"^add: proxy "):
        simulated.add("key", limit_s=LIMIT_S)
