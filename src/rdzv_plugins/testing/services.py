"""Our own backends' services: an etcd as a child of whoever asks for it, and what a service has counted.

The ``probe`` functions are those of the harnesses of ``builtin``.
"""

from __future__ import annotations

import http.client
import importlib.util
import os
import re
import shutil
import tempfile
import urllib.request
from collections import Counter
from pathlib import Path

from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.errors import MissingDependency
from rdzv_plugins.testing.harness import ServiceCounts, free_port
from rdzv_plugins.testing.server import ServerProcess

_ANSWER_S = 60.0
_MESSAGES = re.compile(r'^grpc_server_msg_received_total\{(.*grpc_method="(\w+)".*)\} (\S+)$', re.MULTILINE)
_SYNCS = re.compile(r"^etcd_disk_wal_fsync_duration_seconds_(count|sum) (\S+)$", re.MULTILINE)


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


def require_etcd() -> None:
    """Raise ``MissingDependency`` if etcd, or what its backend imports, is not installed."""
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
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # whatever proxy the environment names
    try:
        with direct.open(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
            return b'"true"' in answer.read()
    except (OSError, http.client.HTTPException):  # refused, reset, timed out, or half an answer
        return False


def of_native_store(endpoint: Endpoint) -> ServiceCounts:
    """The statistics of a native store. Raises ``RdzvError`` if it does not answer."""
    from rdzv_plugins.kvstore.native.framing import ask_statistics

    statistics = ask_statistics(endpoint, _ANSWER_S)
    requests = {name: count for name, count in statistics["requests"].items() if count and name != "framed"}
    signs = requests.pop("keep_alive", 0)
    return ServiceCounts(requests, signs, cpu_s=float(sum(loop["cpu_s"] for loop in statistics["loops"])))


def of_etcd(endpoint: Endpoint) -> ServiceCounts:
    """The metrics of an etcd member. A watch is one message on a stream that stays open. Raises ``OSError``."""
    connection = http.client.HTTPConnection(endpoint.host, endpoint.port, timeout=_ANSWER_S)
    try:
        connection.request("GET", "/metrics")
        return parse_etcd_metrics(connection.getresponse().read().decode())
    finally:
        connection.close()


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
