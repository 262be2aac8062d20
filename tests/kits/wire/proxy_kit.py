"""Proxies as nodes have them, and workers that check every answer."""

from __future__ import annotations

import queue
import select
from collections.abc import Sequence
from typing import Any

from kits.eventually import eventually
from kits.wire import wire_client as wire
from kits.wire.attack_kit import Bystanders, Crowd, Rounds, standing
from kits.wire.wire_client import PATIENCE, Raw
from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.kvstore.native.proxy import StoreProxy
from rdzv_plugins.kvstore.native.server import StoreServer

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

    def upstream(self) -> dict[str, int]:
        counts: dict[str, int] = self.proxy.stats()["proxy"]["upstream"]
        return counts

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


class Workers(Rounds):
    """Clients of one proxy that do, again and again, all that changes something, each with keys of its own.

    Every answer is checked: nothing may be lost, done twice or out of order.
    """

    def __init__(self, port: int, clients: int = 3, name: bytes = b"worker") -> None:
        super().__init__(port, clients)
        self._name = name

    def round(self) -> None:
        for number, client in enumerate(self.clients):
            client.send(self._request(number))
        for number, client in enumerate(self.clients):
            self._check(number, client)

    def _key(self, number: int, what: bytes) -> bytes:
        return b"/%s/%d/%s" % (self._name, number, what)

    def _request(self, number: int) -> bytes:
        turn = self.rounds
        value, log, count, item, once = (self._key(number, each) for each in (b"v", b"log", b"n", b"q", b"once"))
        return (
            wire.set_(value, b"%d" % turn)
            + wire.get(value)
            + wire.add(count, 1)
            + wire.append(log, b"%d," % (turn % 10))
            + wire.queue_push(item, b"%d.1" % turn)
            + wire.queue_push(item, b"%d.2" % turn)
            + wire.queue_pop(item)
            + wire.compare_set(once, b"%d" % turn if turn else b"", b"%d" % (turn + 1))
            + wire.multi_set([(value, b"m%d" % turn), (value + b"2", b"")])
            + wire.keyed(wire.MULTI_GET, [value, log])
            + wire.delete(value)
            + wire.delete(value)
            + wire.keyed(wire.CHECK, [value])
            + wire.keyed(wire.WAIT, [log])
            + wire.queue_pop(item)
            + wire.barrier(self._key(number, b"barrier"), turn + 1)
            + wire.add(self._key(0, b"all"), 1)
        )

    def _check(self, number: int, client: Raw) -> None:
        turn = self.rounds
        log = b"".join(b"%d," % (each % 10) for each in range(turn + 1))
        text, i64 = client.receive_text, client.receive_i64
        seen: list[object] = [text(), i64(), i64(), text(), text(), text(), text()]
        seen += [i64(), i64(), client.receive(1), client.receive(1), i64(), text(), client.receive(1)]
        assert seen == [
            *(b"%d" % turn, turn + 1, 2, b"%d.1" % turn, b"%d" % (turn + 1), b"m%d" % turn, log),
            *(1, 0, b"\1", wire.STOP_WAITING, 1, b"%d.2" % turn, wire.STOP_WAITING),
        ], (number, turn, seen)
        total, clients = i64(), len(self.clients)  # in any order among the clients
        assert turn * clients < total <= (turn + 1) * clients, (total, turn)


def trunks(statistics: dict[str, Any]) -> list[dict[str, Any]]:
    """Of a root's statistics: all proxies that it knows."""
    return [trunk for space in statistics["keyspaces"] for trunk in space["trunks"]]


def operations(root: StoreServer) -> int:
    """All that proxies have asked of the root for their workers."""
    requests = root.stats()["requests"]
    return int(sum(requests[name] for name in ("forward", "follow", "unfollow", "arrive", "give_back")))


def advance(others: Sequence[Bystanders]) -> None:
    """All of them are served."""
    for each in others:
        each.advance(3)


def expect_requests(node: Node, name: str, count: int) -> None:
    """Its workers' requests of that type have come to the proxy."""
    eventually(lambda: node.requests(name) >= count, lambda: node.proxy.stats()["requests"])


def silent(clients: Sequence[Raw]) -> bool:
    """None of them has been told anything, or was closed."""
    return not select.select([client.socket for client in clients], [], [], 0)[0]


def crowd(port: int, count: int, *, validated: bool = True) -> Crowd:
    return standing(port, b"", validated=validated, count=count)
