"""The Unix socket of a proxy: for this user's processes and root's alone, and beside TCP ports."""

from __future__ import annotations

import os
import socket
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


@pytest.fixture(params=["file", "abstract"])
def path(request: pytest.FixtureRequest, open_to_all: Path) -> str:
    return str(open_to_all / "store") if request.param == "file" else f"@rdzv-test{open_to_all}"


def test_only_this_user_and_root_may_use_it_and_its_ports_from_then_on(root: StoreServer, path: str) -> None:
    """By which stock clients begin, before they are moved to the Unix socket."""
    foreign = NOBODY if os.getuid() == 0 else None
    with Node(root.port) as node, Bystanders(node.port, clients=3) as workers:
        port = ("127.0.0.1", node.port)
        if foreign is not None:
            assert asked(port, foreign) == wire.pong(7), "any user may, as long as nothing else is asked for"
        node.proxy.listen_unix(path)
        if not path.startswith("@"):
            assert os.stat(path).st_mode & 0o777 == 0o600
            os.chmod(path, 0o777)  # even then
        later = ("127.0.0.1", node.proxy.listen())
        everywhere = ("127.0.0.1", node.proxy.listen(""))
        for each in (port, later, everywhere, path):
            assert asked(each) == wire.pong(7)
            if foreign is not None:
                assert asked(each, foreign) in (b"", "ConnectionResetError", "BrokenPipeError")
        if foreign is not None:
            assert node.proxy.stats()["refused"] == {"foreign user": 4}
        workers.advance(3)
    assert path.startswith("@") or not os.path.exists(path)


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
