"""Single etcd processes on loopback.

They are killed when this process ends, however it does (setpriv --pdeathsig): none outlives a killed run of tests.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import urllib.request
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from kits.eventually import eventually
from kits.hosts.hosts import Host
from kits.needed import programs_needed
from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.testing.builtin import member_environment, member_flags
from rdzv_plugins.testing.harness import free_port
from rdzv_plugins.testing.parts import stop

START_S = 60.0
NEEDED_MIB = 2000
"""Room in memory for the data of a few members."""

# what dies with its parent dies with the very thread that started it: this one lives as long as the process
_starter = ThreadPoolExecutor(1, thread_name_prefix="etcd-kit")
# metrics and health are asked without a proxy that the environment may name
_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Member:
    """One etcd process; the same data and ports after a restart."""

    def __init__(self, name: str, directory: Path, scheme: str, host: Host | None = None) -> None:
        """On this machine, or on a ``host`` of its own."""
        self.name, self._host = name, host
        self.data = directory / name
        self.log = directory / f"{name}.log"
        address, ports = (host.address, (2379, 2380, 2381)) if host else ("127.0.0.1", [free_port() for _ in range(3)])
        self.endpoint = Endpoint(address, ports[0])
        self.url = f"{scheme}://{self.endpoint}"
        self.peer_url = f"http://{address}:{ports[1]}"
        self.metrics_url = f"http://127.0.0.1:{ports[2]}"  # plain, whatever TLS the clients speak
        self.stopped = False
        self._command: list[str] = []
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, arguments: Sequence[str] = ()) -> None:
        """Start the process; waits for nothing."""
        if arguments:
            before = self._host.enter(self.log.parent) if self._host else []
            self._command = [
                *(*before, "setpriv", "--pdeathsig", "KILL", "etcd"),
                *member_flags(self.name, self.data, self.url, self.peer_url),
                f"--listen-metrics-urls={self.metrics_url}",
                *arguments,
            ]
        with self.log.open("ab") as log:
            self._process = _starter.submit(
                subprocess.Popen, self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment()
            ).result()
        self.stopped = False

    @property
    def pid(self) -> int:
        assert self._process
        return self._process.pid

    @property
    def alive(self) -> bool:
        """True from ``start`` until its process has ended; true while it is stopped."""
        return self._process is not None and self._process.poll() is None

    @property
    def runs(self) -> bool:
        """True while it is alive and not stopped."""
        return self.alive and not self.stopped

    def kill(self) -> None:
        """SIGKILL."""
        if self._process:
            self._process.kill()
            self._process.wait(START_S)

    def stop(self) -> None:
        """SIGSTOP; returns when each of its threads has stopped."""
        stop(self.pid)
        self.stopped = True

    def cont(self) -> None:
        """SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)
        self.stopped = False

    def restart(self) -> None:
        """Start it again, with its data; returns when it listens, be there a quorum or not."""
        assert not self.alive
        self.start()
        self.wait(self.metrics)

    def wait(self, condition: Callable[[], Any]) -> None:
        """Until the condition holds; fails at once when the process has ended."""
        eventually(lambda: condition() or not self.alive, self._text)
        assert self.alive, self._text()

    def healthy(self) -> bool:
        """It has a leader and can commit."""
        return self.runs and '"true"' in self._get("/health")

    def metrics(self) -> str:
        """All its metrics as text; empty where it gives none."""
        return self._get("/metrics") if self.runs else ""

    def leads(self) -> bool:
        return re.search(r"^etcd_server_is_leader 1$", self.metrics(), re.MULTILINE) is not None

    def _get(self, path: str) -> str:
        if self._host:
            return self._host.get(self.metrics_url + path)
        try:
            with _direct.open(self.metrics_url + path, timeout=5) as answer:
                return str(answer.read().decode())
        except OSError:  # refused, reset, timed out, or an error of HTTP
            return ""

    def _text(self) -> str:
        return f"{self.name}: {self.log.read_text(errors='replace')[-4000:]}"


def environment() -> dict[str, str]:
    """Ours, for an etcd and for an etcdctl that is asked as we ask it."""
    return member_environment() | {"ETCDCTL_API": "3"}


def require_programs() -> None:
    """Or the test is skipped; CI fails."""
    programs_needed("etcd", "etcdctl", "setpriv", install="etcd-server etcd-client util-linux")
