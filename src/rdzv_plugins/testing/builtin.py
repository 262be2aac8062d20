"""The harnesses of the backends that come with rdzv-plugins. They also serve as an example of each kind."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar

from rdzv_plugins.errors import RdzvError
from rdzv_plugins.testing.harness import Harness, Kind
from rdzv_plugins.testing.server import ServerProcess
from rdzv_plugins.testing.services import data_directory, etcd_process, require_etcd

_LOST_AFTER_S = 4
"""A node that is not heard from for this many seconds is lost.

Short for the tests that wait for it, and long enough for a busy machine.
"""
_WRONG = ("a b", "127.0.0.1:99999", "fe80::1:2:3")

_ELASTIC: Mapping[str, str] = MappingProxyType(
    {
        "ttl": str(_LOST_AFTER_S),
        "timeout": "120",
        "last_call_timeout": "2",
        "linger": "2",
        "allow_same_host": "true",  # all nodes of the suite are on one machine
    }
)


class StaticHarness(Harness):
    """``static``: node rank 0 serves the endpoint."""

    backend = "static"
    kind: ClassVar[Kind] = "handler"
    conf = MappingProxyType({"timeout": "120", "linger": "2"})
    wrong_endpoints = (*_WRONG, "127.0.0.1")  # no default port
    imports = ("rdzv_plugins.backends.static.handler",)


class C10dHarness(Harness):
    """``c10d``: the first node serves the endpoint."""

    backend = "c10d"
    conf = MappingProxyType(
        {
            "keep_alive_interval": "1",
            "keep_alive_max_attempt": str(_LOST_AFTER_S),
            "join_timeout": "120",
            "last_call_timeout": "2",
            "linger": "2",
        }
    )
    wrong_endpoints = _WRONG
    imports = ("rdzv_plugins.backends.c10d.backend",)


class ParallelHarness(Harness):
    """``parallel``: the first node serves the endpoint."""

    backend = "parallel"
    kind: ClassVar[Kind] = "coordination"
    conf = _ELASTIC
    wrong_endpoints = _WRONG
    native = True
    probe = "rdzv_plugins.testing.services:of_native_store"
    imports: tuple[str, ...] = ("rdzv_plugins.kvstore.coordination.sessions",)


class TieredHarness(ParallelHarness):
    """``tiered``: like ``parallel``, with a proxy on each node."""

    backend = "tiered"
    imports = (*ParallelHarness.imports, "rdzv_plugins.kvstore.native.proxy")


class EtcdHarness(Harness):
    """``etcd``: one member for all jobs, which it keeps apart by their ids."""

    backend = "etcd"
    kind: ClassVar[Kind] = "coordination"
    conf: Mapping[str, str] = MappingProxyType({**_ELASTIC, "outage_timeout": "20"})
    wrong_endpoints = (*_WRONG, "", "ftp://127.0.0.1:2379")
    imports = ("rdzv_plugins.backends.etcd.coordination",)
    remark = (
        "One etcd, of one member, serves all jobs, with its data in memory where there is room. On a disk, for which "
        "it waits at\neach change, it takes longer: rdzv bench rendezvous measures it there."
    )

    def __init__(self) -> None:
        self._directory: Path | None = None
        self._server: ServerProcess | None = None

    def start(self) -> None:
        """Start etcd, with its data in memory if there is room. Raises ``RdzvError`` if it is not installed."""
        self.require()
        self._directory = data_directory()
        self._serve()

    def require(self) -> None:
        require_etcd()

    def afresh(self, directory: Path) -> Harness:
        """Return a harness without keys and leases of earlier jobs, which would be in the way.

        Its data is in the given directory: a disk is what etcd waits for elsewhere, too.
        """
        return _FreshEtcdHarness(directory, self.conf)

    def close(self) -> None:
        if self._server is not None:
            self._server.kill()
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
        self.service = self._server = self._directory = None

    def _serve(self) -> None:
        assert self._directory is not None, "made by who calls this"
        for attempt in range(3):  # somebody else may take a port between its choice and its use
            server = etcd_process(self._directory / str(attempt))
            try:
                server.start()
            except RdzvError as error:
                if "address already in use" not in str(error).lower() or attempt == 2:
                    raise
            else:
                self.service = self._server = server
                break

    def endpoint(self, directory: Path) -> str:
        """The endpoint of the server, the same for every job."""
        assert self._server is not None, "the harness was not started"
        return f"127.0.0.1:{self._server.port}"


class _FreshEtcdHarness(EtcdHarness):
    """One etcd after the other, each with its data in a new directory below the given one."""

    probe = "rdzv_plugins.testing.services:of_etcd"

    def __init__(self, directory: Path, conf: Mapping[str, str]) -> None:
        super().__init__()
        self.conf = conf
        self._below = directory

    def start(self) -> None:
        """Start nothing yet. Raises ``MissingDependency`` if etcd is not installed."""
        self.require()

    def endpoint(self, directory: Path) -> str:
        """The endpoint of a newly started etcd; that of the previous job is gone. Raises ``RdzvError``."""
        self.close()
        self._directory = Path(tempfile.mkdtemp(prefix="etcd-", dir=self._below))
        self._serve()
        return super().endpoint(directory)
