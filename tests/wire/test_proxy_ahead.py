"""Numbered keys are read ahead of those who ask for them; and what a proxy reports of itself comes to the root."""

from __future__ import annotations

from typing import Any

import pytest
from kits.eventually import eventually
from kits.wire import wire_client as wire
from kits.wire.proxy_kit import Node, crowd, operations, trunks

from rdzv_plugins.kvstore.native.server import StoreServer

pytestmark = pytest.mark.thorough

KEY = b"/key"


def gloo(client: wire.Raw, keys: list[bytes]) -> list[bytes]:
    """Torch's gloo asks twice whether a key is there, and then for the value."""
    values = []
    for key in keys:
        for _ in range(2):
            assert client.ask(wire.keyed(wire.WAIT, [key]), 1) == wire.STOP_WAITING
        client.send(wire.get(key))
        values.append(client.receive_text())
    return values


def test_keys_that_are_numbered_are_read_ahead(root: StoreServer, node: Node, clients: list[wire.Raw]) -> None:
    keys = [b"/default_pg/0//cpu//0/%d" % rank for rank in range(200)]
    with wire.Raw(root.port) as other:
        other.do(b"".join(wire.set_(key, b"address of " + key) for key in keys))
    assert gloo(clients[0], keys) == [b"address of " + key for key in keys]
    stats = node.proxy.stats()["proxy"]
    assert stats["ahead"] > 100
    assert stats["saved"]["hits"] > 400
    assert clients[0].ask(wire.keyed(wire.CHECK, [b"/unread"]), 1) == b"\1"  # behind all that is asked ahead
    before = operations(root)
    assert before <= 1.5 * len(keys)
    for client in clients[1:3]:
        assert gloo(client, keys) == [b"address of " + key for key in keys]
    assert operations(root) == before, "the next readers cost the root nothing"


def test_the_report_of_a_proxy_comes_to_its_root(root: StoreServer) -> None:
    def below(top: dict[str, Any]) -> list[dict[str, Any]]:
        return top["report"].get("children", []) if top.get("report") else []

    def seen() -> bool:
        return any(
            each["workers"] == 3 and [(entry["key"], entry["waiters"]) for entry in each["waiting"]] == [("/key", 3)]
            for top in trunks(root.stats())
            for each in below(top)
        )

    with (
        Node(root.port, name="top", leaf=False, grace=3.0) as middle,
        Node(middle.port, name="node", grace=3.0) as node,
        crowd(node.port, 3) as clients,
    ):
        for client in clients:
            client.send(wire.keyed(wire.WAIT, [KEY]))
        eventually(seen, lambda: trunks(root.stats()))
        (top,) = trunks(root.stats())
        assert top["name"] == top["report"]["name"] == "top"
        (child,) = below(top)
        assert child["name"] == "node"
        assert child["saved"] >= 2
        assert child["requests"] >= 3
        assert child["upstream"] >= 1
