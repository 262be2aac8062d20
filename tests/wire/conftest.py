from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

# Torch's client asks a name server for the name of ::ffff:127.0.0.1 at each connect: where that loses one query in
# a hundred, 5 s each.
os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:1")

from kits.relay import Relay
from kits.wire import wire_client as wire
from kits.wire.attack_kit import PROXY, ServerProcess, Workers
from kits.wire.proxy_kit import CLIENTS, Node, crowd
from kits.wire.store_servers import Server, lifeline, running

from rdzv_plugins.kvstore.native.server import StoreServer


@pytest.fixture(params=["threads=4", "proxies", "tiers"])
def ours(request: pytest.FixtureRequest) -> Iterator[Server]:
    """Our server, empty."""
    with running(request.param) as server, lifeline(server, 180):
        yield server


@pytest.fixture(params=[4, PROXY], ids=["server", "proxy"])
def threads(request: pytest.FixtureRequest) -> int:
    """Of a server that is attacked."""
    return int(request.param)


@pytest.fixture
def root() -> Iterator[StoreServer]:
    """The server behind the proxies of a test."""
    with StoreServer("127.0.0.1", threads=2) as server:
        yield server


@pytest.fixture
def server(root: StoreServer) -> StoreServer:
    return root


@pytest.fixture
def open_to_all() -> Iterator[Path]:
    """A folder that other users may look into; those of pytest are closed again whenever somebody starts it."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)


@pytest.fixture
def apart() -> Iterator[ServerProcess]:
    """A server in another process, to be stopped."""
    with ServerProcess() as server:
        yield server
        with suppress(ProcessLookupError):
            os.kill(server.pid, signal.SIGCONT)


@contextmanager
def chain(root: StoreServer, parts: str) -> Iterator[dict[str, Any]]:
    """From the root to the workers."""
    with ExitStack() as stack:
        port, made = root.port, dict[str, Any]()
        for part in parts.split(" - "):
            made[part] = stack.enter_context(Relay(port) if part == "relay" else Node(port, leaf=part == "leaf"))
            port = made[part].port
        yield made


@pytest.fixture(params=["leaf", "middle - leaf"])
def node(request: pytest.FixtureRequest, root: StoreServer) -> Iterator[Node]:
    """A proxy of it."""
    with chain(root, request.param) as made:
        yield made["leaf"]


@pytest.fixture
def clients(node: Node) -> Iterator[list[wire.Raw]]:
    """``CLIENTS`` workers of that proxy."""
    with crowd(node.port, CLIENTS) as clients:
        yield clients


@pytest.fixture
def relay(root: StoreServer) -> Iterator[Relay]:
    """A way to it that can be broken."""
    with Relay(root.port) as relay:
        yield relay


@pytest.fixture(
    params=[
        "relay - leaf",
        pytest.param("middle - relay - leaf", marks=pytest.mark.thorough),
        "relay - middle - leaf",
    ]
)
def way(request: pytest.FixtureRequest, root: StoreServer) -> Iterator[tuple[Relay, Node]]:
    """A proxy, and a relay somewhere between it and the root."""
    with chain(root, request.param) as made:
        yield made["relay"], made["leaf"]


@pytest.fixture
def others(root: StoreServer | ServerProcess) -> Iterator[list[Workers]]:
    """Clients of another proxy, and of the root itself."""
    with Node(root.port, name="other") as node:
        with Workers(root.port, clients=3) as direct, Workers(node.port, clients=3) as neighbours:
            yield [direct, neighbours]
        assert node.proxy.lost == ""
