"""The Unix socket of a proxy: for this user's processes and root's alone, and beside TCP ports."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from kits.eventually import eventually
from kits.wire import wire_client as wire
from kits.wire.attack_kit import Bystanders
from kits.wire.other_user import NOBODY, asked
from kits.wire.proxy_kit import Node

from rdzv_plugins.kvstore.native.server import StoreServer

pytestmark = pytest.mark.thorough

KEY = b"/key"


@pytest.fixture
def root() -> Iterator[StoreServer]:
    with StoreServer("127.0.0.1", threads=1) as server:
        yield server


@pytest.fixture(params=["file", "abstract"])
def path(request: pytest.FixtureRequest, open_to_all: Path) -> str:
    return str(open_to_all / "store") if request.param == "file" else f"@rdzv-test{open_to_all}"


def test_only_this_user_and_root_may_use_the_unix_socket(root: StoreServer, path: str) -> None:
    with Node(root.port) as node, Bystanders(node.port, clients=3) as workers:
        node.proxy.listen_unix(path)
        if not path.startswith("@"):
            assert os.stat(path).st_mode & 0o777 == 0o600
            os.chmod(path, 0o777)  # even then
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


@pytest.mark.skipif(os.getuid() != 0, reason="to be another user")
def test_who_has_hung_up_is_nobody_that_is_known(root: StoreServer, path: str) -> None:
    """Older kernels show a socket that its process has closed as root's, whoever that was."""
    with Node(root.port) as node, socket.create_server(("127.0.0.1", 0)) as listener:
        node.proxy.listen_unix(path)
        where = listener.getsockname()
        for uid in (NOBODY, None):
            assert asked(where, uid, said=wire.validate() + wire.set_(KEY, b"value")) == b""
        assert node.proxy._native.listen(os.dup(listener.fileno())) == where[1]
        eventually(lambda: node.proxy.stats()["connections"]["closed"] == 2, node.proxy.stats)
        assert node.proxy.stats()["refused"] == {"foreign user": 2}
        assert node.requests("set") == 0
