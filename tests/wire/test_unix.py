"""The Unix socket of a proxy, for this user's processes and root's alone; and torch's own client moved to it:
everything that it can do by TCP, and what keeps it from being moved."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from kits.eventually import eventually
from kits.wire import wire_client as wire
from kits.wire.attack_kit import Files, Workers, expect_no_more_files, open_files
from kits.wire.other_user import NOBODY, asked
from kits.wire.proxy_kit import Node
from kits.wire.store_servers import assert_works, lifeline
from kits.wire.unix_kit import Reached, by_tcp, listening, moved, reached, unused
from torch.distributed import DistNetworkError, PrefixStore, TCPStore
from wire import test_store_api

from rdzv_plugins.kvstore.native.server import StoreServer
from rdzv_plugins.torchrun import worker_transport
from rdzv_plugins.torchrun.worker_transport import NotMoved, move, open_sockets

AS_ROOT = pytest.mark.skipif(os.getuid() != 0, reason="to be another user")
test_calls = test_store_api.test_calls  # of the Store API, with the client that is moved


@pytest.fixture
def server() -> Iterator[Reached]:
    with reached() as server, lifeline(server, 180):
        yield server


@pytest.fixture
def store(server: Reached) -> TCPStore:
    return moved(server)


def settled(server: Reached, *, tcp: int, unix: int) -> bool:
    """The end of a connection is seen later than it was."""
    return bool(eventually(lambda: server.connections() == (tcp, unix), server.connections))


def expect_both_ends(before: Files) -> None:
    """Of one connection, and nothing else that was not open before: the server is in this process, too."""

    def new() -> list[str]:
        return [name for _, name in open_files() - before]

    eventually(lambda: len(new()) == 2, new)
    assert all(name.startswith("socket:") for name in new())


def test_the_client_leaves_tcp_and_no_descriptor_behind(server: Reached) -> None:
    before = open_files()
    store = moved(server)
    assert settled(server, tcp=0, unix=1)
    expect_both_ends(before)
    assert isinstance(store, TCPStore)
    assert store.port == server.port
    assert_works(store)
    del store
    assert settled(server, tcp=0, unix=0)
    expect_no_more_files(before)


@AS_ROOT
def test_another_user_is_sent_away_by_the_store(server: Reached) -> None:
    pid = os.fork()
    if not pid:
        try:
            os.setuid(65534)
            worker_transport._connect(server.path)
        except ConnectionError:
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0
    (stats,) = server.stats()
    assert list(stats["refused"].values()) == [1]
    assert "user" in next(iter(stats["refused"]))


def test_a_clone_connects_by_tcp_and_both_go_on(server: Reached, store: TCPStore) -> None:
    clone = PrefixStore("p", store).clone()
    clone.set("key", "of the clone")
    assert store.get("p/key") == b"of the clone"
    assert settled(server, tcp=1, unix=1)
    clone_of_it = store.clone()
    del store
    assert_works(clone_of_it)


def test_a_store_that_ends_is_the_error_that_torch_makes_of_it(server: Reached, store: TCPStore) -> None:
    server.close()
    with pytest.raises(DistNetworkError):
        store.get("key")


def assert_not_moved(server: Reached, path: str, why: str) -> None:
    before, files = open_sockets(), open_files()
    store = by_tcp(server.port)
    with pytest.raises(NotMoved, match=why):
        move(store, path, before)
    assert settled(server, tcp=1, unix=0)
    assert_works(store)
    expect_both_ends(files)


@pytest.mark.parametrize(
    ("path", "why"),
    [(unused(), "Connection refused"), ("/nowhere/store", "No such file"), ("@" + "x" * 200, "too long")],
    ids=["nobody", "no directory", "long name"],
)
def test_where_nothing_listens_it_stays_by_tcp(server: Reached, path: str, why: str) -> None:
    assert_not_moved(server, path, why)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "not a store"),
        (b"", "closed the connection"),
        (None, r"no answer within 0\.1 s"),
    ],
)
def test_who_is_no_store(server: Reached, answer: bytes | None, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with listening() as (path, listener), ThreadPoolExecutor(1) as pool:

        def serve(said: bytes) -> None:
            with listener.accept()[0] as connection:
                connection.recv(10, socket.MSG_WAITALL)
                connection.sendall(said)

        if answer is None:
            monkeypatch.setattr(worker_transport, "_GREETING_S", 0.1)
        else:
            pool.submit(serve, answer)
        assert_not_moved(server, path, why)


@pytest.mark.parametrize(("owner", "user"), [(4712, 4711), (4711, 4711), (0, 4711), (4711, 0)])
def test_who_may_have_taken_the_name(server: Reached, monkeypatch: pytest.MonkeyPatch, owner: int, user: int) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: user)
    monkeypatch.setattr(worker_transport, "_owner", lambda _: owner)
    if owner == 4712:
        with listening() as (path, _):
            assert_not_moved(server, path, "it belongs to user 4712, not this one \\(4711\\)")
    else:
        assert_works(moved(server))


def test_a_connection_that_is_not_the_only_new_one_is_left_alone(server: Reached) -> None:
    before = open_sockets()
    store = by_tcp(server.port)
    clone = store.clone()
    with pytest.raises(NotMoved, match=f"2 new connections to port {server.port}, not one"):
        move(store, server.path, before)
    with pytest.raises(NotMoved, match="0 new connections"):
        move(store, server.path, open_sockets())
    assert settled(server, tcp=2, unix=0)
    store.set("key", "by the first")
    assert clone.get("key") == b"by the first"


REFUSED = (b"", "ConnectionResetError", "BrokenPipeError")


@pytest.fixture(params=["file", "abstract"])
def path(request: pytest.FixtureRequest, open_to_all: Path) -> str:
    return str(open_to_all / "store") if request.param == "file" else f"@rdzv-test{open_to_all}"


@AS_ROOT
def test_only_this_user_and_root_may_use_it_and_its_ports_from_then_on(root: StoreServer, path: str) -> None:
    """By which stock clients begin, before they are moved to the Unix socket."""
    with Node(root.port) as node, Workers(node.port, clients=3) as workers:
        port, of_the_user = (("127.0.0.1", each) for each in (node.port, node.proxy.listen(admit="user")))
        assert asked(port, NOBODY) == wire.pong(7), "any user may, as long as nothing else is asked for"
        assert asked(of_the_user, NOBODY) in REFUSED
        paths = (path, path + "-of-the-user")
        for each, admit in zip(paths, ("anyone", "user"), strict=True):
            node.proxy.listen_unix(each, admit=admit)
            if not path.startswith("@"):
                assert os.stat(each).st_mode & 0o777 == 0o600
                os.chmod(each, 0o777)  # even then
        later, everywhere = (("127.0.0.1", node.proxy.listen(host)) for host in ("127.0.0.1", ""))
        for where in (port, of_the_user, later, everywhere, *paths):
            assert asked(where) == wire.pong(7)
            assert asked(where, NOBODY) in REFUSED
        assert node.proxy.stats()["refused"] == {"foreign user": 7}
        workers.advance(3)
    assert path.startswith("@") or not os.path.exists(path)


@pytest.mark.thorough
@AS_ROOT
def test_who_has_hung_up_is_nobody_that_is_known(root: StoreServer, path: str) -> None:
    """Older kernels show a socket that its process has closed as root's, whoever that was."""
    with Node(root.port) as node, socket.create_server(("127.0.0.1", 0)) as listener:
        node.proxy.listen_unix(path)
        where = listener.getsockname()
        for uid in (NOBODY, None):
            assert asked(where, uid, said=wire.validate() + wire.set_(b"/key", b"value")) == b""
        assert node.proxy._native.listen(os.dup(listener.fileno())) == where[1]
        eventually(lambda: node.proxy.stats()["connections"]["closed"] == 2, node.proxy.stats)
        assert node.proxy.stats()["refused"] == {"foreign user": 2}
        assert node.requests("set") == 0
