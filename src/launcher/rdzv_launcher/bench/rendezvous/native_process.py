"""A process of ``rdzv bench rendezvous --simulate=native`` that holds nodes as light as sockets allow.

They live in the load generator (``native/bench/nodes.hpp``), on this process' only thread, and ask what a node of an
agent asks, one request after another. What such a node would say about itself and its job is taken from a handler that
is made as ``rdzv-run`` makes it, and never used.
"""

from __future__ import annotations

import dataclasses
import gc
import json
import socket
import time
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from msgspec import structs

from rdzv_launcher.bench.method.readings import private_mib
from rdzv_launcher.bench.processes.hosts import Machine, inside
from rdzv_launcher.bench.processes.load import load_module
from rdzv_launcher.bench.rendezvous.nodes import VIEW, as_request, gave_up
from rdzv_plugins.assemble.create import create_rendezvous, prepare
from rdzv_plugins.elastic.keys import MEMBERS, encode
from rdzv_plugins.endpoints import is_loopback_address, parse_endpoint
from rdzv_plugins.errors import RdzvError
from rdzv_plugins.host import PluginHost
from rdzv_plugins.kvstore.sockets.reach import default_address

if TYPE_CHECKING:
    from rdzv_launcher.bench._load import Nodes

_READ = 1 << 20
_PER_ADDRESS = 4096
_NO_PROXIES = "not measured: simulated native nodes have no proxies"
_DIFFERS = ', "by": '
"""From here on, the settings of a job are those of the node that wrote them."""


class NativeProcess:
    """The nodes of this process. Its only thread drives them while no command arrives; see ``NodeProcess``."""

    def __init__(
        self, connection: socket.socket, host: PluginHost, task: Mapping[str, Any], mine: Mapping[str, Any]
    ) -> None:
        self._connection, self._host, self._task, self._mine = connection, host, task, mine
        self._numbers: list[int] = mine["numbers"]
        self._nodes: Nodes | None = None
        self._wanted = 0
        self._began = self._private_mib = 0.0

    def run(self) -> None:
        """Obey until the socket is closed."""
        gc.disable()
        unread = b""
        with inside(Machine(**self._mine["machine"])):
            self._private_mib = private_mib()
            while data := self._told():
                *lines, unread = (unread + data).split(b"\n")
                for line in lines:
                    command = json.loads(line)
                    answer = getattr(self, f"_{command.pop('do')}")(**command)
                    if answer is not None:
                        self._send(answer)

    def _told(self) -> bytes:
        """What the keeper says. The nodes are driven until it says something."""
        try:
            while self._nodes is not None and self._nodes.drive(self._connection.fileno()):
                self._send({"joined": self._wanted, "began": self._began, "last": self._nodes.last})
        except load_module().LoadError as error:
            self._nodes = None
            self._send(gave_up(RdzvError(str(error))))
        return self._connection.recv(_READ)

    def _create(self) -> dict[str, Any]:
        try:
            self._nodes = self._made()
        except Exception as error:
            return gave_up(error)
        return {"created": len(self._numbers), "tells": VIEW}

    def _made(self) -> Nodes:
        request = dataclasses.replace(as_request(self._task["request"]), endpoint=self._mine["endpoint"])
        if self._task["says_who_serves"]:
            request = dataclasses.replace(request, conf={**request.conf, "is_host": "false"})
        entry = self._host.catalog.find(request.backend)
        handler = cast(Any, create_rendezvous(self._host, entry, prepare(entry, request)).handler)  # an ElasticHandler
        if handler._options.store == "tiered":
            raise RdzvError(_NO_PROXIES)
        endpoint = parse_endpoint(request.endpoint, None)
        address = _address_towards(endpoint.host)
        public = default_address() if is_loopback_address(address) else address
        me = structs.replace(handler._self.me, address=address, public=public, dialled=endpoint.host)
        nodes = []
        for number in self._numbers:
            node = uuid.uuid4().hex
            source = _own_loopback(number) if is_loopback_address(address) else ""
            mine = structs.replace(me, node_id=node, address=source or address)
            nodes.append((node, encode(mine).decode().removesuffix("}"), source))
        settings = json.dumps(handler._link._settings)
        return cast(
            "Nodes",
            load_module().Nodes(
                endpoint.host,
                endpoint.port,
                run=request.run_id,
                ttl=handler._options.ttl,
                settings=settings,
                alike=settings.partition(_DIFFERS)[0],
                nodes=nodes,
            ),
        )

    def _report(self, expect: int, begins: bool) -> dict[str, Any] | None:
        """See ``NodeProcess``."""
        if self._nodes is None:
            return None  # it has said why
        cpu_s = time.process_time()
        nodes = [
            {
                "number": number,
                "rank": node.rank,
                "world": node.world,
                "round": node.round,
                "asked": node.asked,
                "leads": False,
                "key": MEMBERS + node.id,
            }
            for number, node in zip(self._numbers, self._nodes.all, strict=True)
        ]
        joins = sum(node.joins for node in self._nodes.all)
        memory = private_mib() - self._private_mib
        if begins:
            self._wanted = expect
            self._nodes.expect(expect)
        return {
            "nodes": nodes,
            "joins": joins,
            "known_at": None,
            "cpu_s": cpu_s,
            "memory_mib": max(0.0, memory),
            "cpu_after_s": time.process_time(),
        }

    def _join(self) -> None:
        if self._nodes is not None:
            self._began = self._nodes.join()

    def _again(self) -> None:
        """Do nothing: these nodes are told."""

    def _close(self, number: int) -> None:
        if self._nodes is not None:
            self._nodes.close(self._numbers.index(number))

    def _so_far(self) -> dict[str, Any]:
        return {"so_far": self._nodes.joined if self._nodes is not None else 0}

    def _send(self, answer: Mapping[str, Any]) -> None:
        self._connection.sendall(json.dumps(answer).encode() + b"\n")


def _own_loopback(number: int) -> str:
    """The address of that node on loopback.

    A few thousand nodes share one: more connections from one address to one port fill the half of the ports that Linux
    tries first, after which each costs a search through all of them.
    """
    host = number // _PER_ADDRESS + 1
    return f"127.1.{host >> 8}.{host & 255}"


def _address_towards(host: str) -> str:
    """This machine's address on the way to ``host``. Sends nothing; raises ``OSError``."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 9))
        return str(probe.getsockname()[0])
