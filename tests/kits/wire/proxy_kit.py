"""Proxies as nodes have them, and what they tell of their root."""

from __future__ import annotations

import queue
import select
from collections.abc import Sequence
from typing import Any

from kits.eventually import eventually
from kits.wire.attack_kit import Crowd, Workers, standing
from kits.wire.wire_client import PATIENCE, Raw
from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.kvstore.native.server import StoreProxy, StoreServer

FOREVER = 2 * PATIENCE  # a grace that no test lives to see the end of
CLIENTS = 8


class Node:
    """A proxy and its port. ``losses``: what ``on_lost`` was told.

    Its root knows it from the beginning, unless it has refused it: a proxy answers its workers before that.
    """

    def __init__(self, root: int, *, grace: float = FOREVER, **options: Any) -> None:
        self.losses: queue.Queue[str] = queue.Queue()
        self.proxy = StoreProxy(Endpoint("127.0.0.1", root), grace=grace, on_lost=self.losses.put, **options)
        self.port = self.proxy.listen()
        try:
            eventually(self._begun, self.proxy.stats)
        except BaseException:
            self.proxy.close()
            raise

    def _begun(self) -> bool:
        stats = self.proxy.stats()["proxy"]
        return bool(stats["attached"] or stats["lost"])

    def saved(self) -> dict[str, int]:
        counts: dict[str, int] = self.proxy.stats()["proxy"]["saved"]
        return counts

    def requests(self, name: str) -> int:
        """How many requests of that type its workers have sent."""
        return int(self.proxy.stats()["requests"].get(name, 0))

    def expect_lost(self, *words: str) -> str:
        """The root is lost, which was said once, and says why."""
        reason = self.losses.get(timeout=PATIENCE)
        assert all(word in reason for word in words), reason
        assert self.proxy.lost == reason
        assert self.losses.empty()
        return reason

    def __enter__(self) -> Node:
        return self

    def __exit__(self, *_: object) -> None:
        self.proxy.close()


def trunks(statistics: dict[str, Any]) -> list[dict[str, Any]]:
    """Of a root's statistics: all proxies that it knows."""
    return [trunk for space in statistics["keyspaces"] for trunk in space["trunks"]]


def operations(root: StoreServer) -> int:
    """All that proxies have asked of the root for their workers."""
    requests = root.stats()["requests"]
    return int(sum(requests[name] for name in ("forward", "follow", "unfollow", "arrive", "give_back")))


def advance(others: Sequence[Workers]) -> None:
    """All of them are served."""
    for each in others:
        each.advance(3)


def expect_requests(node: Node, name: str, count: int) -> None:
    """Its workers' requests of that type have come to the proxy."""
    eventually(lambda: node.requests(name) >= count, lambda: node.proxy.stats()["requests"])


def silent(clients: Sequence[Raw]) -> bool:
    """None of them has been told anything, or was closed."""
    return not select.select([client.socket for client in clients], [], [], 0)[0]


def crowd(port: int, count: int) -> Crowd:
    return standing(port, b"", count=count)
