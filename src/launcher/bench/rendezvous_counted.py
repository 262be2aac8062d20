"""What a node asks of its service: backends that count, without changing what is asked.

A coordination backend's requests are those of its sessions; a state backend's are the reads and writes of the state.
What a backend does beneath (retries, signs of life) is not seen here.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

from rdzv_plugins.coordination import CoordinationBackend, KeyValue, OnEvents, Session, Watch
from rdzv_plugins.elastic import keys
from rdzv_plugins.errors import ConnectionLost
from rdzv_plugins.host.catalog import Entry
from rdzv_plugins.interfaces import Created, RendezvousBackend, RendezvousHandler, Request, Token

LEAD = "lead"
"""Attempts to lead: who tries depends on who came first, so they are no part of what a plain node asks."""


class CountedSession:
    """A session that counts what it is asked, and knows whether it leads."""

    def __init__(self, inner: Session, asked: Counter[str]) -> None:
        self.inner, self._asked = inner, asked
        self.leads = False
        self.member_key = ""
        """Under which this node is known to the others."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def create(self, key: str, value: bytes, *, ephemeral: bool = False, timeout: float) -> tuple[bool, KeyValue]:
        self._asked["put" if key != keys.LEADER else LEAD] += 1
        answer = self.inner.create(key, value, ephemeral=ephemeral, timeout=timeout)
        self.leads |= key == keys.LEADER and answer[0]
        return answer

    def put(
        self, items: Mapping[str, bytes], *, ephemeral: bool = False, guard: KeyValue | None = None, timeout: float
    ) -> int | None:
        self._asked["put"] += 1
        if ephemeral:
            self.member_key = next((key for key in items if key.startswith(keys.MEMBERS)), self.member_key)
        return self.inner.put(items, ephemeral=ephemeral, guard=guard, timeout=timeout)

    def delete(self, keys: Iterable[str], *, guard: KeyValue | None = None, timeout: float) -> bool:
        self._asked["delete"] += 1
        return self.inner.delete(keys, guard=guard, timeout=timeout)

    def list(self, prefix: str, *, timeout: float) -> tuple[Sequence[KeyValue], int]:
        self._asked["list"] += 1
        return self.inner.list(prefix, timeout=timeout)

    def watch(self, prefix: str, on_events: OnEvents, *, after: int = 0, timeout: float) -> Watch:
        self._asked["watch"] += 1
        return self.inner.watch(prefix, on_events, after=after, timeout=timeout)


class CountedCoordination:
    """A ``CoordinationBackend`` whose sessions are counted."""

    def __init__(self, inner: CoordinationBackend) -> None:
        self._inner = inner
        self.asked: Counter[str] = Counter()
        self.session: CountedSession | None = None

    @property
    def name(self) -> str:
        return self._inner.name

    @property
    def hosts_service(self) -> bool:
        return self._inner.hosts_service

    def open_session(self, ttl: float, *, on_lost: Callable[[ConnectionLost], None], timeout: float) -> Session:
        self.asked["open_session"] += 1
        self.session = CountedSession(self._inner.open_session(ttl, on_lost=on_lost, timeout=timeout), self.asked)
        return cast(Session, self.session)

    def close(self) -> None:
        self._inner.close()


class CountedState:
    """A ``RendezvousBackend`` whose reads and writes are counted; everything else is the inner one's."""

    def __init__(self, inner: RendezvousBackend) -> None:
        self._inner = inner
        self.asked: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    @property
    def name(self) -> str:
        return self._inner.name

    def get_state(self) -> tuple[bytes, Token] | None:
        self.asked["get_state"] += 1
        return self._inner.get_state()

    def set_state(self, state: bytes, token: Token | None = None) -> tuple[bytes, Token, bool] | None:
        self.asked["set_state"] += 1
        return self._inner.set_state(state, token)


def counted(entry: Entry, made: Callable[[CountedCoordination | CountedState | None], object]) -> Entry:
    """``entry``, whose backends count; ``made`` is told of each: None for a handler, of which nothing is known."""

    def create(request: Request) -> Created:
        created = entry.backend.create(request)
        found: CountedCoordination | CountedState | None = None
        if not isinstance(created, RendezvousHandler):
            if isinstance(created, CoordinationBackend):
                found = CountedCoordination(created)
            elif isinstance(created, RendezvousBackend):
                found = CountedState(created)
        made(found)
        return created if found is None else found

    return dataclasses.replace(entry, backend=dataclasses.replace(entry.backend, create=create))
