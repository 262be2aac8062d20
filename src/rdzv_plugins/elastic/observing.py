"""A run of the elastic rendezvous seen from outside, by the keys that its nodes share: once, or continuously."""

from __future__ import annotations

import contextlib
import functools
import json
import math
from collections.abc import Callable, Mapping, Sequence

from rdzv_plugins.coordination import CoordinationBackend, Event, KeyValue
from rdzv_plugins.elastic import keys
from rdzv_plugins.elastic.insisting import known_until
from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.errors import ConnectionLost
from rdzv_plugins.interfaces import NodeStatus, RunStatus
from rdzv_plugins.runtime import SYSTEM, Runtime

_TTL_S = 10.0
_READ = (keys.ALL, keys.NODES, keys.MEMBERS, keys.JOB)
_WATCHED = (*_READ, keys.FAILURES, keys.RESTARTS)


def observe(service: CoordinationBackend, timeout: float) -> RunStatus:
    """Return what the run is doing, for a service served by its first node. Writes no key; closes ``service``.

    ``timeout`` (seconds) applies to each step. Raises ``RdzvError``, ``TimeoutError`` or ``ValueError``.
    """
    try:
        session = service.open_session(_TTL_S, on_lost=lambda _: None, timeout=timeout)
        near = session.local_addr == session.remote_addr
        held = {prefix: session.list(prefix, timeout=timeout)[0] for prefix in _READ}
    finally:
        service.close()
    return _found(held, near)


class Observer:
    """Watches a run in a session of its own, and holds the run's keys as they are now. Thread-safe.

    It makes no requests once it is set up: the service pushes what changes. While it is open it counts as a session of
    the run, so a service forgets the keys only after it was closed.
    """

    def __init__(
        self,
        service: CoordinationBackend,
        on_change: Callable[[Event, KeyValue | None], None],
        on_lost: Callable[[ConnectionLost], None],
        timeout: float,
        runtime: Runtime = SYSTEM,
    ) -> None:
        """``on_change`` gets each change from now on, with the previous value of the key; it must return at once.

        ``on_lost`` is the one of ``open_session``; ``timeout`` (seconds) applies to each step. Takes over ``service``,
        and closes it if this raises ``RdzvError`` or ``TimeoutError``.
        """
        self._service, self._on_change, self._runtime = service, on_change, runtime
        self._lock = self._runtime.Lock()
        self.version = 0  # grows with every change
        self._held: dict[str, dict[str, KeyValue]] = {prefix: {} for prefix in _WATCHED}
        with contextlib.ExitStack() as undo:
            undo.callback(service.close)
            self.session = service.open_session(_TTL_S, on_lost=on_lost, timeout=timeout)
            for prefix in _WATCHED:
                begin = functools.partial(self._begin, prefix)
                keys.list_and_watch(self.session, prefix, begin, self._hear, lambda request: request(timeout))
            undo.pop_all()

    def _begin(self, prefix: str, held: Sequence[KeyValue]) -> None:
        with self._lock:
            self._held[prefix] = {kv.key: kv for kv in held}

    def _hear(self, events: Sequence[Event]) -> None:
        for event in events:
            prefix = next(each for each in _WATCHED if event.key.startswith(each))
            with self._lock:
                before = self._held[prefix].pop(event.key, None)
                if event.value is not None:
                    self._held[prefix][event.key] = KeyValue(event.key, event.value, event.revision)
                self.version += 1
            self._on_change(event, before)

    @property
    def silent_s(self) -> float:
        """For how long the service has said nothing, as far as the session can tell."""
        until = known_until(self.session, math.inf)
        return max(0.0, self._runtime.now() - (until - self.session.ttl))

    def held(self, prefix: str) -> list[KeyValue]:
        """The keys below one of ``keys.ALL``, ``NODES``, ``MEMBERS``, ``JOB``, ``FAILURES`` and ``RESTARTS``."""
        with self._lock:
            return list(self._held[prefix].values())

    def status(self) -> RunStatus:
        """What the run is doing. Sends nothing. Raises ``ValueError`` for keys of another version."""
        near = self.session.local_addr == self.session.remote_addr
        return _found({prefix: self.held(prefix) for prefix in _READ}, near)

    def close(self) -> None:
        """Stop watching. No call to ``on_change`` begins after this returns."""
        self._service.close()


def _found(held: Mapping[str, Sequence[KeyValue]], near: bool) -> RunStatus:
    values = {kv.key: kv.value for kv in held[keys.ALL]}
    declared = keys.decode(keys.Round, values[keys.ROUND]) if keys.ROUND in values else keys.Round()
    there = {kv.key.removeprefix(keys.MEMBERS) for kv in held[keys.MEMBERS]}
    members = {member.node_id: member for member in keys.readable(keys.Member, held[keys.MEMBERS])}
    leader = keys.decode(keys.Leading, values[keys.LEADER]).node_id if keys.LEADER in values else ""
    told = keys.readable(keys.Assignment, held[keys.NODES])
    places = sorted(
        (place for place in told if place.is_place and place.round == declared.number), key=lambda place: place.rank
    )
    store = next((Endpoint(place.master_addr, place.master_port) for place in places if place.master_addr), None)
    return RunStatus(
        number=declared.number,
        state=declared.state,
        reason=declared.reason,
        progress=values.get(keys.PROGRESS, b"").decode(errors="backslashreplace"),
        members=len(there),
        leader=members[leader].name if leader in members else leader,
        nodes=tuple(
            NodeStatus(
                place.rank, place.host, place.pid, place.nproc, place.address, place.node_id in there, place.domain
            )
            for place in places
        ),
        store=str(store) if store is not None and declared.state == "complete" else "",
        store_is_here=near,
        store_kind=_kind_of_store(held[keys.JOB]),
    )


def _kind_of_store(job: Sequence[KeyValue]) -> str:
    """The setting ``store`` of the job; empty if it cannot be told."""
    try:
        return str(next(json.loads(kv.value)["settings"]["store"] for kv in job))
    except (StopIteration, ValueError, TypeError, KeyError):
        return ""
