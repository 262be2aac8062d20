"""The agents' client of a store, against torch's server and the native one: what torch's own client does, and more."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from kits.relay import Relay
from kits.wire.session_peers import answering
from kits.wire.store_servers import running
from torch.distributed import PrefixStore, TCPStore

from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.errors import EndpointUnreachable, StoreLost, StoreTimeout
from rdzv_plugins.kvstore.native.server import StoreServer
from rdzv_plugins.kvstore.sockets.reach import CancelToken, reach
from rdzv_plugins.kvstore.tcpstore.listener import greet_store
from rdzv_plugins.kvstore.tcpstore.plain_client import PlainClient
from rdzv_plugins.store import Prefixed


@pytest.fixture(params=["threads=1", "torch"])
def port(request: pytest.FixtureRequest) -> Iterator[int]:
    with running(request.param) as server:
        yield server.port


OPEN: list[PlainClient] = []


@pytest.fixture(autouse=True)
def closed_at_the_end() -> Iterator[None]:
    yield
    while OPEN:
        OPEN.pop().close()


def dial(port: int) -> socket.socket:
    return reach(Endpoint("127.0.0.1", port), 60, "the store", greet_store)


def connect(
    port: int, *, prefix: str = "p", timeout: float = 60, interruption: CancelToken | None = None, **more: Any
) -> PlainClient:
    interruption = interruption or CancelToken()
    OPEN.append(PlainClient(dial(port), prefix=prefix, timeout=timeout, interruption=interruption, **more))
    return OPEN[-1]


def test_what_one_client_writes_torchs_client_reads_under_the_prefix(port: int) -> None:
    ours = connect(port)
    theirs = PrefixStore("p", TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False))
    ours.set("a", "text")
    ours.set("b", b"\x00\xff")
    assert (theirs.get("a"), theirs.get("b")) == (b"text", b"\x00\xff")
    ours.multi_set(["c", "d"], ["1", b"2"])
    assert theirs.multi_get(["c", "d"]) == [b"1", b"2"]
    theirs.set("e", "x" * 100_000)
    assert ours.get("e") == b"x" * 100_000
    assert ours.multi_get(["d", "a", "c"]) == [b"2", b"text", b"1"]
    assert (ours.add("n", 5), theirs.add("n", -7), ours.add("n", 0)) == (5, -2, -2)
    assert ours.compare_set("f", "", "first") == b"first"
    assert ours.compare_set("f", "other", "second") == b"first"
    assert ours.compare_set("f", "first", "second") == b"second" == theirs.get("f")
    assert [ours.check(["a", "b"]), ours.check(["a", "missing"])] == [True, False]
    assert [ours.delete_key("a"), ours.delete_key("a")] == [True, False]
    assert not theirs.check(["a"])
    assert ours.num_keys() == theirs.num_keys()


def test_a_wait_ends_after_its_timeout_and_the_connection_goes_on(port: int) -> None:
    client = connect(port, timeout=0.05)
    with pytest.raises(StoreTimeout, match=rf"0\.05 s for missing .*127.0.0.1 port {port}"):
        client.get("missing")
    with pytest.raises(StoreTimeout, match=r"0\.01 s"):
        client.wait(["missing"], timedelta(seconds=0.01))
    client.set_timeout(timedelta(seconds=30))
    assert client.timeout == timedelta(seconds=30)
    client.set("missing", "now here")
    assert client.get("missing") == b"now here"


def test_a_lost_server_is_a_network_error_and_stays_one() -> None:
    with StoreServer("127.0.0.1") as server:
        port, client = server.port, connect(server.port)
        client.set("k", "v")
    for _ in range(2):
        with pytest.raises(StoreLost, match=f"127.0.0.1 port {port}"):
            client.get("k")


class Stop(Exception):
    pass


@pytest.mark.parametrize("may_connect_again", [False, True])
def test_a_signal_ends_a_wait(port: int, may_connect_again: bool) -> None:
    """Half an answer may be left, and what comes next would be misread: only another connection goes on."""

    def stop(number: int, frame: object) -> None:
        raise Stop

    def look(data: bytes) -> bytes:
        """Not before it waits, which may be long after it was begun."""
        if b"never" in data:
            signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)
        return data

    with Relay(port) as relay:
        relay.spoil(look)
        client = connect(relay.port, prefix="", **{"again": lambda: dial(port)} if may_connect_again else {})
        before = signal.signal(signal.SIGUSR1, stop)
        try:
            with pytest.raises(Stop):
                client.get("never")
        finally:
            signal.signal(signal.SIGUSR1, before)
    if may_connect_again:
        assert [client.add("n", 2), client.add("n", 3)] == [2, 5]
        assert connect(port).num_keys() == client.num_keys()
    else:
        with pytest.raises(StoreLost, match="is broken"):
            client.set("k", "v")


REQUESTS: dict[str, tuple[Any, ...]] = {
    "set": ("k", "v"),
    "get": ("k",),
    "compare_set": ("k", "a", "b"),
    "add": ("k", 1),
    "check": (["k"],),
    "delete_key": ("k",),
    "num_keys": (),
    "multi_set": (["k"], ["v"]),
    "multi_get": (["k"],),
    "wait": (["k"], timedelta(seconds=60)),
}


def test_every_request_is_known_here() -> None:
    """One that is added has to be interrupted, too."""
    methods = {name for name, each in vars(PlainClient).items() if callable(each) and not name.startswith("_")}
    assert methods - {"close", "set_timeout"} == REQUESTS.keys()


@pytest.mark.parametrize("name", [name for name in REQUESTS if name not in ("set", "multi_set")])  # which no answer
def test_interruption_ends_a_request_that_gets_no_answer(name: str) -> None:
    """The store's machine went silently: nothing more comes, and nothing says so."""
    interruption = CancelToken()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        where = f"127.0.0.1 port {listener.getsockname()[1]}"
        client = PlainClient(
            socket.create_connection(listener.getsockname()), prefix="p", timeout=60, interruption=interruption
        )
        silent, _ = listener.accept()
        threading.Thread(target=lambda: (silent.recv(1), interruption.interrupt("round 7 is over"))).start()
        with silent, pytest.raises(StoreLost, match=f"^lost the store at {where}: round 7 is over$"):
            getattr(client, name)(*REQUESTS[name])
        for each, arguments in REQUESTS.items():
            with pytest.raises(StoreLost, match="is broken: round 7 is over"):
                getattr(client, each)(*arguments)


def test_interruption_ends_every_client_under_it_and_those_that_come_later(port: int) -> None:
    interruption, other = CancelToken(), connect(port)
    clients = [connect(port, interruption=interruption) for _ in range(3)]
    interruption.interrupt("it is over")
    interruption.interrupt("and that came later")
    for client in [*clients, connect(port, interruption=interruption)]:
        with pytest.raises(StoreLost, match="it is over"):
            client.add("k", 1)
    assert other.add("k", 1) == 1


def test_interruption_ends_connecting_to_what_does_not_answer() -> None:
    interruption = CancelToken()
    interrupt = lambda connection: (connection.recv(1), interruption.interrupt("round 7 is over"))  # noqa: E731
    with answering(interrupt) as port, pytest.raises(EndpointUnreachable, match="round 7 is over"):
        reach(Endpoint("127.0.0.1", port), 300, "it", greet_store, interruption=interruption)


def test_a_part_of_a_store_has_its_own_keys(port: int) -> None:
    whole = connect(port, prefix="")
    part = Prefixed("a/b", whole)
    theirs = PrefixStore("a/b", TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False))
    part.multi_set(["x", "y"], ["1", "2"])
    assert theirs.multi_get(["x", "y"]) == part.multi_get(["x", "y"]) == whole.multi_get(["a/b/x", "a/b/y"])
    assert (part.add("n", 1), theirs.add("n", 1), whole.get("a/b/n")) == (1, 2, b"2")
    assert part.compare_set("c", "", "first") == theirs.get("c") == b"first"
    assert (part.check(["c"]), whole.check(["c"])) == (True, False)
    assert (part.delete_key("c"), part.check(["c"])) == (True, False)
    with pytest.raises(StoreTimeout):
        part.wait(["none"], timedelta(seconds=0.01))
