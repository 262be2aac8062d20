from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
# Torch's client asks a name server for the name of ::ffff:127.0.0.1 at each connect: where that loses one query in
# a hundred, 5 s each.
os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:1")

from store_servers import KINDS, Server, lifeline, running


@pytest.fixture(params=KINDS)
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """An empty server; torch's own is among them, so that a test that is wrong about torch's semantics fails too."""
    with running(request.param) as server, lifeline(server, 60):
        yield server


@pytest.fixture(params=[kind for kind in KINDS if kind != "torch"])
def ours(request: pytest.FixtureRequest) -> Iterator[Server]:
    """Our server, empty."""
    with running(request.param) as server, lifeline(server, 60):
        yield server
