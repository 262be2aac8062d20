from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from kits import ROOT
from rdzv_http.conformance import http_server

from rdzv_plugins.testing import ServerProcess, free_port


@pytest.fixture(scope="module", autouse=True)  # not for longer: other tests of this process do without
def _server_finds_its_modules() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT / "examples/rdzv-http/src"), prepend=os.pathsep)
        yield


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    """It has nothing yet, and keeps nothing."""
    server = http_server(free_port(), tmp_path / "log")
    server.start()
    yield server
    server.kill()
