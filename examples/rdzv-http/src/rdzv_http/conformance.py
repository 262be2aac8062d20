"""What the conformance suite of rdzv-plugins has to know of this backend."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar, Literal

from rdzv_plugins.testing import Harness, ServerProcess, free_port


class HttpHarness(Harness):
    """One server for all jobs, which it keeps apart by their ids."""

    backend = "http"
    kind: ClassVar[Literal["state", "coordination", "handler"]] = "coordination"
    conf = MappingProxyType(
        {
            "ttl": "4",
            "outage_timeout": "10",
            "timeout": "120",
            "last_call_timeout": "2",
            "linger": "2",
            "allow_same_host": "true",
        }
    )
    wrong_endpoints = ("a b", "", "127.0.0.1:99999", "127.0.0.1:0", "fe80::1:2:3", "http://127.0.0.1")

    def start(self) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="rdzv-http-")
        self._port = free_port()
        self.service = http_server(self._port, Path(self._directory.name) / "log")
        self.service.start()

    def close(self) -> None:
        if self.service is not None:
            self.service.kill()
        self._directory.cleanup()

    def endpoint(self, directory: Path) -> str:
        return f"127.0.0.1:{self._port}"


def http_server(port: int, log: Path, *arguments: str) -> ServerProcess:
    """One that is not started yet."""
    command = [sys.executable, "-m", "rdzv_http.server", f"--port={port}", *arguments]
    return ServerProcess(command, port, log=log, keeps_data=False)
