"""The harnesses of the backends that come with rdzv-plugins. Also an example of each kind."""

from __future__ import annotations

import http.client
import importlib.util
import os
import shutil
import tempfile
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar, Literal

from rdzv_plugins.errors import MissingDependency, RdzvError
from rdzv_plugins.testing.harness import Harness, free_port
from rdzv_plugins.testing.server_process import ServerProcess

_LOST_AFTER_S = 4
"""A node that is not heard of for so many seconds is lost: short for the tests that wait for it, and long enough for a
busy machine."""
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
    kind: ClassVar[Literal["state", "coordination", "handler"]] = "handler"
    conf = MappingProxyType({"timeout": "120", "linger": "2"})
    wrong_endpoints = (*_WRONG, "", "127.0.0.1")  # no default port


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


class ParallelHarness(Harness):
    """``parallel``: the first node serves the endpoint."""

    backend = "parallel"
    kind: ClassVar[Literal["state", "coordination", "handler"]] = "coordination"
    conf = _ELASTIC
    wrong_endpoints = _WRONG


class TieredHarness(ParallelHarness):
    """``tiered``: as ``parallel``, and a proxy on each node."""

    backend = "tiered"


class EtcdHarness(Harness):
    """``etcd``: one member for all jobs, which it keeps apart by their ids."""

    backend = "etcd"
    kind: ClassVar[Literal["state", "coordination", "handler"]] = "coordination"
    conf = MappingProxyType({**_ELASTIC, "outage_timeout": "20"})
    wrong_endpoints = (*_WRONG, "", "ftp://127.0.0.1:2379")

    def __init__(self) -> None:
        self._directory: Path | None = None
        self._server: ServerProcess | None = None

    def start(self) -> None:
        """Start etcd, with its data in memory where there is room. Raises ``RdzvError`` if it is not installed."""
        _require_etcd()
        self._directory = _data_directory()
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

    def close(self) -> None:
        if self._server is not None:
            self._server.kill()
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)

    def endpoint(self, directory: Path) -> str:
        """The same for every job."""
        assert self._server is not None, "the harness was not started"
        return f"127.0.0.1:{self._server.port}"


def etcd_process(directory: Path) -> ServerProcess:
    """An etcd of one member with its data in ``directory``, which is made; not started yet."""
    directory.mkdir(parents=True)
    clients, peers = free_port(), free_port()
    settings = {
        "name": "conformance",
        "data-dir": str(directory / "data"),
        "listen-client-urls": f"http://127.0.0.1:{clients}",
        "advertise-client-urls": f"http://127.0.0.1:{clients}",
        "listen-peer-urls": f"http://127.0.0.1:{peers}",
        "initial-advertise-peer-urls": f"http://127.0.0.1:{peers}",
        "initial-cluster": f"conformance=http://127.0.0.1:{peers}",
        "logger": "zap",
        "log-outputs": "stderr",
    }
    own = ("ETCD_UNSUPPORTED_ARCH",)  # the others are settings of somebody else's etcd
    environment = {name: value for name, value in os.environ.items() if name in own or not name.startswith("ETCD_")}
    return ServerProcess(
        ["etcd", *(f"--{name}={value}" for name, value in settings.items())],
        clients,
        log=directory / "log",
        keeps_data=True,
        environment=environment,
        ready=lambda: _is_healthy(clients),
    )


def _require_etcd() -> None:
    if shutil.which("etcd") is None:
        raise MissingDependency(
            "the program etcd is not installed", remedy="Install it: on Debian and Ubuntu, apt-get install etcd-server."
        )
    missing = [name for name in ("etcd3", "grpc") if importlib.util.find_spec(name) is None]
    if missing:
        raise MissingDependency(
            f"backend 'etcd' needs module {missing[0]!r}, which is not installed",
            remedy="Install it: pip install 'rdzv-plugins[etcd]'",
        )


def _data_directory() -> Path:
    """In memory if it may be: etcd waits for the disk at each write, and takes 64 MiB for a file of its log."""
    memory, needed = Path("/dev/shm"), 500 * 2**20
    name = f"rdzv-etcd-{os.getpid()}-"
    if memory.is_dir() and shutil.disk_usage(memory).free > needed:
        for left in memory.glob("rdzv-etcd-*-*"):  # by tests that were killed
            if not Path("/proc", left.name.split("-")[2]).exists():
                shutil.rmtree(left, ignore_errors=True)
        return Path(tempfile.mkdtemp(prefix=name, dir=memory))
    return Path(tempfile.mkdtemp(prefix=name))


def _is_healthy(port: int) -> bool:
    """It has elected itself and can write."""
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # whatever proxy the environment names
    try:
        with direct.open(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
            return b'"true"' in answer.read()
    except (OSError, http.client.HTTPException):  # refused, reset, timed out, or half an answer
        return False
