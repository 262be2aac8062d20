"""What the elastic rendezvous needs of a coordination service: the contract of ``CoordinationBackend``.

etcd, ZooKeeper, Consul, Redis and the project's own server all offer it, under different names: keys with
revisions, keys that go with the session that wrote them, and watches. Whoever implements these two
classes gets the whole elastic rendezvous (``elastic/``): ranks, spares, take-over, ends, messages.

Every change of a key gets a revision: a number that grows over all keys of a run. Keys are text, values
bytes, at most a few kilobytes each. All keys belong to one run: the backend keeps runs apart, for example
by a prefix. Nothing here is asked of clocks on two machines: a session's time to live is measured by the
service alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from rdzv_plugins.errors import ConnectionLost


@dataclass(frozen=True)
class KeyValue:
    """A key that is there. ``revision`` is that of its last change."""

    key: str
    value: bytes
    revision: int


@dataclass(frozen=True)
class Event:
    """A key that was written, or has gone (``value`` None): deleted, or its session has ended."""

    key: str
    value: bytes | None
    revision: int


OnEvents = Callable[[Sequence[Event]], None]
"""Called with one or more events in the order of their revisions. Returns at once; makes no request."""


class Watch(Protocol):
    """A watch that runs until it or its session ends."""

    def cancel(self) -> None:
        """No call begins after this returns, unless it is called from the call itself. May be repeated."""
        ...


class Session(Protocol):
    """One node's connection to the service, kept alive by the backend's own means until ``close``.

    It ends when it is closed, or when the service has heard nothing for ``ttl`` seconds by the service's own
    clock; at once when its connection breaks, if the service tells sessions by their connections. Then its
    ephemeral keys go, and whoever watches them is told. A service of several members may move a session from one
    to another. An ended session never comes back: a node that finds its session ended opens another.

    Thread-safe. Each call waits for an answer for at most ``timeout`` seconds and then raises
    ``TimeoutError``; what it would have changed may still change. After the end of the session every call
    raises ``ConnectionLost``.
    """

    @property
    def ttl(self) -> float:
        """The time to live that the service has granted, in seconds."""
        ...

    @property
    def known_until(self) -> float:
        """The time, as ``rdzv_plugins.clock.now`` counts, until which the service surely has not ended this session.

        That is ``ttl`` after the newest keep-alive or request that was answered had been sent: the service may have
        counted from that moment. It grows while the service answers; reading it sends nothing. Optional: of a session
        that cannot say, nodes believe that it lives until they are told otherwise.
        """
        ...

    @property
    def local_addr(self) -> str:
        """The address of this machine on its way to the service: peers can dial it, if they take the same way."""
        ...

    @property
    def remote_addr(self) -> str:
        """The address that was dialled to reach the service, or one of its members."""
        ...

    def create(self, key: str, value: bytes, *, ephemeral: bool = False, timeout: float) -> tuple[bool, KeyValue]:
        """Write ``key`` if it is absent. Returns whether that was done, and the key as it is now."""
        ...

    def put(
        self, items: Mapping[str, bytes], *, ephemeral: bool = False, guard: KeyValue | None = None, timeout: float
    ) -> int | None:
        """Write all ``items``, however many, in the order given; returns the revision of the last.

        With ``guard`` only if that key was not changed since: else nothing is written and None is
        returned. A guard that is itself among the items makes this a compare-and-put. A service with a
        limit on one transaction may split the items, if each part is guarded and the order is kept.
        An ephemeral key belongs to the session that has written it last.
        """
        ...

    def delete(self, keys: Iterable[str], *, guard: KeyValue | None = None, timeout: float) -> bool:
        """Delete those of ``keys`` that exist. False, and nothing is deleted, if ``guard`` has changed."""
        ...

    def list(self, prefix: str, *, timeout: float) -> tuple[Sequence[KeyValue], int]:
        """All keys that begin with ``prefix``, in order of their revisions, and the revision of this answer."""
        ...

    def watch(self, prefix: str, on_events: OnEvents, *, after: int = 0, timeout: float) -> Watch:
        """Call ``on_events`` with every change since revision ``after`` of keys that begin with ``prefix``.

        Of changes from before the watch the service may leave out those that a later one of the same key has overtaken.
        The service pushes them: nothing is polled. ``on_events`` may be called before this returns, on a
        thread of the backend, one call at a time. Raises ``Compacted`` when the service no longer knows what
        happened since ``after``; 0 is always known, and gives the keys that are there.
        """
        ...

    def close(self) -> None:
        """End the session. May be called more than once."""
        ...


@runtime_checkable
class EndsSessions(Protocol):
    """What a ``Session`` may offer beside: the end of another one, whose process is proved gone, before its time.

    Optional. Where it is missing, or returns False, the nodes go on without the lost one all the same, and its keys
    stay until its session ends by itself: a node that begins to lead meanwhile has to wait for that.
    """

    def end_session(self, key: str, *, timeout: float) -> bool:
        """End the session to which the ephemeral ``key`` belongs, as if it had not been heard of for its time to live.

        All its ephemeral keys go, whoever watches them is told, and so is its node, if it lives. Returns whether that
        was done: False if there is no such key, if it is not ephemeral, if it is this session's own, or if the service
        cannot do it. May be repeated, by several sessions at once. Thread-safe; raises as ``Session`` does.
        """
        ...


@runtime_checkable
class CoordinationBackend(Protocol):
    """A coordination service as one node of one run sees it: what a plug-in's ``create`` returns."""

    @property
    def name(self) -> str:
        """The name of the backend."""
        ...

    @property
    def hosts_service(self) -> bool:
        """True when the service is part of this very process: then its node leaves last."""
        ...

    def open_session(self, ttl: float, *, on_lost: Callable[[ConnectionLost], None], timeout: float) -> Session:
        """Reach the service, trying again for up to ``timeout`` seconds, and open a session.

        ``on_lost`` is called once, on any thread, when the session ends otherwise than by ``close``: with
        the reason. It returns at once.
        Raises ``EndpointUnreachable``, or ``RunIdMismatch`` when the service belongs to another run.
        """
        ...

    def close(self) -> None:
        """End the sessions that are open, and let go of everything: of the service, too, where this process serves it.

        May be called more than once.
        """
        ...
