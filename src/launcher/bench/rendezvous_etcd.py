"""Backend ``etcd`` for ``rdzv bench rendezvous``: a fresh etcd for each run, with its data on a disk.

The conformance suite's harness keeps one for all jobs, in memory: keys and leases of earlier runs would be in the way.
"""

from __future__ import annotations

from pathlib import Path

from launcher.bench.etcd_server import HOST, EtcdServer, what_is_missing
from rdzv_plugins.errors import MissingDependency, UsageError
from rdzv_plugins.testing.builtin import EtcdHarness
from rdzv_plugins.testing.harness import Service


class FreshEtcd(EtcdHarness):
    """One etcd after the other, with data below ``directory``."""

    def __init__(self, directory: str) -> None:
        super().__init__()
        self._data = directory
        self._running: EtcdServer | None = None

    def start(self) -> None:
        """Raises ``MissingDependency`` where etcd cannot be measured; starts nothing yet."""
        missing = what_is_missing()
        if missing is not None:
            raise MissingDependency(missing[0], remedy=missing[1])

    def endpoint(self, directory: Path) -> str:
        """Of an etcd that has just been started; that of the run before is gone. Raises ``RdzvError``."""
        self.close()
        self._running = EtcdServer(self._data)
        self._running.wait_ready()
        self.service = _Process(self._running.pid)
        return f"{HOST}:{self._running.port}"

    def close(self) -> None:
        if self._running is not None:
            self._running.stop()
        self._running = self.service = None


class _Process(Service):
    """Of it only the process is of interest here."""

    def __init__(self, pid: int) -> None:
        self._pid = pid

    @property
    def pids(self) -> tuple[int, ...]:
        return (self._pid,)

    @property
    def keeps_data(self) -> bool:
        return True

    def kill(self) -> None:
        raise UsageError("it is ended with its harness")

    def start_again(self) -> None:
        raise UsageError("each run has its own")
