"""The native load generator counts right, and notices every answer that is not right."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from rdzv_launcher.bench import _load
from rdzv_plugins.kvstore.native.server import StoreServer

pytestmark = pytest.mark.thorough

LIMIT_S = 60.0

N, ROUNDS, PEERS = 20, 3, 8
REQUESTS = {
    "barrier": {"add": N * ROUNDS, "set": ROUNDS, "wait": (N - 1) * ROUNDS},
    "mesh": {"set": N, "wait": 2 * PEERS * N, "get": PEERS * N},
    "gloo": {"add": N, "set": N, "wait": 2 * N * N, "get": N * N},
    "store_barrier": {"barrier": N * ROUNDS},
    "one_key": {"set": ROUNDS, "wait": (N - 1) * ROUNDS, "get": N * ROUNDS},
    "fill": {"set": 512, "get": 1},
    "multi_get": {"wait": N * ROUNDS, "multi_get": N * ROUNDS},
}
Answer = Callable[[socket.socket], object]


def connect(port: int, count: int = N, *, storm: bool = False, limit_s: float = LIMIT_S) -> tuple:
    load = _load.Load([f"127.0.0.1:{port}"])
    return load, load.connect(count, storm=storm, limit_s=limit_s)


def run(load: _load.Load, workload: str, limit_s: float = LIMIT_S) -> _load.Figures:
    # "barrier" has counted up keys that torch's barrier would use, too: it would let the first ones out at once
    prefix = "/torch" if workload == "store_barrier" else "/test"
    return load.run(workload, prefix=prefix, rounds=ROUNDS, limit_s=limit_s)


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
            assert (figures.timed > 0) == (workload != "store_barrier")  # whose answers all depend on others
            assert figures.timed == 0 or 0 < figures.p50_us <= figures.p99_us <= figures.seconds * 1e6
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
WRONG_REPLIES = [
    ("barrier", after(ADD, struct.pack("<q", 2)), _load.LoadError, "add: 2"),  # a count beyond the clients
    ("fill", after(GET, struct.pack("<q", 17)), _load.LoadError, "get: byte 0 of 24"),  # another length
    ("fill", after(GET, struct.pack("<q", 16) + b"?"), _load.LoadError, "get: byte 8 of 24"),  # another value
    ("barrier", after(ADD, bytes(9)), _load.LoadError, "add: byte 8 of 8"),  # more than was asked for
    ("barrier", hang_up, _load.ConnectionLost, "connection 0"),
]


@pytest.mark.parametrize(("workload", "answer", "kind", "named"), WRONG_REPLIES)
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
