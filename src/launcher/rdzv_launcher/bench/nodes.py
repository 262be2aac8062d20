"""The nodes of ``rdzv bench rendezvous``, and a process that holds some of them, each with a thread of its own.

The process is a fork of the keeper, obeys what comes on its connection, and is killed by the kernel when the keeper
ends. Several nodes in one process share its interpreter lock, while in a cluster each has a machine to itself. So there
is no gate at which all threads wait (thousands that want the lock at one time stand still), stacks are small, and
garbage is collected only between the rounds: a collection goes through the objects of all nodes, again and again. The
interval at which threads take turns (``sys.setswitchinterval``) is left alone: from 0.5 to 100 ms makes no difference.

Two things that are touched here are not public interfaces of torch: ``_call_store`` of its ``C10dRendezvousBackend``,
through which all requests go, is wrapped to count them; and ``_settings.timeout._set_timeouts`` of its
``DynamicRendezvousHandler`` shortens the last call of rounds after the first. tests/bench/test_bench_rendezvous.py
fails if torch changes them.
"""

from __future__ import annotations

import gc
import itertools
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from multiprocessing.connection import Connection
from types import MappingProxyType
from typing import Any, cast

from rdzv_launcher.bench.backends import REFERENCES, TORCH_STATIC
from rdzv_plugins.assemble.create import create_rendezvous, prepare
from rdzv_plugins.coordination import CoordinationBackend
from rdzv_plugins.errors import RdzvError
from rdzv_plugins.host import PluginHost
from rdzv_plugins.interfaces import Capability, Request, TorchHandler
from rdzv_plugins.testing.counts import Asked, counted

_STACK_BYTES = 256 * 1024
_POLL_S = 0.1
"""How often torch's agent asks its handler."""
_LAST_CALL = timedelta(seconds=1)
"""How long torch's dynamic rendezvous waits for more nodes after a loss. In the join it waits for all."""
VIEW, POLLED, NOT_TOLD, FIXED = "view", "polled", "not told", "fixed"
"""How a node learns that it has to join again: it waits on what its handler has been told; it asks its handler now and
then; it learns it only from its failing workers; there is no further round.
"""


class Node:
    """What the benchmark asks of one simulated node. Each is used by its own thread, except where a method says so.

    Most are not told that they have to join again, and say nothing when they go.
    """

    tells = NOT_TOLD

    def __init__(self) -> None:
        self.rank = -1
        """Its rank in the last round, -1 before the first."""
        self.world = 0
        """How many nodes that round had, 0 before the first."""
        self.rendezvous: Any = None
        """By which it joins: a handler, or ours with the hooks of plug-ins around it."""
        self._handler: Any = None
        """The handler itself."""
        self._over = threading.Event()

    def join(self) -> None:
        """Join, by ``next_rendezvous``."""
        joined = self.rendezvous.next_rendezvous()
        self.rank, self.world = joined.rank, joined.world_size

    def wait_over(self) -> None:
        """Wait until this node has to join again, for ever if it was lost."""
        self._over.wait()
        self._over.clear()

    def again(self) -> None:
        """Make it join again, if it is not told: it is of torch's dynamic rendezvous. Any thread.

        Its last call is made shorter: the first round has to wait for all nodes.
        """
        self._handler._settings.timeout._set_timeouts(last_call=_LAST_CALL)
        self._over.set()

    def facts(self) -> dict[str, Any]:
        """``asked``: requests so far by name, None if unknown; ``leads``; ``round``, if that is known."""
        return {"asked": None, "leads": False}


def gave_up(error: Exception) -> dict[str, Any]:
    """Whatever a backend raises is a result. The error's type is included unless the error speaks for itself."""
    text = str(error).strip() or type(error).__name__
    return {"gave_up": text if isinstance(error, RdzvError) else f"{type(error).__name__}: {text}"}


class HostedNode(Node):
    """A node of an installed backend: the plug-in host makes request, options and handler."""

    def __init__(self, host: PluginHost, request: Request) -> None:
        """May connect, and block. Raises what the backend raises."""
        super().__init__()
        entry = host.catalog.find(request.backend)
        self._asked = Asked()
        self.rendezvous = create_rendezvous(host, counted(entry, self._asked), prepare(entry, request))
        self._handler = self.rendezvous.handler
        created = self._asked.created
        self._counts = not isinstance(created, TorchHandler)
        self._coordinates = self._counts and isinstance(created, CoordinationBackend)
        if Capability.ELASTIC not in entry.backend.capabilities:
            self.tells = FIXED
        elif self._coordinates:
            self.tells = VIEW
        elif not self._counts:
            self.tells = POLLED

    def wait_over(self) -> None:
        if self.tells not in (VIEW, POLLED):
            return super().wait_over()
        view = self._handler._view if self.tells == VIEW else None  # of ElasticHandler
        while True:
            seen = view.version if view else 0
            if self._handler.num_nodes_waiting():
                return None
            if view:  # woken by everything that can end a round, so nobody has to poll
                view.wait(seen, threading.TIMEOUT_MAX)
            else:
                time.sleep(_POLL_S)

    def facts(self) -> dict[str, Any]:
        asked = Counter(self._asked.counts())
        asked["put"] += asked.pop("create", 0)  # for a service they are one request
        round_ = {"round": self._handler._round.number} if self._coordinates else {}
        return round_ | {"asked": dict(+asked) if self._counts else None, "leads": self._asked.leads}


class TorchNode(Node):
    """torch's own, as plain torchrun makes it: dynamic on its ``C10dRendezvousBackend``, or static."""

    def __init__(self, number: int, request: Request, timeout_s: float, *, static: bool = False) -> None:
        """Connects to the store, which the node with number 0 serves; if it is static, not before it joins."""
        from torch.distributed.elastic.rendezvous import (
            RendezvousParameters,
            c10d_rendezvous_backend,
            dynamic_rendezvous,
            static_tcp_rendezvous,
        )

        super().__init__()
        limit_s = int(timeout_s)
        of_one = {"rank": number, "timeout": limit_s} if static else {"is_host": number == 0}
        parameters = RendezvousParameters(
            backend="static" if static else "c10d",
            endpoint=request.endpoint,
            run_id=request.run_id,
            min_nodes=request.min_nodes,
            max_nodes=request.max_nodes,
            local_addr=request.local_addr,  # as by --local-addr: otherwise it looks its own name up
            join_timeout=limit_s,
            last_call_timeout=limit_s,
            **of_one,
            **request.conf,
        )
        self._asked: Counter[str] | None = None
        if static:
            self.tells = FIXED
            self.rendezvous = static_tcp_rendezvous.create_rdzv_handler(parameters)
        else:
            backend, store = c10d_rendezvous_backend.create_backend(parameters)
            self._asked = self._counted(backend)
            self.rendezvous = self._handler = dynamic_rendezvous.create_handler(store, backend, parameters)

    def facts(self) -> dict[str, Any]:
        return {"asked": None if self._asked is None else dict(self._asked), "leads": False}

    def _counted(self, backend: Any) -> Counter[str]:
        """Its reads and writes, from now on, of the state that all nodes share."""
        asked: Counter[str] = Counter()
        call = backend._call_store

        def count(operation: str, *args: Any, **kwargs: Any) -> Any:
            asked[operation] += 1
            return call(operation, *args, **kwargs)

        backend._call_store = count
        return asked


class NodeProcess:
    """The nodes of this process. The main thread obeys; the nodes' threads report when the last of them has joined."""

    def __init__(self, host: PluginHost, task: Mapping[str, Any], numbers: Sequence[int]) -> None:
        """``numbers``: those of its nodes."""
        self._host, self._task, self._numbers = host, task, numbers
        self._sending = threading.Lock()
        self._nodes: dict[int, Node] = {}
        self._missing = itertools.count()
        self._began = 0.0

    def run(self, connection: Connection) -> None:
        """Obey until it is killed."""
        gc.disable()
        threading.stack_size(_STACK_BYTES)
        self._connection = connection
        while True:
            command = connection.recv()
            answer = getattr(self, f"_{command.pop('do')}")(**command)
            if answer is not None:
                self._send(answer)

    def _create(self) -> dict[str, Any] | None:
        """Create the handlers, one after another, before any clock starts."""
        try:
            for number in self._numbers:
                self._nodes[number] = self._node(number)
        except Exception as error:
            return gave_up(error)
        return {"created": len(self._nodes), "tells": next(iter(self._nodes.values())).tells}

    def _node(self, number: int) -> Node:
        task, request = self._task, cast(Request, self._task["request"])
        request = replace(request, conf=MappingProxyType(dict(request.conf)))
        if task["ranks"]:
            request = replace(request, node_rank=number)
        if task["says_who_serves"]:
            serves = task["first_serves"] and number == 0
            request = replace(request, conf={**request.conf, "is_host": str(serves).lower()})
        if task["addresses"]:
            request = replace(request, local_addr="127.0.0.1")
        if task["target"] in REFERENCES:
            return TorchNode(number, request, task["timeout_s"], static=task["target"] == TORCH_STATIC)
        return HostedNode(self._host, request)

    def _report(self, begins: bool) -> dict[str, Any]:
        """What is known about the nodes. If a phase ``begins``, all of them are to join in it."""
        cpu_s = time.process_time()
        nodes = [
            {"number": number, "rank": node.rank, "world": node.world} | node.facts()
            for number, node in self._nodes.items()
        ]
        if begins:
            self._missing = itertools.count(len(nodes) - 1, -1)  # its next is atomic, and needs no lock
            gc.collect()
        return {"nodes": nodes, "cpu_s": cpu_s, "cpu_after_s": time.process_time()}

    def _join(self) -> None:
        """Let all nodes join, one straight after another."""
        self._began = time.perf_counter()
        for number, node in self._nodes.items():
            threading.Thread(target=self._live, args=(node,), name=f"node-{number}", daemon=True).start()

    def _again(self) -> None:
        """A node was lost: those that nobody tells join again, as when their workers have failed."""
        for node in self._nodes.values():
            if node.tells == NOT_TOLD:
                node.again()

    def _live(self, node: Node) -> None:
        try:
            while True:
                node.join()
                now = time.perf_counter()
                missing = next(self._missing)
                if missing == 0:
                    self._send({"joined": len(self._nodes), "began": self._began, "last": now})
                node.wait_over()
        except Exception as error:
            self._send(gave_up(error))

    def _so_far(self) -> dict[str, Any]:
        return {"so_far": len(self._nodes) - 1 - next(self._missing)}

    def _send(self, answer: Mapping[str, Any]) -> None:
        with self._sending:
            self._connection.send(answer)
