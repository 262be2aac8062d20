"""The agents' client of a store, against torch's server and the native one: what torch's own client does, and more."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from attack_kit import wait_until
from relay import Relay
from torch.distributed import DistNetworkError, DistStoreError, PrefixStore, TCPStore

from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.kvstore.plain_client import PlainClient
from rdzv_plugins.kvstore.reach import reach
from rdzv_plugins.kvstore.server import StoreServer
from rdzv_plugins.kvstore.torch_store import greet_store, serve
from rdzv_plugins.options import PortRange

Connect = Callable[[], PlainClient]


@contextmanager
def native() -> Iterator[int]:
    with StoreServer("127.0.0.1") as server:
        yield server.port


@contextmanager
def torchs() -> Iterator[int]:
    server = serve("127.0.0.1", PortRange(), timeout=60, what="a test")
    yield server.port


@pytest.fixture(params=[native, torchs])
def port(request: pytest.FixtureRequest) -> Iterator[int]:
    with request.param() as port:
        yield port


OPEN: list[PlainClient] = []


@pytest.fixture(autouse=True)
def closed_at_the_end() -> Iterator[None]:
    yield
    while OPEN:
        OPEN.pop().close()


def connect(port: int, *, prefix: str = "p", timeout: float = 60) -> PlainClient:
    connection = reach(Endpoint("127.0.0.1", port), 60, "the store", greet_store)
    OPEN.append(PlainClient(connection, prefix=prefix, timeout=timeout))
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


def test_prefixes_are_apart(port: int) -> None:
    one, other = connect(port, prefix="one"), connect(port, prefix="other")
    one.set("k", "1")
    assert not other.check(["k"])


def test_get_waits_for_another_client(port: int) -> None:
    reader, writer = connect(port), connect(port)
    got: list[list[bytes]] = []
    thread = threading.Thread(target=lambda: got.append(reader.multi_get(["x", "y"])))
    thread.start()
    writer.set("x", "1")
    writer.set("y", "2")
    thread.join(60)
    assert got == [[b"1", b"2"]]


def test_a_wait_ends_after_its_timeout_and_the_connection_goes_on(port: int) -> None:
    client = connect(port, timeout=0.05)
    with pytest.raises(
        DistStoreError, match=rf"wait timeout after 0.05 s for missing in the store at 127.0.0.1 port {port}"
    ):
        client.get("missing")
    with pytest.raises(DistStoreError, match=r"after 0\.01 s"):
        client.wait(["missing"], timedelta(seconds=0.01))
    client.set_timeout(timedelta(seconds=30))
    assert client.timeout == timedelta(seconds=30)
    client.set("missing", "now here")
    assert client.get("missing") == b"now here"


def test_a_lost_server_is_a_network_error_and_stays_one() -> None:
    with native() as port:
        client = connect(port)
        client.set("k", "v")
    for _ in range(2):
        with pytest.raises(DistNetworkError, match=f"store at 127.0.0.1 port {port}"):
            client.get("k")


def test_a_signal_ends_a_wait(port: int) -> None:
    class Stop(Exception):
        pass

    def stop(number: int, frame: object) -> None:
        raise Stop

    with Relay(port) as relay:
        client = connect(relay.port)
        greeting = 10  # bytes

        def interrupt() -> None:
            """Not before it waits, which may be long after this thread has begun."""
            wait_until(lambda: relay.passed[True] > greeting, lambda: "nothing was asked")
            signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)

        before = signal.signal(signal.SIGUSR1, stop)
        thread = threading.Thread(target=interrupt)
        try:
            thread.start()
            with pytest.raises(Stop):
                client.get("never")
        finally:
            thread.join()
            signal.signal(signal.SIGUSR1, before)
    with pytest.raises(DistNetworkError, match="is broken"):
        client.set("k", "v")  # half an answer may have been read: what comes next would be misread


def test_no_name_is_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        raise AssertionError("a look-up")

    with native() as port:
        for name in ("gethostbyaddr", "getnameinfo", "getfqdn"):
            monkeypatch.setattr(socket, name, refuse)
        assert connect(port).add("k", 1) == 1
