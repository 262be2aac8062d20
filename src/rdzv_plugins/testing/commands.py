"""What a node can be told to do: the calls that torch's agent makes, a worker's store, figures of the process.

Each node's process makes its handler as the launcher does and obeys what comes on its connection: a number, a lane, the
name of a command and its arguments. The answer has the same number, and an error or a value. Commands of one lane are
done one after the other; the lanes do not wait for each other:

* ``agent``, the main thread: everything that torch's agent would call;
* ``worker``: a stock torch client of the round's store, as a worker has one;
* ``side``: figures of the process, and notes that may come from any thread.
"""

from __future__ import annotations

import ctypes
import dataclasses
import itertools
import logging
import os
import queue
import socket
import struct
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any, TypeVar, cast

from rdzv_plugins.coordination import CoordinationBackend
from rdzv_plugins.interfaces import Failure, Outcome, RendezvousBackend, RendezvousHandler, Request, TorchHandler
from rdzv_plugins.registry import PluginHost
from rdzv_plugins.registry.create import create_rendezvous, prepare
from rdzv_plugins.registry.rendezvous import Rendezvous
from rdzv_plugins.testing.counts import Asked, counted
from rdzv_plugins.testing.parts import PATIENCE, census

T = TypeVar("T")

_libc = ctypes.CDLL(None)

_WAIT_S = 0.9 * PATIENCE
"""Seconds within which something has to be told: so the answer comes while the test waits for it."""
_MONITOR_S = 0.1
"""How often the agent asks whether it has to restart, in seconds, as torch's does: each question may be a request."""

LANES = {
    **dict.fromkeys(("worker", "worker_quit"), "worker"),
    **dict.fromkeys(("note_failure", "hosts", "leads", "requests", "has_written", "traffic", "resources"), "side"),
}
"""The lane of each command; ``agent`` for those that are not named."""


@dataclass(frozen=True)
class NodeJoined:
    """A node's place in a round, and where its workers find the store of the round."""

    rank: int
    world: int
    address: str
    """MASTER_ADDR of its workers."""
    port: int


class Commands:
    """The commands of one node, besides the methods of its handler. Each lane calls them on a thread of its own."""

    def __init__(self, request: Request) -> None:
        self._request = request
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

    def join(self) -> NodeJoined:
        rendezvous = self._joins()
        self._info = rendezvous.next_rendezvous()
        where = self._info.bootstrap_store_info
        address, port = (where.master_addr, where.master_port) if where is not None else ("", 0)
        env = rendezvous.worker_env({"MASTER_ADDR": address, "MASTER_PORT": str(port)})
        self._where = env.get("MASTER_ADDR", address), int(env.get("MASTER_PORT", port))
        return NodeJoined(self._info.rank, self._info.world_size, *self._where)

    def await_change(self, timeout: float = _WAIT_S) -> int:
        """Ask as an agent does until it has to restart its workers; returns what it is told, 0 after ``timeout`` s."""
        return self._await(self.handler().num_nodes_waiting, timeout)

    def await_closed(self) -> bool:
        """Ask until it is closed; False if it never is."""
        return self._await(self.handler().is_closed, _WAIT_S)

    @staticmethod
    def _await(ask: Callable[[], T], timeout: float) -> T:
        deadline = time.monotonic() + timeout
        while not (answer := ask()) and time.monotonic() < deadline:
            time.sleep(_MONITOR_S)
        return answer

    def overrides(self) -> list[str]:
        """What the backend's own handler does otherwise than the base class."""
        handler = self.handler()
        own = type(self._asked.created if isinstance(self._asked.created, TorchHandler) else handler)
        before = itertools.takewhile(lambda cls: cls is not RendezvousHandler, own.__mro__)
        return sorted({name for cls in before for name in vars(cls)} & vars(RendezvousHandler).keys())

    def renew(self, **changes: Any) -> None:
        """Forget the handler, which was shut down: the next command is for a new one, from a changed request."""
        self._request = dataclasses.replace(self._request, **changes)
        self._rendezvous = self._failed = None
        self._asked = Asked()

    def leave(self, end: Any = "done", reason: str = "", failure: Failure | None = None) -> None:
        """Tell the others and shut down, as the launcher does at its end."""
        rendezvous = self._joins()
        try:
            rendezvous.leave(Outcome(end, reason, failure))
        finally:
            self.shutdown()

    def shutdown(self) -> bool:
        """Let go of everything, including the stores of the worker and the agents."""
        self.worker_quit()
        self._info = None
        return self._joins().shutdown()

    def store(self, operation: str, *args: Any) -> Any:
        """Call a method of the store of the round's agents, ``RendezvousInfo.store``."""
        assert self._info is not None, "this node is in no round"
        return getattr(self._info.store, operation)(*args)

    # a worker

    def worker(self, operation: str, *args: Any) -> Any:
        """Call the round's store as a worker would, with torch's own client, which is kept until ``worker_quit``."""
        with self._worker_lock:
            if self._worker is None:
                from torch.distributed import TCPStore

                self._worker = TCPStore(*self._where, is_master=False, timeout=timedelta(seconds=60))
            client = self._worker
        return getattr(client, operation)(*args)

    def worker_quit(self) -> None:
        """The worker has ended: the next one is another client."""
        with self._worker_lock:
            self._worker = None

    # at any time

    def hosts(self) -> bool | None:
        """Whether this process serves the endpoint, according to its backend; None if it does not say."""
        created = self._asked.created
        if isinstance(created, CoordinationBackend):
            return bool(created.hosts_service)
        return bool(cast(Any, self.handler())._hosts_store) if isinstance(created, RendezvousBackend) else None

    def leads(self) -> bool:
        """Whether its session has become the leader's. It stays so until the session ends."""
        return self._asked.leads

    def requests(self) -> dict[str, int]:
        return self._asked.counts()

    def has_written(self) -> bool | None:
        """Whether its session, or its state, has been written to; None if that is not known here."""
        if isinstance(self._asked.created, TorchHandler):
            return None
        return self._asked.has_written

    def traffic(self) -> int:
        """Segments with data that this process has sent on the TCP connections that are open now."""
        return sum(map(_segments_sent, os.listdir("/proc/self/fd")))

    def resources(self) -> dict[str, int]:
        return census()

    def handler(self) -> RendezvousHandler:
        """The handler, which is made first if there is none."""
        return self._joins().handler

    def _joins(self) -> Rendezvous:
        self.create()
        assert self._rendezvous is not None
        return self._rendezvous


def _segments_sent(descriptor: str) -> int:
    """Linux's ``tcpi_data_segs_out`` of an open descriptor; 0 if it is no TCP connection, or was closed meanwhile."""
    info, size = ctypes.create_string_buffer(232), ctypes.c_uint32(232)
    # by its number: a copy of it would outlive the connection for a moment, and may be of something else by then
    if _libc.getsockopt(int(descriptor), socket.IPPROTO_TCP, socket.TCP_INFO, info, ctypes.byref(size)):
        return 0
    sent: int = struct.unpack_from("=I", info, 156)[0]
    return sent


def obey(connection: Connection, request: Request) -> None:
    """What a node's process runs: do what it is told to, until it is told to exit. The main thread is the agent's."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s: %(message)s", force=True)
    logging.getLogger("rdzv_plugins").setLevel(logging.DEBUG)
    commands = Commands(request)
    lanes: dict[str, queue.SimpleQueue[Any]] = {lane: queue.SimpleQueue() for lane in ("agent", "worker", "side")}
    sending = threading.Lock()

    def read() -> None:
        try:
            while True:
                number, lane, *told = connection.recv()
                lanes[lane].put((number, *told))
        except EOFError:
            os._exit(1)  # nobody is there who could ask for anything

    def work(lane: str) -> None:
        while True:
            number, name, args, kwargs = lanes[lane].get()
            error, value = None, None
            try:
                if name != "exit":
                    doer = commands if hasattr(commands, name) else commands.handler()
                    value = getattr(doer, name)(*args, **kwargs)
            except Exception as raised:
                logging.getLogger(__name__).debug("%s: %s", name, traceback.format_exc())
                error = _as_data(raised)
            with sending:
                connection.send((number, error, value))
            if name == "exit":
                return

    for lane in ("worker", "side"):
        threading.Thread(target=work, args=(lane,), name=f"node-{lane}", daemon=True).start()
    threading.Thread(target=read, name="node-commands", daemon=True).start()
    work("agent")


def _as_data(error: Exception) -> tuple[list[str], str, str, int | None]:
    """What ``NodeError`` is made of."""
    kinds = [kind.__name__ for kind in type(error).__mro__ if kind is not object]
    return kinds, str(error), str(getattr(error, "remedy", "")), getattr(error, "exit_code", None)
