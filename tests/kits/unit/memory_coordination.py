"""A coordination service in the memory of this process: ``CoordinationBackend`` in its plainest form.

Faithful to the contract, and with what tests need beside it: ``requests`` counts what each backend has asked,
``on`` calls a function at a given request (to lose a session there, or to let it time out, before or after
it was done), ``MemoryBackend.lose`` ends a session.
"""

from __future__ import annotations

import queue
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

from rdzv_plugins.coordination import Event, KeyValue, OnEvents
from rdzv_plugins.errors import ConnectionLost, EndpointUnreachable

Stage = Literal["before", "after"]
Action = Callable[["MemorySession"], None]


class MemoryService:
    """The keys of one run. Thread-safe."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.keys: dict[str, tuple[KeyValue, MemorySession | None]] = {}
        self.revision = 0
        self.sessions: list[MemorySession] = []
        self.session = MemorySession
        """The class of its sessions."""
        self._actions: list[tuple[str, str, Stage, Action]] = []

    def on(self, request: str, key: str, stage: Stage, action: Action) -> None:
        """Call ``action`` once, at the next ``request`` with a key that begins with ``key``, on the asker's thread."""
        with self.lock:
            self._actions.append((request, key, stage, action))

    def value(self, key: str) -> bytes | None:
        """For tests: what a key holds."""
        with self.lock:
            held = self.keys.get(key)
            return held[0].value if held is not None else None

    def act(self, session: MemorySession, request: str, keys: Iterable[str], stage: Stage) -> None:
        with self.lock:
            due = [a for a in self._actions if (a[0], a[2]) == (request, stage)]
            due = [a for a in due if any(key.startswith(a[1]) for key in keys)]
            if due:
                self._actions.remove(due[0])
        if due:
            due[0][3](session)

    def write(self, key: str, value: bytes | None, owner: MemorySession | None) -> None:
        """Under the lock."""
        self.revision += 1
        if value is None:
            del self.keys[key]
        else:
            self.keys.pop(key, None)
            self.keys[key] = (KeyValue(key, value, self.revision), owner)
        for session in self.sessions:
            session.tell(Event(key, value, self.revision))

    def end(self, session: MemorySession) -> bool:
        """The session is over: its keys go. False if it was already."""
        with self.lock:
            if session.over:
                return False
            session.over = True
            self.sessions.remove(session)
            for key in [key for key, (_, owner) in self.keys.items() if owner is session]:
                self.write(key, None, None)
        session.calls.put(None)
        return True


class MemoryWatch:
    """A watch."""

    def __init__(self, session: MemorySession, prefix: str, on_events: OnEvents) -> None:
        self._session, self.prefix, self._on_events = session, prefix, on_events
        self._cancelled = False

    def call(self, events: Sequence[Event]) -> None:
        with self._session.calling:
            if not self._cancelled:
                self._on_events(events)

    def cancel(self) -> None:
        with self._session.calling:  # reentrant: it may be called from the call itself
            self._cancelled = True


class MemorySession:
    """A session, with a thread that calls its watches."""

    remote_addr = local_addr = "127.0.0.1"

    def __init__(self, backend: MemoryBackend, ttl: float, on_lost: Callable[[ConnectionLost], None]) -> None:
        self.backend, self.service, self.ttl, self.on_lost = backend, backend.service, ttl, on_lost
        self.over = False
        self.calls: queue.SimpleQueue[tuple[MemoryWatch, list[Event]] | None] = queue.SimpleQueue()
        self.calling = threading.RLock()
        self._watches: list[MemoryWatch] = []
        threading.Thread(target=self._run, name="memory-watches", daemon=True).start()

    def _run(self) -> None:
        while (call := self.calls.get()) is not None:
            call[0].call(call[1])

    def tell(self, event: Event) -> None:
        for watch in self._watches:
            if event.key.startswith(watch.prefix):
                self.calls.put((watch, [event]))

    def _ask(self, request: str, keys: Iterable[str], answer: Callable[[], Any]) -> Any:
        keys = list(keys)
        self.service.act(self, request, keys, "before")
        with self.service.lock:
            if self.over:
                raise ConnectionLost("this session has ended")
            self.backend.requests[request] += 1
            result = answer()
        self.service.act(self, request, keys, "after")
        return result

    def _unchanged(self, guard: KeyValue | None) -> bool:
        held = self.service.keys.get(guard.key) if guard is not None else None
        return guard is None or (held is not None and held[0].revision == guard.revision)

    def create(self, key: str, value: bytes, *, ephemeral: bool = False, timeout: float) -> tuple[bool, KeyValue]:
        def answer() -> tuple[bool, KeyValue]:
            absent = key not in self.service.keys
            if absent:
                self.service.write(key, value, self if ephemeral else None)
            return absent, self.service.keys[key][0]

        return self._ask("create", [key], answer)

    def put(
        self, items: Mapping[str, bytes], *, ephemeral: bool = False, guard: KeyValue | None = None, timeout: float
    ) -> int | None:
        def answer() -> int | None:
            if not self._unchanged(guard):
                return None
            for key, value in items.items():
                self.service.write(key, value, self if ephemeral else None)
            return self.service.revision

        return self._ask("put", items, answer)

    def delete(self, keys: Iterable[str], *, guard: KeyValue | None = None, timeout: float) -> bool:
        keys = list(keys)

        def answer() -> bool:
            if not self._unchanged(guard):
                return False
            for key in keys:
                if key in self.service.keys:
                    self.service.write(key, None, None)
            return True

        return self._ask("delete", keys, answer)

    def list(self, prefix: str, *, timeout: float) -> tuple[Sequence[KeyValue], int]:
        def answer() -> tuple[Sequence[KeyValue], int]:
            held = [kv for kv, _ in self.service.keys.values() if kv.key.startswith(prefix)]
            return sorted(held, key=lambda kv: kv.revision), self.service.revision

        return self._ask("list", [prefix], answer)

    def watch(self, prefix: str, on_events: OnEvents, *, after: int = 0, timeout: float) -> MemoryWatch:
        def answer() -> MemoryWatch:
            watch = MemoryWatch(self, prefix, on_events)
            held = sorted((kv for kv, _ in self.service.keys.values()), key=lambda kv: kv.revision)
            missed = [Event(kv.key, kv.value, kv.revision) for kv in held if kv.key.startswith(prefix)]
            missed = [event for event in missed if event.revision > after]
            if missed:
                self.calls.put((watch, missed))
            self._watches.append(watch)
            return watch

        return self._ask("watch", [prefix], answer)

    def close(self) -> None:
        self.service.end(self)


class MemoryBackend:
    """One node's way to the service."""

    name = "memory"

    def __init__(self, service: MemoryService, *, hosts_service: bool = False) -> None:
        self.service, self.hosts_service = service, hosts_service
        self.requests: Counter[str] = Counter()
        self.session: MemorySession | None = None
        self.unreachable = False

    def open_session(self, ttl: float, *, on_lost: Callable[[ConnectionLost], None], timeout: float) -> MemorySession:
        if self.unreachable:
            raise EndpointUnreachable("nobody answers")
        self.session = self.service.session(self, ttl, on_lost)
        with self.service.lock:
            self.service.sessions.append(self.session)
        return self.session

    def lose(self, *, for_good: bool = False) -> None:
        """The session ends, by the service's clock or because the process has died (``for_good``)."""
        self.unreachable = for_good
        session = self.session
        if session is not None and self.service.end(session):
            session.on_lost(ConnectionLost("the service has not heard of this node"))

    def close(self) -> None:
        """Nothing is held."""
