"""What a run and a store may keep is limited: what is beyond is refused by a sentence, and everybody goes on."""

from __future__ import annotations

from contextlib import ExitStack, closing

import pytest
from kits.wire.attack_kit import MIB
from kits.wire.proxy_kit import Node
from kits.wire.session_peers import at, opened
from kits.wire.store_servers import LATE
from kits.wire.wire_client import PATIENCE
from torch.distributed import DistError, TCPStore

from rdzv_plugins.coordination import Session
from rdzv_plugins.errors import EndpointUnreachable, RdzvError
from rdzv_plugins.kvstore.native.limits import StoreLimits, usable_memory
from rdzv_plugins.kvstore.native.server import StoreServer

T = PATIENCE


def session_of(port: int, run: str) -> Session:
    return opened(at(port, run), 600.0)


def test_a_full_run_says_which_limit_it_is() -> None:
    limits = StoreLimits(run_sessions=2, sessions=4, run_keys=10, run_watches=1)
    with StoreServer("127.0.0.1", threads=2, limits=limits) as server, ExitStack() as held:

        def session(run: str) -> Session:
            return held.enter_context(closing(session_of(server.port, run)))

        greedy, other = session("greedy"), session("job")
        for run, words in (
            ("greedy", r"too many sessions.* 2 .*run_sessions"),
            ("third", r"sessions.* 4 .*\(sessions"),
        ):
            session(run if run == "greedy" else "other")
            with pytest.raises(EndpointUnreachable, match=words) as refused:
                session_of(server.port, run)
            assert "--rdzv-conf" in refused.value.remedy
        assert server.stats()["refused"] == {"too many sessions": 2}
        assert len(server.stats()["runs"]) == 3, "none that nobody is in"
        greedy.put({f"{number}": b"" for number in range(9)}, timeout=T)
        with pytest.raises(RdzvError, match=r"run full.* 10 .*run_keys"):
            greedy.put({"a": b"", "b": b""}, timeout=T)
        other.watch("", lambda _: None, timeout=T)
        with pytest.raises(RdzvError, match=r"too many watches.* 1 .*run_watches"):
            other.watch("", lambda _: None, timeout=T)
        other.put({"k": b"goes on"}, timeout=T)
        greedy.put({"9": b""}, timeout=T)


@pytest.mark.parametrize("through", ["direct", "proxy"])
def test_stock_clients_hear_of_a_full_store(through: str) -> None:
    limits = StoreLimits(stored_bytes=8 * MIB)
    with StoreServer("127.0.0.1", threads=2, limits=limits) as small, Node(small.port) as node:
        port = small.port if through == "direct" else node.port
        greedy, other = (TCPStore("127.0.0.1", port, wait_for_workers=False, timeout=LATE) for _ in range(2))
        other.set("mine", "value")
        assert other.add("count", 1) == 1
        with pytest.raises((DistError, RuntimeError)):  # noqa: PT012
            for number in range(64):
                greedy.set(f"big/{number}", "x" * MIB)
                greedy.get(f"big/{number}")
        assert small.stats()["keyspaces"][0]["bytes"] <= small.stats()["bytes"]["stored_limit"] == 8 * MIB
        refused = (small if through == "direct" else node.proxy).stats()["refused"]
        assert sum(refused.values()) == 1, refused
        # small writes go on, what is there can be read, and there is room again when something has gone
        assert other.add("count", 1) == 2
        assert other.get("mine") == b"value"
        assert [other.delete_key(f"big/{number}") for number in range(2)] == [True, True]
        other.set("big/0", "y" * MIB)
        assert other.get("big/0") == b"y" * MIB


def test_by_default_it_is_a_share_of_the_memory() -> None:
    assert 64 * MIB <= usable_memory() < 2**50
    assert StoreLimits().most_stored == max(64 * MIB, usable_memory() // 4)
    assert StoreLimits(stored_bytes=7).most_stored == 7
