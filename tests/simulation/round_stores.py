"""The workers' stores of rounds, as far as the rendezvous sees them: rank 0 listens, and everybody dials it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rdzv_plugins.elastic.keys import Assignment
from rdzv_plugins.elastic.options import ElasticOptions
from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.kvstore.sockets.listening import bind
from rdzv_plugins.options import PortRange
from rdzv_plugins.runtime import Runtime

_ATTEMPT_S = 1.0
_PAUSE_S = 0.2
_ALL = 1 << 60


class DialledStore:
    """Has the methods of ``RoundStore``. Whoever is connected holds a store to read and write; nothing is stored."""

    is_parent = False

    def __init__(self, options: ElasticOptions, on_lost: Callable[..., None], runtime: Runtime, **_: Any) -> None:
        self._runtime = runtime
        self.patience = max(options.reach_timeout, options.ttl + 1)
        self.agents = None
        self.environment: dict[str, str] = {}
        self._reaching, self._give_up_at, self._served = 0, 0.0, 0
        self._listener: Any = None
        self.on_interrupt: Callable[[], object] = lambda: None
        self.over = 0, ""
        """The newest round whose agents' waits have been ended, and why."""

    def serve(self, place: Assignment, address: str) -> tuple[int, str, int]:
        self.close(_ALL)
        self._listener, self._served = bind(address, PortRange(), "the workers' store", self._runtime), place.round
        return place.round, address, self._listener.getsockname()[1]

    def reach(self, place: Assignment) -> str | float:
        now = self._runtime.monotonic()
        if place.round != self._reaching:
            self._reaching, self._give_up_at = place.round, now + self.patience
        connection, reason = self.attempt(Endpoint(place.master_addr, place.master_port), _ATTEMPT_S)
        if connection is not None:
            connection.close()
            return ""
        if self._runtime.monotonic() >= self._give_up_at:
            return f"{reason}, for {self.patience:g} s"
        return self._runtime.monotonic() + _PAUSE_S

    def attempt(self, endpoint: Endpoint, timeout: float) -> tuple[Any, str]:
        try:
            connection = self._runtime.socket()
        except OSError as error:  # no descriptor is left
            return None, str(error)
        connection.settimeout(timeout)
        try:
            connection.connect((endpoint.host, endpoint.port))
        except OSError as error:
            connection.close()
            return None, str(error)
        return connection, ""

    def open(self, place: Assignment, address: str | None) -> Endpoint:
        return Endpoint(place.master_addr, place.master_port)

    def interrupt(self, round_: int, reason: str) -> None:
        self.over = max(self.over, (round_, reason))
        self.on_interrupt()

    def is_cut_off(self) -> bool:
        return False

    def close(self, round_: int) -> None:
        if self._served <= round_ and self._listener is not None:
            self.interrupt(self._served, "this node has closed it")
            self._listener.close()
            self._listener = None

    def leave(self) -> None:
        """Nothing is held."""

    def shutdown(self) -> None:
        self.close(_ALL)


class ProxiedStore(DialledStore):
    """Of ``store=tiered``: workers reach it through a proxy of their node, which ``lose`` cuts off from it."""

    def __init__(self, options: ElasticOptions, on_lost: Callable[..., None], runtime: Runtime, **more: Any) -> None:
        super().__init__(options, on_lost, runtime, **more)
        self._on_lost, self._fanout = on_lost, options.fanout
        self._place = Assignment(0)
        self.cut_off, self.left = False, 0

    def open(self, place: Assignment, address: str | None) -> Endpoint:
        self._place, self.cut_off = place, False
        return super().open(place, address)

    def is_cut_off(self) -> bool:
        return self.cut_off

    @property
    def is_parent(self) -> bool:  # type: ignore[override]
        return self._place.rank < self._fanout and self._place.rank + self._fanout < self._place.world

    def leave(self) -> None:
        self.left += 1

    def lose(self, reason: str) -> None:
        self.cut_off = True
        self._on_lost(self._place.round, reason)
