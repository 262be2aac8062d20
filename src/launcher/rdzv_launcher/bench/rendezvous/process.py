"""A process of ``rdzv bench rendezvous`` that holds some of the nodes, each with a thread of its own.

It is a fork of the keeper, obeys lines of JSON on its socket, and is killed by the kernel when the keeper ends. Several
nodes in one process share its interpreter lock, while in a cluster each has a machine to itself. So there is no gate at
which all threads wait (thousands that want the lock at one time stand still), stacks are small, and garbage is
collected only between the rounds: a collection goes through the objects of all nodes, again and again. The interval at
which threads take turns (``sys.setswitchinterval``) is left alone: from 0.5 to 100 ms makes no difference.
"""

from __future__ import annotations

import gc
import itertools
import json
import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rdzv_launcher.bench.backends import TORCH_C10D, TORCH_STATIC
from rdzv_launcher.bench.method.readings import private_mib
from rdzv_launcher.bench.processes.hosts import Machine, inside
from rdzv_launcher.bench.rendezvous.hosted_node import HostedNode
from rdzv_launcher.bench.rendezvous.nodes import NOT_TOLD, Node, as_request, gave_up
from rdzv_launcher.bench.rendezvous.torch_nodes import TorchDynamicNode, TorchStaticNode
from rdzv_plugins.host import PluginHost

_STACK_BYTES = 256 * 1024


class NodeProcess:
    """The nodes of this process. The main thread obeys; the nodes' threads report when the last of them has joined."""

    def __init__(self, connection: socket.socket, host: PluginHost, task: Mapping[str, Any], mine: Mapping[str, Any]):
        """``mine``: the numbers of its nodes, the endpoint of each but node 0, and where the process should be."""
        self._connection, self._host, self._task, self._mine = connection, host, task, mine
        self._sending = threading.Lock()
        self._nodes: dict[int, Node] = {}
        self._wanted = 0
        self._missing = itertools.count()
        self._joins: Counter[int] = Counter()
        self._began = 0.0
        self._private_mib = 0.0

    def run(self) -> None:
        """Obey until the socket is closed."""
        gc.disable()
        threading.stack_size(_STACK_BYTES)
        with inside(Machine(**self._mine["machine"])), self._connection.makefile("r", encoding="utf-8") as lines:
            self._private_mib = private_mib()
            for line in lines:
                command = json.loads(line)
                answer = getattr(self, f"_{command.pop('do')}")(**command)
                if answer is not None:
                    self._send(answer)

    def _create(self) -> dict[str, Any] | None:
        """Create the handlers, one after another, before any clock starts."""
        try:
            for number in self._mine["numbers"]:
                self._nodes[number] = self._node(number)
        except Exception as error:
            return gave_up(error)
        return {"created": len(self._nodes), "tells": next(iter(self._nodes.values())).tells}

    def _node(self, number: int) -> Node:
        request = as_request(self._task["request"])
        request = replace(request, endpoint=self._mine["endpoint"] if number else self._task["request"]["endpoint"])
        if self._task["ranks"] or (number == 0 and self._task["native"]):  # native nodes cannot be rank 0
            request = replace(request, node_rank=number)
        if self._task["says_who_serves"]:
            serves = self._task["first_serves"] and number == 0
            request = replace(request, conf={**request.conf, "is_host": str(serves).lower()})
        if self._task["addresses"]:
            request = replace(request, local_addr=self._mine["machine"]["address"])
        if self._task["target"] == TORCH_C10D:
            return TorchDynamicNode(number, request, self._task["timeout_s"])
        if self._task["target"] == TORCH_STATIC:
            return TorchStaticNode(number, request, self._task["timeout_s"])
        return HostedNode(self._host, request)

    def _report(self, expect: int, begins: bool) -> dict[str, Any]:
        """What is known about the nodes. If a phase ``begins``, this many of them are ``expect``ed to join in it."""
        cpu_s = time.process_time()
        nodes = [
            {"number": number, "rank": node.rank, "world": node.world} | node.facts()
            for number, node in self._nodes.items()
        ]
        known = [node.known_at for node in self._nodes.values() if node.known_at is not None]
        memory = private_mib() - self._private_mib
        if begins:
            self._wanted = expect
            self._missing = itertools.count(expect - 1, -1)  # its next is atomic, and needs no lock
            gc.collect()
        return {
            "nodes": nodes,
            "joins": sum(self._joins.values()),
            "known_at": min(known, default=None),
            "cpu_s": cpu_s,
            "memory_mib": max(0.0, memory),
            "cpu_after_s": time.process_time(),
        }

    def _join(self) -> None:
        """Let all nodes join, one straight after another."""
        self._began = time.perf_counter()
        for number, node in self._nodes.items():
            threading.Thread(target=self._live, args=(number, node), name=f"node-{number}", daemon=True).start()

    def _again(self) -> None:
        """A node was lost: those that nobody tells join again, as when their workers have failed."""
        for node in self._nodes.values():
            if node.tells == NOT_TOLD:
                node.again()

    def _close(self, number: int) -> None:
        self._nodes[number].close()

    def _watch(self, number: int, key: str) -> dict[str, Any]:
        return {"watching": self._nodes[number].watch(key)}

    def _live(self, number: int, node: Node) -> None:
        try:
            while True:
                node.join()
                now = time.perf_counter()
                self._joins[number] += 1
                missing = next(self._missing)
                if missing == 0:
                    self._send({"joined": self._wanted, "began": self._began, "last": now})
                node.wait_over()
        except Exception as error:
            self._send(gave_up(error))

    def _so_far(self) -> dict[str, Any]:
        return {"so_far": self._wanted - 1 - next(self._missing)}

    def _send(self, answer: Mapping[str, Any]) -> None:
        data = json.dumps(answer).encode() + b"\n"
        try:
            with self._sending:
                self._connection.sendall(data)
        except OSError:  # the keeper has ended, and so does this process
            os._exit(1)
