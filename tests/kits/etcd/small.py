"""An etcd that can be filled, and emptied again."""

from __future__ import annotations

import contextlib

from kits.etcd.etcd_kit import Cluster

QUOTA = 1 << 20
"""Bytes that it may take."""


class Small(Cluster):
    """Started with ``--quota-backend-bytes`` of ``QUOTA``."""

    def fill(self) -> None:
        """Until it takes no more writes."""
        for _ in range(30):
            with contextlib.suppress(AssertionError):  # that there is no space left
                self.etcdctl("put", "rubbish", "x" * 120_000)  # more is too long for a command line
        assert "NOSPACE" in self.etcdctl("alarm", "list")

    def make_room(self) -> None:
        """As the documentation says."""
        revision = self.etcdctl("endpoint", "status", "--write-out=fields").partition('"Revision" : ')[2].split()[0]
        self.etcdctl("compact", "--physical", revision)
        self.etcdctl("defrag")
        self.etcdctl("alarm", "disarm")
