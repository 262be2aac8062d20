"""Counts what a node asks of its backend: wrappers around what ``create`` has made, in the node's process.

Attempts to lead are counted separately: who makes one depends on who came first. What a backend does beneath (retries,
signs of life) is not seen here. For the conformance suite and for ``rdzv bench rendezvous``.
"""

from __future__ import annotations

import dataclasses
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

from rdzv_plugins.coordination import CoordinationBackend, KeyValue, Session
from rdzv_plugins.elastic import keys
from rdzv_plugins.errors import ConnectionLost
from rdzv_plugins.host.catalog import Entry
from rdzv_plugins.interfaces import RendezvousBackend, Request, TorchHandler

LEAD = "lead"

SESSION_CALLS = ("create", "put", "delete", "list", "watch")
WRITES = ("put", "set_state")


class Asked:
    """How often each call was made of what a backend has made for one node. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self.created: Any = None
        """What the backend has made, without the counting."""
        self.leads = False
        """Whether this node has won the leader's key."""
        self.has_written = False
        """Whether a call that writes has completed: what it has written is there."""

    def counting(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return ``call``, counted under ``name`` when it begins."""

        def counted(*args: Any, **kwargs: Any) -> Any:
            with self._lock:
                self._counts[name] += 1
            answer = call(*args, **kwargs)
            came_second = name == "set_state" and answer is not None and not answer[2]
            if name in WRITES and not came_second:
                self.has_written = True
            return answer

        return counted

    def counts(self) -> dict[str, int]:
        """A copy of the counts."""
        with self._lock:
            return dict(self._counts)


class CountedSession:
    """A ``Session`` whose requests are counted, including those that its own methods make of each other."""

    def __init__(self, inner: Session, asked: Asked) -> None:
        self._inner, self._asked = inner, asked
        self._lead = asked.counting(LEAD, inner.create)
        self._calls = {name: asked.counting(name, getattr(inner, name)) for name in SESSION_CALLS}
        for name, counted in self._calls.items():
            try:
                setattr(inner, name, counted)
            except AttributeError:  # it has slots
                pass

    def create(self, key: str, value: bytes, *, ephemeral: bool = False, timeout: float) -> tuple[bool, KeyValue]:
        call = self._lead if key == keys.LEADER else self._calls["create"]
        answer: tuple[bool, KeyValue] = call(key, value, ephemeral=ephemeral, timeout=timeout)
        self._asked.leads |= key == keys.LEADER and answer[0]
        return answer

    def __getattr__(self, name: str) -> Any:
        return self._calls[name] if name in SESSION_CALLS else getattr(self._inner, name)


class CountedCoordination:
    """A ``CoordinationBackend`` whose sessions are counted; its other attributes can be read and set as usual."""

    def __init__(self, inner: CoordinationBackend, asked: Asked) -> None:
        self._inner, self._asked = inner, asked
        self._open = asked.counting("open_session", inner.open_session)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            super().__setattr__(name, value)
        else:
            setattr(self._inner, name, value)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:  # a backend of several endpoints is known by its class
        return type(self._inner)

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
    """A ``RendezvousBackend`` whose reads and writes are counted; what it has of ``SharesStore`` is its own."""

    def __init__(self, inner: RendezvousBackend, asked: Asked) -> None:
        self._inner = inner
        self.get_state = asked.counting("get_state", inner.get_state)
        self.set_state = asked.counting("set_state", inner.set_state)

    @property
    def name(self) -> str:
        return self._inner.name

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def counted(entry: Entry, asked: Asked) -> Entry:
    """Return ``entry`` with what its backend makes being counted; calls of a handler of its own are not counted."""

    def create(request: Request) -> Any:
        asked.created = created = entry.backend.create(request)
        if isinstance(created, TorchHandler):
            return created
        if isinstance(created, CoordinationBackend):
            return CountedCoordination(created, asked)
        return CountedState(created, asked) if isinstance(created, RendezvousBackend) else created

    return Entry(dataclasses.replace(entry.backend, create=create), entry.record)
