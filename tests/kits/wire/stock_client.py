"""Torch's own client, as the tests of the Store API use it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from torch.distributed import TCPStore

from kits.wire.store_servers import Server

LATE = timedelta(seconds=60)  # for what comes


def connect(server: Server, **options: Any) -> TCPStore:
    options = {"wait_for_workers": False, "timeout": LATE} | options
    return TCPStore("127.0.0.1", server.next_port(), **options)


def assert_works(store: TCPStore) -> None:
    """No byte too few or too many came before: the answers are still those to the questions."""
    store.set("works", "yes")
    assert store.get("works") == b"yes"
    assert store.add("sum", 41) == 41
    assert store.add("sum", 1) == 42
