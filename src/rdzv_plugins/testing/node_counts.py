"""Counting what a node asks of its backend: wrappers around what ``create`` has made, in the node's process."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

from rdzv_plugins.coordination import CoordinationBackend, KeyValue, Session
from rdzv_plugins.elastic import keys
from rdzv_plugins.errors import ConnectionLost
from rdzv_plugins.interfaces import RendezvousBackend

SESSION_CALLS = ("create", "put", "delete", "list", "watch")
STATE_CALLS = ("get_state", "set_state")
WRITES = ("put", "set_state")


class Asked:
    """How often which call was made. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self.leads = False
        """This node has won the leader's key."""
        self.has_written = False
        """A call that writes has come to its end: what it has written is there."""

    def counting(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """``call``, counted under ``name`` when it begins."""

        def counted(*args: Any, **kwargs: Any) -> Any:
            with self._lock:
                self._counts[name] += 1
            answer = call(*args, **kwargs)
            if name in WRITES:
                self.has_written = True
            return answer

        return counted

    def counts(self) -> dict[str, int]:
        """A copy."""
        with self._lock:
            return dict(self._counts)


class CountedSession:
    """A ``Session`` whose requests are counted, also those that its own methods make of each other.

    Attempts to lead are counted apart, as ``lead``: who makes one depends on who came first.
    """

    def __init__(self, inner: Session, asked: Asked) -> None:
        self._inner, self._asked = inner, asked
        self._lead = asked.counting("lead", inner.create)
        for name in SESSION_CALLS:
            counted = asked.counting(name, getattr(inner, name))
            if name == "create":
                self._create = counted
            try:
                setattr(inner, name, counted)
            except AttributeError:  # it has slots
                pass

    def create(self, key: str, value: bytes, *, ephemeral: bool = False, timeout: float) -> tuple[bool, KeyValue]:
        call = self._lead if key == keys.LEADER else self._create
        answer: tuple[bool, KeyValue] = call(key, value, ephemeral=ephemeral, timeout=timeout)
        self._asked.leads |= key == keys.LEADER and answer[0]
        return answer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class CountedCoordination:
    """A ``CoordinationBackend`` whose sessions are counted."""

    def __init__(self, inner: CoordinationBackend, asked: Asked) -> None:
        self._inner, self._asked = inner, asked
        self._open = asked.counting("open_session", inner.open_session)

    @property
    def name(self) -> str:
        return self._inner.name

    @property
    def hosts_service(self) -> bool:
        return self._inner.hosts_service

    def open_session(self, ttl: float, *, on_lost: Callable[[ConnectionLost], None], timeout: float) -> Any:
        return CountedSession(self._open(ttl, on_lost=on_lost, timeout=timeout), self._asked)

    def close(self) -> None:
        self._inner.close()


class CountedState:
    """A ``RendezvousBackend`` whose reads and writes are counted; its optional attributes are its own."""

    def __init__(self, inner: RendezvousBackend, asked: Asked) -> None:
        self._inner = inner
        self.get_state = asked.counting("get_state", inner.get_state)
        self.set_state = asked.counting("set_state", inner.set_state)

    @property
    def name(self) -> str:
        return self._inner.name

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)
