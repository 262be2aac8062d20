"""The harnesses of the backends that come with rdzv-plugins, their etcd, and what a service of theirs has counted.

They also serve as an example of each kind.
"""

from __future__ import annotations

import http.client
import importlib.util
import os
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar

from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.errors import MissingDependency, RdzvError
from rdzv_plugins.testing.harness import Harness, Kind, ServiceCounts, free_port
from rdzv_plugins.testing.server import ServerProcess

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

_ANSWER_S = 60.0
_MESSAGES = re.compile(r'^grpc_server_msg_received_total\{(.*grpc_method="(\w+)".*)\} (\S+)$', re.MULTILINE)
_SYNCS = re.compile(r"^etcd_disk_wal_fsync_duration_seconds_(count|sum) (\S+)$", re.MULTILINE)


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
    probe = "rdzv_plugins.testing.builtin:of_native_store"
    imports = ("rdzv_plugins.kvstore.coordination.sessions",)


class TieredHarness(ParallelHarness):
    """``tiered``: like ``parallel``, with a proxy on each node."""

    backend = "tiered"


class EtcdHarness(Harness):
    """``etcd``: one member for all jobs, which it keeps apart by their ids."""

    backend = "etcd"
    kind: ClassVar[Kind] = "coordination"
    conf: Mapping[str, str] = MappingProxyType({**_ELASTIC, "outage_timeout": "20"})
    service: ServerProcess | None = None
    wrong_endpoints = (*_WRONG, "", "ftp://127.0.0.1:2379")
    imports = ("rdzv_plugins.backends.etcd.coordination",)
    remark = (
        "One etcd with a single member serves all jobs; its data is in memory where there is room. On a disk, where it "
        "waits for\neach change, it takes longer: rdzv bench rendezvous measures that."
    )

    def __init__(self) -> None:
        self._directory: Path | None = None

    def start(self) -> None:
        """Start etcd, with its data in memory if there is room. Raises ``RdzvError`` if it is not installed."""
        self.require()
        self._serve(data_directory())

    def require(self) -> None:
        if shutil.which("etcd") is None:
            remedy = "Install it: on Debian and Ubuntu, apt-get install etcd-server."
            raise MissingDependency("the program etcd is not installed", remedy=remedy)
        if importlib.util.find_spec("grpc") is None:
            raise MissingDependency(
                "backend 'etcd' needs module 'grpc', which is not installed",
                remedy="Install it: pip install 'rdzv-plugins[etcd]'",
            )

    def afresh(self, directory: Path) -> Harness:
        """Return a harness without keys and leases of earlier jobs, which would be in the way.

        Its data is in the given directory: a disk is what etcd waits for elsewhere, too.
        """
        return _FreshEtcdHarness(directory, self.conf)

    def close(self) -> None:
        if self.service is not None:
            self.service.kill()
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
        self.service = self._directory = None

    def _serve(self, directory: Path) -> None:
        self._directory = directory
        for attempt in range(3):  # somebody else may take a port between its choice and its use
            server = etcd_process(directory / str(attempt))
            try:
                server.start()
            except RdzvError as error:
                if "address already in use" not in str(error).lower() or attempt == 2:
                    raise
            else:
                self.service = server
                break

    def endpoint(self, directory: Path) -> str:
        """The endpoint of the server, the same for every job."""
        assert self.service is not None, "the harness was not started"
        return f"127.0.0.1:{self.service.port}"


class _FreshEtcdHarness(EtcdHarness):
    """One etcd after the other, each with its data in a new directory below the given one."""

    probe = "rdzv_plugins.testing.builtin:of_etcd"

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
        self._serve(Path(tempfile.mkdtemp(prefix="etcd-", dir=self._below)))
        return super().endpoint(directory)


def etcd_process(directory: Path) -> ServerProcess:
    """An etcd with one member and its data in ``directory``, which is created; not started yet."""
    directory.mkdir(parents=True)
    port, peers = free_port(), f"http://127.0.0.1:{free_port()}"
    flags = member_flags("conformance", directory / "data", f"http://127.0.0.1:{port}", peers)
    return ServerProcess(
        ["etcd", *flags, f"--initial-cluster=conformance={peers}", "--log-outputs=stderr"],
        port,
        log=directory / "log",
        keeps_data=True,
        environment=member_environment(),
        ready=lambda: _is_healthy(port),
    )


def member_flags(name: str, data: Path, clients: str, peers: str) -> list[str]:
    """The flags of a member that serves clients and peers at these URLs; the caller adds who the members are."""
    return [
        f"--name={name}",
        f"--data-dir={data}",
        "--logger=zap",
        f"--listen-client-urls={clients}",
        f"--advertise-client-urls={clients}",
        f"--listen-peer-urls={peers}",
        f"--initial-advertise-peer-urls={peers}",
    ]


def member_environment() -> dict[str, str]:
    """The variables of this process, without the settings of somebody else's etcd and etcdctl."""
    foreign = ("ETCD_", "ETCDCTL_")
    own = ("ETCD_UNSUPPORTED_ARCH",)
    return {name: value for name, value in os.environ.items() if name in own or not name.startswith(foreign)}


def data_directory(otherwise: Path | None = None, *, room_mib: int = 500) -> Path:
    """Make a directory, in memory if it has room, else in ``otherwise``, or where temporary files go.

    etcd waits for the disk at each write, and takes 64 MiB for a file of its log before it writes the first byte.
    """
    memory = Path("/dev/shm")
    if memory.is_dir() and shutil.disk_usage(memory).free >= room_mib * 2**20:
        for left in memory.glob("rdzv-etcd-*-*"):  # from tests that were killed
            if not Path("/proc", left.name.split("-")[2]).exists():
                shutil.rmtree(left, ignore_errors=True)
        otherwise = memory
    return Path(tempfile.mkdtemp(prefix=f"rdzv-etcd-{os.getpid()}-", dir=otherwise))


def _is_healthy(port: int) -> bool:
    """Whether etcd has elected itself and can write."""
    try:
        return '"true"' in _page(Endpoint("127.0.0.1", port), "/health", 5)
    except (OSError, http.client.HTTPException):  # refused, reset, timed out, or half an answer
        return False


def _page(endpoint: Endpoint, path: str, timeout: float) -> str:
    """What a member answers, whatever proxy the environment names. Raises ``OSError`` or ``HTTPException``."""
    from rdzv_plugins.backends.etcd.diagnosis import page_of
    from rdzv_plugins.kit.security import Security

    return page_of(endpoint, Security(), path, timeout)[1].decode(errors="replace")


def of_native_store(endpoint: Endpoint) -> ServiceCounts:
    """The statistics of a native store. Raises ``RdzvError`` if it does not answer."""
    from rdzv_plugins.kvstore.native.framing import ask_statistics

    statistics = ask_statistics(endpoint, _ANSWER_S)
    requests = {name: count for name, count in statistics["requests"].items() if count and name != "framed"}
    signs = requests.pop("keep_alive", 0)
    return ServiceCounts(requests, signs, cpu_s=float(sum(loop["cpu_s"] for loop in statistics["loops"])))


def of_etcd(endpoint: Endpoint) -> ServiceCounts:
    """The metrics of an etcd member. A watch is one message on a stream that stays open. Raises ``OSError``."""
    return parse_etcd_metrics(_page(endpoint, "/metrics", _ANSWER_S))


def parse_etcd_metrics(text: str) -> ServiceCounts:
    """What Prometheus' text format says about requests, signs of life and the disk."""
    requests = etcd_messages(text, "etcdserverpb.")
    syncs = {"count": 0.0, "sum": 0.0} | {name: float(value) for name, value in _SYNCS.findall(text)}
    signs = requests.pop("LeaseKeepAlive", 0)
    return ServiceCounts(dict(requests), signs, int(syncs["count"]), syncs["sum"])


def etcd_messages(text: str, service: str = "") -> Counter[str]:
    """How many messages a member got, by method: one for each request, and each single one of a stream.

    ``service`` is the beginning of the names of the services that count; by default, all do.
    """
    found: Counter[str] = Counter()
    for labels, method, value in _MESSAGES.findall(text):
        if f'grpc_service="{service}' in labels:
            found[method] += int(float(value))
    return +found
