"""An etcd with one member as a child of whoever asks for it; the flags, variables and directory of any member."""

from __future__ import annotations

import http.client
import importlib.util
import os
import shutil
import tempfile
import urllib.request
from pathlib import Path

from rdzv_plugins.errors import MissingDependency
from rdzv_plugins.testing.harness import free_port
from rdzv_plugins.testing.services.process import ServerProcess


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
