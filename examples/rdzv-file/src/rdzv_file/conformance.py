"""What the conformance suite of rdzv-plugins has to know of this backend."""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType

from rdzv_plugins.testing import Harness


class FileHarness(Harness):
    """Every job gets a directory of its own; there is nothing to start."""

    backend = "file"
    kind = "state"
    dialled = False
    conf = MappingProxyType(
        {
            "keep_alive_interval": "1",
            "keep_alive_max_attempt": "10",  # a node on a busy machine is late, not lost
            "join_timeout": "60",
            "last_call_timeout": "2",
            "linger": "2",
        }
    )
    wrong_endpoints = ("no/such/directory", "node-0:29400")

    def endpoint(self, directory: Path) -> str:
        return str(directory)
