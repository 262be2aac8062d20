"""The sessions of the simulated coordination service's clients: the contract of ``coordination``.

A client of a service that knows sessions by leases makes another connection when it has lost one.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from rdzv_plugins.coordination import KeyValue, OnEvents
from rdzv_plugins.errors import Compacted, ConnectionLost, EndpointUnreachable
from rdzv_plugins.kvstore.sockets.reach import REFUSED
from simulation.network import End
from simulation.service import PORT, Message, Service
from simulation.threads import Threads

_DIAL_S = 1.0
_RETRY_S = 0.2
_OVER = object()
_BEATS = 3
"""How many keep-alives are sent in a time to live."""


class _Pending:
    """A question under way."""

    def __init__(self, threads: Threads, message: Message) -> None:
        self.answered, self.message = threads.Event(), message
        self.answer: tuple[bool, Any] | None = None


class Watch:
    """A watch of a session."""

    def __init__(self, session: Session, number: int, prefix: str, on_events: OnEvents) -> None:
        self._session, self.number, self.prefix, self.on_events = session, number, prefix, on_events
        self.seen = 0
        self.known: dict[str, None] = {}
        """The keys that it has been told of."""
        self.cancelled = False

    def cancel(self) -> None:
        with self._session.calling:  # reentrant: it may be called from within a call
            self.cancelled = True
        self._session.drop(self)


class Session:
    """The client's side of a session."""

    def __init__(
        self, backend: Coordination, end: End, number: int, ttl: float, on_lost: Callable[[ConnectionLost], None]
    ) -> None:
        threads = backend.threads
        self._backend, self._threads, self._end, self._number = backend, threads, end, number
        self.ttl = ttl
        self.known_until = threads.monotonic() + ttl
        self._renewed = threads.monotonic()
        self._silent_since: float | None = None
        self.local_addr = self.seen_as = end.process.host
        self.remote_addr = backend.service.host
        self.calling = threads.RLock()
        self._on_lost = on_lost
        self._over: ConnectionLost | None = None
        self._closed = False
        self._changed = threads.Condition()
        self._pending: dict[int, _Pending] = {}
        self._numbers = itertools.count(1)
        self._watches: dict[int, Watch] = {}
        self._calls = threads.SimpleQueue()
        self._beats: dict[int, float] = {}
        """When each keep-alive that has no answer yet was sent."""
        self._attach(end)
        threads.Thread(target=self._call, name="watches", daemon=True).start()
        self._beat_later()

    # The contract

    def create(self, key: str, value: bytes, *, ephemeral: bool = False, timeout: float) -> tuple[bool, KeyValue]:
        found: tuple[bool, KeyValue] = self._ask(timeout, "create", key, value, ephemeral)
        return found

    def put(
        self, items: Mapping[str, bytes], *, ephemeral: bool = False, guard: KeyValue | None = None, timeout: float
    ) -> int | None:
        found: int | None = self._ask(timeout, "put", dict(items), ephemeral, guard)
        return found

    def delete(self, keys: Iterable[str], *, guard: KeyValue | None = None, timeout: float) -> bool:
        return bool(self._ask(timeout, "delete", list(keys), guard))

    def list(self, prefix: str, *, timeout: float) -> tuple[Sequence[KeyValue], int]:
        found: tuple[Sequence[KeyValue], int] = self._ask(timeout, "list", prefix)
        return found

    def end_session(self, key: str, *, timeout: float) -> bool:
        return bool(self._ask(timeout, "end_session", key))

    def watch(self, prefix: str, on_events: OnEvents, *, after: int = 0, timeout: float) -> Watch:
        watch = Watch(self, next(self._numbers), prefix, on_events)
        watch.seen = after
        self._watches[watch.number] = watch
        if not self._ask(timeout, "watch", watch.number, prefix, after):
            del self._watches[watch.number]
            raise Compacted(f"changes of {prefix} since revision {after} are no longer known")
        return watch

    def close(self) -> None:
        if self._over is None and not self._closed:
            if not self._backend.service.by_connection:
                with contextlib.suppress(ConnectionLost, TimeoutError):
                    self._ask(self.ttl, "close")
            self._closed = True
            self._lose("it is closed")

    # How

    def drop(self, watch: Watch) -> None:
        if self._watches.pop(watch.number, None) is not None and self._over is None:
            self._send(0, "cancel", self._number, watch.number)

    def _ask(self, timeout: float, name: str, *arguments: Any) -> Any:
        """Ask; again over another connection if the first breaks. Requests are done twice then, as with any service."""
        if self._over is not None:
            raise ConnectionLost(str(self._over))
        number = next(self._numbers)
        pending = self._pending[number] = _Pending(self._threads, (number, name, self._number, *arguments))
        sent_at = self._threads.monotonic()
        try:
            self._send(*pending.message)
            while pending.answered.wait(max(0.0, sent_at + timeout - self._threads.monotonic())):
                if pending.answer is None or pending.answer[0] is not None:
                    break
                pending.answer = None  # it is full: as a client of etcd does, ask again until the time is up
                pending.answered.clear()
                self._threads.sleep(_RETRY_S)
                self._send(*pending.message)
        finally:
            self._pending.pop(number, None)
        if pending.answer is None:
            if self._over is not None:
                raise ConnectionLost(str(self._over))
            raise TimeoutError(f"no answer to {name} within {timeout:g} s")
        alive, answer = pending.answer
        if not alive:
            self._lose("the service has ended it")
            raise ConnectionLost(str(self._over))
        self.known_until = max(self.known_until, sent_at + self.ttl)
        return answer

    def _send(self, *message: Any) -> None:
        if not self._end.ended:
            self._end.send(message)

    def _attach(self, end: End) -> None:
        self._end = end
        end.on_message, end.on_end = self._hear, lambda how: self._broken(end, how)
        if end.ended:  # while it was made
            self._broken(end, "ended")

    def _hear(self, message: Any) -> None:
        first = message[0]
        if first in self._beats:  # most of what comes
            self._hear_beat(self._beats.pop(first), message[1])
        elif first == "events":
            self._calls.put(message[1:])
        elif first == "over":
            self._calls.put(("over", "the service has ended it"))
        elif first in self._pending:
            self._pending[first].answer = message[1:]
            self._pending[first].answered.set()

    def _broken(self, end: End, how: str) -> None:
        if self._backend.service.by_connection and end is self._end:
            self._calls.put(("over", f"the connection was {how} by the other side"))

    def _call(self) -> None:
        """A thread: calls the watches, and says that the session is over."""
        while True:
            first, rest = self._calls.get()
            if late := self._backend.service.faults.calls_take.get(self._end.process.name):
                self._threads.sleep(late)
            if first == "over":
                self._lose(rest)
                return
            watch = self._watches.get(first)
            if watch is None:
                continue
            with self.calling:
                events = [each for each in rest if each.revision > watch.seen]
                if events and not watch.cancelled:
                    watch.seen = events[-1].revision
                    for each in events:
                        watch.known[each.key] = None
                        if each.value is None:
                            del watch.known[each.key]
                    watch.on_events(events)

    # Its time to live: what is due is done by no thread of the process, as long as its connection is there

    def _beat_later(self) -> None:
        scheduler = self._backend.service.network.scheduler
        scheduler.at(scheduler.now + self._end.process.clock.lasts(self.ttl / _BEATS), self._keep_alive)

    def _keep_alive(self, *, late: bool = False) -> None:
        """``late``: this process has stood still. It hears what has come meanwhile, and asks, before it gives up."""
        process = self._end.process
        if self._over is not None or process.killed:
            return
        if process.frozen:
            scheduler = self._backend.service.network.scheduler
            process.on_thaw.append(lambda: scheduler.at(scheduler.now, lambda: self._keep_alive(late=True)))
        elif self._threads.monotonic() >= self.known_until and not late:
            self._silent_since = self._renewed
            self._calls.put(("over", f"the service has not answered for {self.ttl:g} s"))
        elif self._end.ended:
            self._spawn(self._connect_again)
        else:
            self._beat()

    def _spawn(self, does: Callable[[], object]) -> None:
        self._backend.service.network.scheduler.spawn(self._end.process, "keep-alive", does)

    def _beat(self) -> None:
        number = next(self._numbers)
        self._beats[number] = self._threads.monotonic()
        self._send(number, "beat", self._number)
        self._beat_later()

    def _hear_beat(self, asked: float, alive: bool) -> None:
        if alive:
            self.known_until, self._renewed = max(self.known_until, asked + self.ttl), asked
        else:  # not on the thread of the watches, which may be late
            self._spawn(lambda: self._lose("the service has ended it"))

    def _connect_again(self) -> None:
        """A thread: it takes a moment."""
        try:
            end = self._backend.dial(_DIAL_S)
        except (OSError, TimeoutError):
            self._beat_later()
            return
        self._attach(end)
        for watch in list(self._watches.values()):
            self._send(0, "watch", self._number, watch.number, watch.prefix, watch.seen, tuple(watch.known))
        for pending in list(self._pending.values()):
            self._send(*pending.message)
        self._beat()

    def _lose(self, reason: str) -> None:
        if self._over is not None:
            return
        self._over = ConnectionLost(reason)
        self._over.silent_since = self._silent_since
        self._end.close()
        for pending in list(self._pending.values()):
            pending.answered.set()
        self._calls.put(("over", reason))
        if not self._closed:
            self._on_lost(self._over)


class Unending(Session):
    """With a service that ends no session for another."""

    end_session = None  # type: ignore[assignment]


class Coordination:
    """One node's way to the service: a ``CoordinationBackend``."""

    name = "simulated"

    def __init__(self, service: Service, threads: Threads, *, hosts_service: bool = False) -> None:
        self.service, self.threads, self.hosts_service = service, threads, hosts_service
        self._sessions: list[Session] = []

    def dial(self, timeout: float) -> End:
        return self.service.network.connect(self.service.host, PORT, timeout)

    def look(self, timeout: float) -> tuple[Any, str]:
        """A connection over which the service has answered; or None, and why not."""
        connection = self.threads.socket()  # type: ignore[attr-defined]  # a runtime has them
        connection.settimeout(timeout)
        try:
            connection.connect((self.service.host, PORT))
            connection.sendall(b"?")
            if connection.recv(1):
                return connection, ""
            reason = "it has hung up"
        except ConnectionRefusedError:
            reason = REFUSED
        except OSError as error:
            reason = str(error)
        connection.close()
        return None, reason

    def open_session(self, ttl: float, *, on_lost: Callable[[ConnectionLost], None], timeout: float) -> Session:
        until, reason = self.threads.monotonic() + timeout, "nobody was asked"
        while (left := until - self.threads.monotonic()) > 0:
            answered, found = self.threads.Event(), list[Any]()

            def hear(message: Any, answered: Any = answered, found: list[Any] = found) -> None:
                found.append(_OVER if message[0] == "over" else message[2])
                answered.set()

            try:
                end = self.dial(min(_DIAL_S, left))
                end.on_message = hear
                end.send((0, "open", ttl))
            except (OSError, TimeoutError) as error:  # it may be reset as soon as it is there
                reason = str(error)
                self.threads.sleep(_RETRY_S)
                continue
            if answered.wait(min(ttl, left)):
                if isinstance(refused := found[0], EndpointUnreachable):
                    end.close()
                    raise refused
                if _OVER in found:  # this process has stood still, and hears of all at once
                    end.close()
                    reason = "the session was over at once"
                    continue
                make = Session if self.service.ends_sessions else Unending
                session = make(self, end, found[0], ttl, on_lost)
                self._sessions.append(session)
                return session
            end.close()
            reason = "no answer"
        raise EndpointUnreachable(f"the service at {self.service.host}: {reason} for {timeout:g} s")

    def close(self) -> None:
        for session in self._sessions:
            session.close()
        if self.hosts_service and self.service.by_node:
            self.service.stop()
