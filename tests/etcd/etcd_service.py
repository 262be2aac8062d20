"""An etcd as a ``Service`` of ``tests/wire/coordination_kit.py``: for each test a prefix of its own."""

from __future__ import annotations

import subprocess
import uuid
from contextlib import AbstractContextManager

from coordination_kit import client_of
from etcd_kit import Cluster

from rdzv_plugins.backends.etcd.coordination import EtcdCoordination


class EtcdService:
    """Every backend of it is as another process would have one."""

    kind = "etcd"
    least_ttl = 2.0  # in whole seconds, and more than etcd's election time-out of 1 s
    notices_a_kill = False
    one_revision_per_put = True
    whole_seconds = True

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.prefix = f"/test-{uuid.uuid4().hex[:8]}"
        self._backends: list[EtcdCoordination] = []

    def backend(self, run: str = "run") -> EtcdCoordination:
        backend = EtcdCoordination(self.cluster.endpoints, run, prefix=self.prefix)
        self._backends.append(backend)
        return backend

    def client(self, key: str, ttl: float, *, child: str = "") -> AbstractContextManager[subprocess.Popen[str]]:
        return client_of(self.cluster.endpoints, key, ttl, kind=self.kind, child=child, prefix=self.prefix)

    def close(self) -> None:
        for backend in self._backends:
            backend.close()
