from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rdzv_plugins.testing import ServerProcess, free_port

TESTS = Path(__file__).parents[1]
EXAMPLE = TESTS.parent / "examples/rdzv-http/src"
sys.path.insert(0, str(Path(__file__).parent))
sys.path.append(str(TESTS / "launcher"))  # harness, which etcd_relay needs
sys.path.append(str(TESTS / "etcd"))  # etcd_relay: answers that get lost
sys.path.append(str(EXAMPLE))  # rdzv_http: a server of keys, and a client on the kit


@pytest.fixture(scope="module", autouse=True)  # not for longer: other tests of this process do without
def _server_finds_its_modules() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(EXAMPLE), prepend=os.pathsep)
        yield


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    """It has nothing yet, and keeps nothing."""
    from rdzv_http.conformance import http_server

    server = http_server(free_port(), tmp_path / "log")
    server.start()
    yield server
    server.kill()
