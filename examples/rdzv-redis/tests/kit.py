"""Servers, sessions and what they have said, for the tests."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from rdzv_plugins import Event, Session
from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.errors import ConnectionLost, RdzvError
from rdzv_plugins.kit import Coordination, Security, coordination_backend
from rdzv_plugins.testing import ServerProcess
from redis import Redis

from rdzv_redis import Target
from rdzv_redis.client import RedisClient, Space
from rdzv_redis.conformance import start_redis

T = 60.0
"""Patience, in seconds."""
NOTHING: Mapping[str, str] = MappingProxyType({})


@contextmanager
def redis_server(
    directory: Path, settings: Mapping[str, str] = NOTHING, *, keeps_data: bool = True
) -> Iterator[ServerProcess]:
    directory.mkdir(parents=True, exist_ok=True)
    server = start_redis(directory, settings, keeps_data=keeps_data)
    try:
        yield server
    finally:
        server.kill()


@contextmanager
def backend_at(
    port: int,
    run: str = "run",
    *,
    host: str = "127.0.0.1",
    db: int = 0,
    security: Security | None = None,
    outage: float = T,
    prefix: str = "rdzv-plugins",
) -> Iterator[Coordination]:
    target, space = Target(Endpoint(host, port), db), Space(prefix, run)
    backend = coordination_backend(
        "redis", lambda: RedisClient(target, security or Security(), space, outage), outage_timeout=outage
    )
    try:
        yield backend
    finally:
        backend.close()


def client_at(port: int) -> RedisClient:
    """What a session of the kit asks by, for tests that say themselves what is asked and when."""
    return RedisClient(Target(Endpoint("127.0.0.1", port)), Security(), Space("rdzv-plugins", "run"), T)


async def connected(client: RedisClient) -> RedisClient:
    await client.connect()
    await client.open(T)
    return client


def opened(backend: Coordination, ttl: float = T, losses: Losses | None = None, timeout: float = T) -> Any:
    return backend.open_session(ttl, on_lost=losses or Losses(), timeout=timeout)


def refused(port: int, timeout: float = T, **how: Any) -> RdzvError:
    """What opening a session there raises; it has a remedy."""
    with backend_at(port, **how) as backend, pytest.raises(RdzvError) as raised:
        opened(backend, timeout=timeout)
    assert raised.value.remedy
    assert f"{how.get('host', '127.0.0.1')}:{port}" in str(raised.value)
    return raised.value


class Losses:
    """An ``on_lost`` that remembers."""

    def __init__(self) -> None:
        self._errors: queue.Queue[ConnectionLost] = queue.Queue()

    def __call__(self, error: ConnectionLost) -> None:
        self._errors.put(error)

    def next(self) -> ConnectionLost:
        return self._errors.get(timeout=T)

    @property
    def none(self) -> bool:
        return self._errors.empty()


class Recorder:
    """An ``on_events`` that remembers."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._changed = threading.Condition()

    def __call__(self, events: Any) -> None:
        with self._changed:
            self.events.extend(events)
            self._changed.notify_all()

    def take(self, count: int) -> list[tuple[str, bytes | None]]:
        """Keys and values of the first ``count`` events, once there are so many."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.events) >= count, T), self.events
            return [(each.key, each.value) for each in self.events[:count]]


def keys_of(session: Session, prefix: str = "") -> dict[str, bytes]:
    return {each.key: each.value for each in session.list(prefix, timeout=T)[0]}


def wait_until(condition: Callable[[], Any], seen: Callable[[], object] = lambda: "") -> Any:
    """What ``condition`` returns once that is true. Launchers on a busy machine take their time."""
    deadline = time.monotonic() + 2 * T
    while not (found := condition()):
        assert time.monotonic() < deadline, seen()
        time.sleep(0.02)
    return found


@contextmanager
def client(port: int, **options: Any) -> Iterator[Any]:
    """A plain client of redis-py, to look behind the scenes."""
    with Redis("127.0.0.1", port, protocol=2, **options) as client:
        yield client
