"""A coordination service to test against, and what watches and losses have said.

``test_sessions.py`` and ``test_session_watches.py`` run over each kind of ``Service``: here the native store,
in ``tests/etcd/etcd_service.py`` an etcd.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

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


class Service(Protocol):
    """Serves any run. What services differ in by their nature stands here, and nowhere else."""

    kind: str
    """``session_client.py`` knows it by that."""
    least_ttl: float
    """The shortest time to live, in seconds, that it grants."""
    notices_a_kill: bool
    """It knows at once that a process is gone: else that is told by silence alone, after the time to live."""
    one_revision_per_put: bool
    """Items of one put share a revision: else each has its own."""
    whole_seconds: bool
    """A time to live is rounded up to them."""

    def backend(self, run: str = "run") -> CoordinationBackend: ...

    def client(self, key: str, ttl: float, *, child: str = "") -> AbstractContextManager[subprocess.Popen[str]]:
        """A process with a session that has written ``key`` as ephemeral; see ``client_of``."""
        ...

    def close(self) -> None: ...


class NativeService:
    """The native store in this process."""

    kind = "native"
    least_ttl = 0.6  # it grants less, but the machine may be busy
    notices_a_kill = True
    one_revision_per_put = False
    whole_seconds = False

    def __init__(self, threads: int = 2) -> None:
        self.server = StoreServer("127.0.0.1", threads=threads)
        self.endpoint = Endpoint("127.0.0.1", self.server.port)
        self._backends: list[CoordinationBackend] = []

    def backend(self, run: str = "run") -> CoordinationBackend:
        backend = NativeCoordination(self.endpoint, run, name="parallel", who="the store")
        self._backends.append(backend)
        return backend

    def client(self, key: str, ttl: float, *, child: str = "") -> AbstractContextManager[subprocess.Popen[str]]:
        return client_of([self.endpoint], key, ttl, child=child)

    def close(self) -> None:
        for backend in self._backends:
            backend.close()
        self.server.close()


@contextmanager
def client_of(
    endpoints: Sequence[Endpoint],
    key: str,
    ttl: float,
    *,
    kind: str = "native",
    run: str = "run",
    child: str = "",
    environment: Mapping[str, str] = MappingProxyType({}),
    **more: object,
) -> Iterator[subprocess.Popen[str]]:
    """A process with a session that has written ``key`` as ephemeral. ``more``: arguments of its backend."""
    options = {"kind": kind, "endpoints": [(each.host, each.port) for each in endpoints], "run": run, "more": more}
    options |= {"key": key, "ttl": ttl, "child": child}
    command = [sys.executable, SCRIPTS / "session_client.py", json.dumps(options)]
    with spawned([command], [dict(environment)]) as (process,):
        line = read_line(process)
        assert line == "ready\n", line + (process.communicate(timeout=PATIENCE)[0] if process.stdout else "")
        yield process


def leave(process: subprocess.Popen[str]) -> None:
    """Let a client close its session and end."""
    assert process.stdin
    process.stdin.close()
    assert process.wait(PATIENCE) == 0


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
