"""The processes of one run of ``rdzv bench tiered``: root, relay and proxies, and what is read from them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from types import TracebackType
from typing import Any

from rdzv_launcher.bench.processes.closed import OPEN
from rdzv_launcher.bench.processes.hosts import Machine, Network
from rdzv_launcher.bench.processes.parts import Part

FILES_PER_PROCESS = 18_000
_FILES_PER_PROXY = 10
"""A proxy's own files, besides one for each worker."""
_SETTLE_LIMIT_S = 2.0
_QUIET_S = 0.03


class TieredParts:
    """A root, and the way of each node to it. A context manager."""

    def __init__(
        self,
        network: Network,
        nodes: Sequence[Machine],
        *,
        per_node: int,
        delay_s: float,
        conf: Mapping[str, str] = OPEN,
    ) -> None:
        """``delay_s``: of a round trip between a node and the root. ``conf``: from ``closed.conf_of``, for both."""
        self.apart = network.namespaces
        """Whether each node has its own addresses."""
        self._network, self._nodes, self._per_node, self._conf = network, nodes, per_node, dict(conf)
        self._stack = ExitStack()
        self._proxies: list[Part] = []
        self._relay: Part | None = None
        self.places: list[tuple[str, str]] = []
        """For each node: where its workers dial, and the file of the network from which they do."""
        try:
            self.root = self._start("store", machine=asdict(network.root), conf=self._conf)
            host, port = network.root.address, self.root.port
            if delay_s:
                home = asdict(network.relay)
                self._relay = self._start("relay", machine=home, host=host, port=port, delay_s=delay_s / 2)
                host, port = network.relay.address, self._relay.port
            self.entrance = host, port
            """The address of the root, or of the relay in front of it."""
            self.places = [(f"{host}:{port}", node.network) for node in nodes]
        except BaseException:
            self._stack.close()
            raise

    def __enter__(self) -> TieredParts:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def open_proxies(self, *, unix: bool, fanout: int, echo: bool = False) -> None:
        """Open one proxy on each node, or an ``echo`` in its place.

        With ``fanout`` that many proxies dial the root, and each other one dials one of those.
        """
        files = self._per_node + _FILES_PER_PROXY
        together = max(1, FILES_PER_PROCESS // files)
        groups = [range(start, len(self._nodes))[:together] for start in range(0, len(self._nodes), together)]
        parts = [Part("proxies", conf=self._conf) for _ in groups]
        for part in parts:
            self._proxies.append(self._stack.enter_context(part))
            part.start()
        where: dict[int, str] = {}
        for tier in ("parents", "children") if fanout else ("all",):
            for part, group in zip(parts, groups, strict=True):
                ranks = [rank for rank in group if tier == "all" or (rank < fanout) == (tier == "parents")]
                asked = [self._proxy(rank, where, unix=unix, fanout=fanout, echo=echo) for rank in ranks]
                where.update(zip(ranks, part.question(open=asked)["places"], strict=True))
        self.places = [(where[rank], node.network) for rank, node in enumerate(self._nodes)]

    def _proxy(self, rank: int, where: dict[int, str], *, unix: bool, fanout: int, echo: bool) -> dict[str, Any]:
        host, port = self.entrance
        if fanout and rank >= fanout:
            parent = rank % fanout
            host, port = self._nodes[parent].address, int(where[parent].rpartition(":")[2])
        each = {"machine": asdict(self._nodes[rank]), "name": f"node-{rank}", "host": host, "port": port}
        return each | {"unix": unix, "parent": rank < fanout, "echo": echo}

    def cpu_seconds(self) -> dict[str, float]:
        """CPU time of root, proxies and relay so far, once they have nothing left to do."""
        end = time.monotonic() + _SETTLE_LIMIT_S
        before = self._cpu_seconds()
        while True:
            time.sleep(_QUIET_S)
            now = self._cpu_seconds()
            busy = sum(now.values()) - sum(before.values())
            if busy < _QUIET_S / 10 or time.monotonic() > end:
                return now
            before = now

    def _cpu_seconds(self) -> dict[str, float]:
        return {
            "root": self.root.own_cpu_seconds(),
            "proxies": sum(part.own_cpu_seconds() for part in self._proxies),
            "relay": self._relay.own_cpu_seconds() if self._relay else 0.0,
        }

    def proxies_counted(self) -> dict[str, Any]:
        """What the proxies have counted, summed up; empty if there are none."""
        total: dict[str, Any] = {}
        for part in self._proxies:
            for name, value in part.question().items():
                if isinstance(value, dict):
                    group = total.setdefault(name, {})
                    for key, count in value.items():
                        group[key] = group.get(key, 0) + count
                else:
                    total[name] = total[name] + value if name in total else value
        return total

    def _start(self, role: str, **task: Any) -> Part:
        part = self._stack.enter_context(Part(role, **task))
        part.start()
        return part
