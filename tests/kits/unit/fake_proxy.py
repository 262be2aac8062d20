"""A store proxy as the nodes of an elastic round see it: passes bytes on, and loses its root when it is told to."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rdzv_plugins.certificates import NodeCertificates
from rdzv_plugins.elastic import node_proxy
from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.errors import EndpointUnreachable
from rdzv_plugins.job_token import JobToken
from rdzv_plugins.kvstore.native.limits import StoreLimits
from rdzv_plugins.kvstore.sockets.interruption import Interruption
from rdzv_plugins.options import PortRange


class FakeProxy:
    """In place of ``kvstore.proxy.StoreProxy``; its class knows all that there were."""

    made: list[FakeProxy]
    refusals: list[str]
    """Why the next ones cannot reach their root."""

    def __init__(
        self,
        root: Endpoint,
        *,
        name: str,
        leaf: bool,
        grace: float,
        limits: StoreLimits,
        timeout: float,
        on_lost: Callable[[str], None],
        interruption: Interruption,
        token: JobToken | None,
        run_id: str,
        tls: NodeCertificates | None,
    ) -> None:
        if self.refusals:
            raise EndpointUnreachable(self.refusals.pop())
        self.root, self.name, self.leaf, self.grace, self._on_lost = root, name, leaf, grace, on_lost
        self.closed, self.cut_off, self.ports, self.paths = False, False, [], []
        self._sockets: list[socket.socket] = []
        self.made.append(self)

    def listen(self, host: str, ports: PortRange, *, admit: str, under_tls: bool = False) -> int:
        listener = socket.create_server((host, ports.first))
        self._sockets.append(listener)
        self.ports.append(listener.getsockname()[1])
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()
        return int(self.ports[-1])

    def listen_unix(self, path: str, *, admit: str) -> None:
        self.paths.append(path)

    def stats(self) -> dict[str, Any]:
        return {
            "requests": {"get": 7, "set": 1},
            "proxy": {"attached": not self.cut_off, "upstream": {"forward": 2, "follow": 1}},
        }

    def close(self) -> None:
        self.closed = True
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def lose(self, reason: str) -> None:
        """As when the root is gone: it cuts off its clients, and says so on a thread of its own."""
        self.close()
        thread = threading.Thread(target=self._on_lost, args=(reason,))
        thread.start()
        thread.join()

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                self._sockets.append(client)
                root = socket.create_connection((self.root.host, self.root.port))
                self._sockets.append(root)
                if self.closed:  # meanwhile
                    self.close()
                for source, target in ((client, root), (root, client)):
                    threading.Thread(target=_pass_on, args=(source, target), daemon=True).start()


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)


@pytest.fixture
def proxies(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[FakeProxy]]:
    """The proxies that the nodes of the test have made."""
    FakeProxy.made, FakeProxy.refusals = [], []
    monkeypatch.setattr(node_proxy, "StoreProxy", FakeProxy)
    yield FakeProxy
    for each in FakeProxy.made:
        each.close()
