"""What a node can be told to do: the calls that torch's agent makes, a worker's store, figures of the process.

Arguments and results are data (``messages``); errors are returned to the tests as they are raised.
"""

from __future__ import annotations

import dataclasses
import gc
import itertools
import os
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

from rdzv_plugins.assemble.create import create_rendezvous, prepare
from rdzv_plugins.assemble.rendezvous import Rendezvous
from rdzv_plugins.coordination import CoordinationBackend
from rdzv_plugins.host import PluginHost
from rdzv_plugins.interfaces import Failure, Outcome, RendezvousBackend, RendezvousHandler, Request, TorchHandler
from rdzv_plugins.testing.nodes.counts import Asked, counted

_MONITOR_S = 0.1
"""How often the agent asks whether it has to restart, in seconds, as torch's does: each question may be a request."""


class Commands:
    """The commands of one node. Each lane calls them on a thread of its own; see ``process``."""

    def __init__(self, job: Mapping[str, Any]) -> None:
        request = dict(job["request"])
        for name in ("conf", "entrypoint", "given"):
            kind: Any = {"conf": MappingProxyType, "entrypoint": tuple, "given": frozenset}[name]
            request[name] = kind(request[name])
        self._request = Request(**request)
        self._asked = Asked()
        self._rendezvous: Rendezvous | None = None
        self._failed: Exception | None = None
        self._info: Any = None
        self._where: tuple[str, int] = ("", 0)
        self._worker: Any = None
        self._worker_lock = threading.Lock()

    # the agent's main thread

    def create(self) -> None:
        """Make the handler as the launcher does: load, prepare, create. Done once; an error is raised again."""
        if self._failed is not None:
            raise self._failed
        if self._rendezvous is not None:
            return
        try:
            host = PluginHost.load()
            entry = host.catalog.find(self._request.backend)
            request = prepare(entry, self._request)
            self._rendezvous = create_rendezvous(host, counted(entry, self._asked), request)
        except Exception as error:
            self._failed = error
            raise

    def join(self) -> dict[str, Any]:
        """Call ``next_rendezvous``; returns this node's place."""
        self.create()
        rendezvous = self._joins()
        self._info = rendezvous.next_rendezvous()
        where = self._info.bootstrap_store_info
        address, port = (where.master_addr, where.master_port) if where is not None else ("", 0)
        env = rendezvous.worker_env({"MASTER_ADDR": address, "MASTER_PORT": str(port)})
        self._where = env.get("MASTER_ADDR", address), int(env.get("MASTER_PORT", port))
        return {
            "rank": self._info.rank,
            "world": self._info.world_size,
            "address": self._where[0],
            "port": self._where[1],
            "env": env,
        }

    def num_nodes_waiting(self) -> int:
        return self._get().num_nodes_waiting()

    def await_change(self, timeout: float) -> int:
        """Ask as an agent does until the answer is not 0; returns it, or 0 after ``timeout`` seconds."""
        deadline = time.monotonic() + timeout
        while not (waiting := self._get().num_nodes_waiting()) and time.monotonic() < deadline:
            time.sleep(_MONITOR_S)
        return waiting

    def is_closed(self) -> bool:
        return self._get().is_closed()

    def await_closed(self, timeout: float) -> bool:
        """Ask until it is closed; False after ``timeout`` seconds."""
        deadline = time.monotonic() + timeout
        while not (closed := self._get().is_closed()) and time.monotonic() < deadline:
            time.sleep(_MONITOR_S)
        return closed

    def set_closed(self) -> None:
        self._get().set_closed()

    def must_rejoin(self) -> bool:
        return self._get().must_rejoin()

    def raise_if_ended(self) -> None:
        self._get().raise_if_ended()

    def peer_lost(self) -> bool:
        return self._get().peer_lost()

    def overrides(self) -> list[str]:
        """What the backend's own handler does otherwise than the base class."""
        handler = self._get()
        own = type(self._asked.created if isinstance(self._asked.created, TorchHandler) else handler)
        before = itertools.takewhile(lambda cls: cls is not RendezvousHandler, own.__mro__)
        return sorted({name for cls in before for name in vars(cls)} & vars(RendezvousHandler).keys())

    def renew(self, changes: dict[str, Any]) -> None:
        """Forget the handler, which was shut down: the next command is for a new one, from a changed request."""
        self._request = dataclasses.replace(self._request, **changes)
        self._rendezvous = self._failed = None
        self._asked = Asked()

    def get_run_id(self) -> str:
        return self._get().get_run_id()

    def note_done(self) -> None:
        self._get().note_done()

    def note_leaving(self, reason: str) -> None:
        self._get().note_leaving(reason)

    def first_failure(self) -> dict[str, Any] | None:
        failure = self._get().first_failure()
        return dataclasses.asdict(failure) if failure is not None else None

    def leave(self, end: Any, reason: str, failure: dict[str, Any] | None) -> None:
        """Leave as the launcher does at its end, including shutdown."""
        rendezvous = self._joins()
        try:
            rendezvous.leave(Outcome(end, reason, _failure(failure) if failure else None))
        finally:
            self.shutdown()

    def shutdown(self) -> bool:
        """Let go of everything, including the stores of the worker and the agents."""
        with self._worker_lock:
            self._worker = None
        self._info = None
        return self._joins().shutdown()

    def store(self, operation: str, *args: Any) -> Any:
        """Call a method of the store of the round's agents, ``RendezvousInfo.store``."""
        assert self._info is not None, "this node is in no round"
        return _call(self._info.store, operation, args)

    # a worker

    def worker(self, operation: str, *args: Any) -> Any:
        """Call the round's store as a worker would, with torch's own client, which is kept until ``worker_quit``."""
        with self._worker_lock:
            if self._worker is None:
                from torch.distributed import TCPStore

                self._worker = TCPStore(*self._where, is_master=False, timeout=timedelta(seconds=60))
            client = self._worker
        return _call(client, operation, args)

    def worker_quit(self) -> None:
        """The worker has ended: the next one is another client."""
        with self._worker_lock:
            self._worker = None

    # at any time

    def note_failure(self, failure: dict[str, Any]) -> None:
        self._get().note_failure(_failure(failure))

    def hosts(self) -> bool | None:
        """Whether this process serves the endpoint, according to its backend; None if it does not say."""
        created = self._asked.created
        if isinstance(created, CoordinationBackend):
            return bool(created.hosts_service)
        return bool(cast(Any, self._get())._hosts_store) if isinstance(created, RendezvousBackend) else None

    def leads(self) -> bool:
        """Whether its session has become the leader's. It stays so until the session ends."""
        return self._asked.leads

    def requests(self) -> dict[str, int]:
        """The calls of a session, or of a state backend, so far."""
        return self._asked.counts()

    def has_written(self) -> bool | None:
        """Whether its session, or its state, has been written to; None if that is not known here."""
        if isinstance(self._asked.created, TorchHandler):
            return None
        return self._asked.has_written

    def traffic(self) -> int:
        """Segments with data that this process has sent on the TCP connections that are open now."""
        return sum(map(_segments_sent, _open()))

    def resources(self) -> dict[str, Any]:
        """What this process holds: threads by the kernel's count, descriptors by kind, the pids of its children."""
        gc.collect()  # releases what waits for that
        return {
            "threads": len(os.listdir("/proc/self/task")),
            "descriptors": dict(Counter(target.partition(":[")[0] for target in map(_target, _open()) if target)),
            "children": _children(),
        }

    def _joins(self) -> Rendezvous:
        if self._rendezvous is None:
            self.create()
        assert self._rendezvous is not None
        return self._rendezvous

    def _get(self) -> RendezvousHandler:
        return self._joins().handler


def _call(store: Any, operation: str, args: Any) -> Any:
    return getattr(store, operation)(*args)


def _failure(data: dict[str, Any]) -> Failure:
    return Failure(**{**data, "stderr": tuple(data.get("stderr", ()))})


def _open() -> list[Path]:
    return list(Path("/proc/self/fd").iterdir())  # and that of the list itself, which is closed by now


def _segments_sent(path: Path) -> int:
    """Linux's ``tcpi_data_segs_out`` of an open descriptor; 0 if it is no TCP connection."""
    if not _target(path).startswith("socket:"):
        return 0
    try:
        copy = os.dup(int(path.name))
    except OSError:  # closed in the meantime
        return 0
    try:
        connection = socket.socket(fileno=copy)
    except OSError:  # something else has its number now
        os.close(copy)
        return 0
    try:
        with connection:
            info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 232)
    except OSError:  # a socket of another kind
        return 0
    sent: int = struct.unpack_from("=I", info, 156)[0]
    return sent


def _target(path: Path) -> str:
    try:
        return os.readlink(path)
    except OSError:  # closed in the meantime
        return ""


def _children() -> list[int]:
    found: list[int] = []
    for task in Path("/proc/self/task").iterdir():
        try:
            found += map(int, (task / "children").read_text().split())
        except OSError:  # the thread has just ended
            continue
    return sorted(found)
