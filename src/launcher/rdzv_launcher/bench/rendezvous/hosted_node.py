"""A node of ``rdzv bench rendezvous`` on an installed backend, made as ``rdzv-run`` makes it."""

from __future__ import annotations

import threading
import time
from collections import Counter
from typing import Any, cast

from rdzv_launcher.bench.rendezvous.nodes import FIXED, POLLED, VIEW, BaseNode
from rdzv_launcher.bench.rendezvous.torch_nodes import shorten_last_call
from rdzv_plugins.assemble.create import create_rendezvous, prepare
from rdzv_plugins.coordination import CoordinationBackend
from rdzv_plugins.host import PluginHost
from rdzv_plugins.interfaces import Capability, Request, TorchHandler
from rdzv_plugins.testing.counts import Asked, counted

_POLL_S = 0.1
"""How often torch's agent asks its handler."""


class HostedNode(BaseNode):
    """A node of an installed backend: the plug-in host makes request, options and handler."""

    def __init__(self, host: PluginHost, request: Request) -> None:
        """May connect, and block. Raises what the backend raises."""
        super().__init__()
        entry = host.catalog.find(request.backend)
        self._asked = Asked()
        self._gone = False
        self._rendezvous = create_rendezvous(host, counted(entry, self._asked), prepare(entry, request))
        self._view: Any = None
        created = self._asked.created
        self._counts = not isinstance(created, TorchHandler)
        self._coordinates = self._counts and isinstance(created, CoordinationBackend)
        if Capability.ELASTIC not in entry.backend.capabilities:
            self.tells = FIXED
        elif self._coordinates:
            self.tells = VIEW
            self._view = cast(Any, self._rendezvous.handler)._view  # of ElasticHandler
        elif not self._counts:
            self.tells = POLLED

    def join(self) -> None:
        joined = self._rendezvous.next_rendezvous()
        self.rank, self.world = joined.rank, joined.world_size

    def again(self) -> None:
        if self._counts and not self._coordinates:
            shorten_last_call(cast(Any, self._rendezvous.handler))
        super().again()

    def wait_over(self) -> None:
        if self.tells == VIEW:
            self._wait_told()
        elif self.tells == POLLED:
            while not self._rendezvous.handler.num_nodes_waiting():
                time.sleep(_POLL_S)
        else:
            super().wait_over()

    def _wait_told(self) -> None:
        view = self._view  # woken by everything that can end a round, so nobody has to poll
        while True:
            seen = view.version
            if not self._gone and self._rendezvous.handler.num_nodes_waiting():
                return
            view.wait(seen, threading.TIMEOUT_MAX)

    def close(self) -> bool:
        if self._asked.session is None:
            return False
        self._gone = True
        self._asked.session.close()
        return True

    def watch(self, key: str) -> bool:
        session = self._asked.session
        if not key or session is None:
            return False
        self.known_at = None

        def told(events: Any) -> None:
            if self.known_at is None and any(event.key == key and event.value is None for event in events):
                self.known_at = time.perf_counter()

        session.watch(key, told, timeout=session.ttl + 60)
        return True

    def facts(self) -> dict[str, Any]:
        asked = Counter(self._asked.counts())
        asked["put"] += asked.pop("create", 0)  # for a service they are one request
        round_ = {"round": cast(Any, self._rendezvous.handler)._joining.round} if self._coordinates else {}
        return round_ | {
            "asked": dict(+asked) if self._counts else None,
            "leads": self._asked.leads,
            "key": self._asked.member_key,
        }
