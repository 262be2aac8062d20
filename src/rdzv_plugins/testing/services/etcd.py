"""An etcd with one member as a child of whoever asks for it: what it needs, and where its data goes."""

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


def data_directory() -> Path:
    """Make a directory, in memory if it has room: etcd waits for the disk at each write, and takes 64 MiB for a log."""
    memory, needed = Path("/dev/shm"), 500 * 2**20
    name = f"rdzv-etcd-{os.getpid()}-"
    if memory.is_dir() and shutil.disk_usage(memory).free > needed:
        for left in memory.glob("rdzv-etcd-*-*"):  # from tests that were killed
            if not Path("/proc", left.name.split("-")[2]).exists():
                shutil.rmtree(left, ignore_errors=True)
        return Path(tempfile.mkdtemp(prefix=name, dir=memory))
    return Path(tempfile.mkdtemp(prefix=name))


def _is_healthy(port: int) -> bool:
    """Whether etcd has elected itself and can write."""
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # whatever proxy the environment names
    try:
        with direct.open(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
            return b'"true"' in answer.read()
    except (OSError, http.client.HTTPException):  # refused, reset, timed out, or half an answer
        return False
