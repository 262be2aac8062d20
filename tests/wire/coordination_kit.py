"""A coordination service to test against, and what watches and losses have said.

Another ``CoordinationBackend`` runs through ``test_sessions.py`` by another ``Service``.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from attack_kit import read_line, wait_until
from processes import SCRIPTS, spawned
from wire_client import PATIENCE

from rdzv_plugins.coordination import CoordinationBackend, Event, KeyValue, Session
from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.errors import ConnectionLost
from rdzv_plugins.kvstore.server import StoreServer
from rdzv_plugins.kvstore.sessions import NativeCoordination

LONG = 60.0
"""Time to live of sessions that no test waits for: longer than any test's patience."""


class Service:
    """The native store in this process; serves any run."""

    def __init__(self, threads: int = 2) -> None:
        self.server = StoreServer("127.0.0.1", threads=threads)
        self.endpoint = Endpoint("127.0.0.1", self.server.port)
        self._backends: list[CoordinationBackend] = []

    def backend(self, run: str = "run") -> CoordinationBackend:
        backend = NativeCoordination(self.endpoint, run, name="parallel", who="the store")
        self._backends.append(backend)
        return backend

    def client(self, key: str, ttl: float, *, child: str = "") -> AbstractContextManager[subprocess.Popen[str]]:
        """A process with a session that has written ``key`` as ephemeral."""
        return client_of(self.endpoint, key, ttl, child=child)

    def close(self) -> None:
        for backend in self._backends:
            backend.close()
        self.server.close()


@contextmanager
def client_of(endpoint: Endpoint, key: str, ttl: float, *, child: str = "") -> Iterator[subprocess.Popen[str]]:
    options = {"host": endpoint.host, "port": endpoint.port, "run": "run", "key": key, "ttl": ttl, "child": child}
    with spawned([[sys.executable, SCRIPTS / "session_client.py", json.dumps(options)]]) as (process,):
        line = read_line(process)
        assert line == "ready\n", line + (process.communicate(timeout=PATIENCE)[0] if process.stdout else "")
        yield process


class Losses:
    """An ``on_lost`` that remembers."""

    def __init__(self) -> None:
        self._errors: queue.Queue[ConnectionLost] = queue.Queue()

    def __call__(self, error: ConnectionLost) -> None:
        self._errors.put(error)

    def next(self) -> ConnectionLost:
        return self._errors.get(timeout=PATIENCE)

    @property
    def none(self) -> bool:
        return self._errors.empty()


class Recorder:
    """An ``on_events`` that remembers: events, and how they came."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.calls: list[Sequence[Event]] = []
        self.threads: set[int] = set()
        self._changed = threading.Condition()

    def __call__(self, events: Sequence[Event]) -> None:
        with self._changed:
            self.calls.append(events)
            self.events.extend(events)
            self.threads.add(threading.get_ident())
            self._changed.notify_all()

    def until(self, condition: Callable[[list[Event]], object]) -> list[Event]:
        """The events when ``condition`` holds of them."""
        with self._changed:
            assert self._changed.wait_for(lambda: condition(self.events), PATIENCE), self.events
            return list(self.events)

    def take(self, count: int) -> list[tuple[str, bytes | None]]:
        """Keys and values of the first ``count`` events, once there are so many."""
        return [(each.key, each.value) for each in self.until(lambda events: len(events) >= count)][:count]


def opened(backend: CoordinationBackend, ttl: float = LONG, losses: Losses | None = None) -> Session:
    return backend.open_session(ttl, on_lost=losses or Losses(), timeout=PATIENCE)


def keys(found: tuple[Sequence[KeyValue], int]) -> dict[str, bytes]:
    return {each.key: each.value for each in found[0]}


def keys_of(session: Session) -> dict[str, bytes]:
    return keys(session.list("", timeout=PATIENCE))


def stop(pid: int) -> None:
    """SIGSTOP, and wait until each of its threads has stopped: the signal may return before."""
    os.kill(pid, signal.SIGSTOP)
    states = [Path(f"/proc/{pid}/task/{each}/stat") for each in os.listdir(f"/proc/{pid}/task")]
    wait_until(lambda: all(each.read_text().rpartition(") ")[2][0] == "T" for each in states), lambda: states)
