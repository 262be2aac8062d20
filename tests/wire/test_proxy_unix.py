"""The Unix socket of a proxy: for this user's processes and root's alone, and beside TCP ports."""

from __future__ import annotations

import multiprocessing
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kits.wire import wire_client as wire
from kits.wire.attack_kit import Bystanders
from kits.wire.proxy_kit import FOREVER, Node, crowd

from rdzv_plugins.errors import AddressInUse
from rdzv_plugins.kvstore.native.server import StoreServer

KEY = b"/key"


@pytest.fixture
def root() -> Iterator[StoreServer]:
    with StoreServer("127.0.0.1", threads=1) as server:
        yield server


Where = str | tuple[str, int]
"""The path of a Unix socket, or where a TCP port is."""


def connect(where: Where) -> socket.socket:
    if not isinstance(where, str):
        return socket.create_connection(where, timeout=60)
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    client.settimeout(60)
    client.connect("\0" + where[1:] if where.startswith("@") else where)
    return client


def ask_by(where: Where, uid: int | None, pipe: Any) -> None:
    """In a process of its own: what a client with that uid is told by the proxy there."""
    if uid is not None:
        os.setgid(uid)
        os.setuid(uid)
    try:
        with connect(where) as client:
            client.sendall(wire.validate() + wire.ping(7))
            pipe.send(client.recv(4))
    except OSError as error:
        pipe.send(type(error).__name__)


def asked(path: Where, uid: int | None = None) -> object:
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    process = context.Process(target=ask_by, args=(path, uid, there))
    process.start()
    try:
        assert here.poll(60)
        return here.recv()
    finally:
        process.join(60)
        process.close()
        here.close()
        there.close()


@pytest.fixture(params=["file", "abstract"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "store") if request.param == "file" else f"@rdzv-test-{os.getpid()}-{tmp_path.name}"


def test_only_this_user_and_root_may_use_the_unix_socket(root: StoreServer, path: str) -> None:
    with Node(root.port) as node, Bystanders(node.port, clients=3) as workers:
        node.proxy.listen_unix(path)
        if not path.startswith("@"):
            assert os.stat(path).st_mode & 0o777 == 0o600
            os.chmod(path, 0o777)  # even then
            for above in list(Path(path).parents)[:4]:
                above.chmod(above.stat().st_mode | 0o755)
        assert asked(path) == wire.pong(7)
        if os.getuid() == 0:
            assert asked(path, 65534) in (b"", "ConnectionResetError", "BrokenPipeError")
            assert sum(node.proxy.stats()["refused"].values()) == 1
        workers.advance(3)
        assert asked(path) == wire.pong(7)
    if not path.startswith("@"):
        assert not os.path.exists(path)


def test_its_ports_are_for_the_same_users_then(root: StoreServer, path: str) -> None:
    """By which stock clients begin, before they are moved to the Unix socket."""
    foreign = 65534 if os.getuid() == 0 else None
    with Node(root.port) as node, Bystanders(node.port, clients=3) as workers:
        port = ("127.0.0.1", node.port)
        if foreign is not None:
            assert asked(port, foreign) == wire.pong(7), "any user may, as long as nothing else is asked for"
        node.proxy.listen_unix(path)
        later = ("127.0.0.1", node.proxy.listen())
        everywhere = ("127.0.0.1", node.proxy.listen(""))
        for each in (port, later, everywhere):
            assert asked(each) == wire.pong(7)
            if foreign is not None:
                assert asked(each, foreign) in (b"", "ConnectionResetError", "BrokenPipeError")
        if foreign is not None:
            assert node.proxy.stats()["refused"] == {"foreign user": 3}
        workers.advance(3)


def test_a_unix_socket_that_is_taken(root: StoreServer, path: str) -> None:
    with Node(root.port) as one, Node(root.port) as two:
        one.proxy.listen_unix(path)
        with pytest.raises(AddressInUse, match="already in use"):
            two.proxy.listen_unix(path)
        assert asked(path) == wire.pong(7)
    with Node(root.port, grace=FOREVER) as node, pytest.raises(AddressInUse):
        node.proxy.listen_unix("/nowhere/at/all" if not path.startswith("@") else "@" + "x" * 200)


def test_workers_of_all_sockets_have_one_store(root: StoreServer, path: str) -> None:
    with Node(root.port) as node, crowd(node.port, 1) as (tcp,):
        other = node.proxy.listen("127.0.0.2")
        node.proxy.listen_unix(path)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
            client.settimeout(60)
            client.connect("\0" + path[1:] if path.startswith("@") else path)
            client.sendall(wire.validate() + wire.set_(KEY, b"value") + wire.ping(9))
            assert client.recv(4, socket.MSG_WAITALL) == wire.pong(9)
            tcp.send(wire.get(KEY))
            assert tcp.receive_text() == b"value"
            with socket.create_connection(("127.0.0.2", other)) as third:
                third.sendall(wire.validate() + wire.get(KEY))
                assert third.recv(13, socket.MSG_WAITALL) == wire.text(b"value")
            node.proxy.close()
            assert client.recv(1) == b""
