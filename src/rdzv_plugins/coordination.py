"""What the elastic rendezvous needs of a coordination service: the contract of ``CoordinationBackend``.

etcd, ZooKeeper, Consul, Redis and the project's own server all offer it, under different names: keys with revisions,
keys that go with the session that wrote them, and watches. A plug-in that implements these two classes gets the whole
elastic rendezvous (``elastic/``): ranks, spares, take-over, ends, messages.

Every change of a key gets a revision: a number that grows over all keys of a run. Keys are text, values bytes, at most
a few kilobytes each. All keys belong to one run: the backend keeps runs apart, for example by a prefix. Nothing here
depends on the clocks of two machines: only the service measures a session's time to live.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from rdzv_plugins.errors import ConnectionLost


@dataclass(frozen=True)
class KeyValue:
    """An existing key. ``revision`` is that of its last change."""

    key: str
    value: bytes
    revision: int


@dataclass(frozen=True)
class Event:
    """The change of a key: written, or gone (``value`` None) because it was deleted or its session has ended."""

    key: str
    value: bytes | None
    revision: int


OnEvents = Callable[[Sequence[Event]], None]
"""Called with one or more events in the order of their revisions. Returns at once; makes no request."""


class Watch(Protocol):
    """A watch that runs until it or its session ends."""

    def cancel(self) -> None:
        """Stop the watch: no call begins after this returns, unless called from within one. May be repeated."""


class Session(Protocol):
    """One node's connection to the service, kept alive by the backend's own means until ``close``.

    It ends when it is closed, or when the service has heard nothing for ``ttl`` seconds by the service's own clock; at
    once when its connection breaks, if the service tells sessions by their connections. Then its ephemeral keys are
    deleted, and whoever watches them is told. A service of several members may move a session from one to another. An
    ended session never comes back: a node that finds its session ended opens another.

    Thread-safe. Each call waits for an answer for at most ``timeout`` seconds and then raises
    ``TimeoutError``; what it would have changed may still change. After the end of the session every call
    raises ``ConnectionLost``.
    """

    @property
    def ttl(self) -> float:
        """The time to live that the service has granted, in seconds."""

    @property
    def known_until(self) -> float:
        """The time, as ``rdzv_plugins.clock.now`` counts, until which the service surely has not ended this session.

        That is ``ttl`` after the newest answered keep-alive or request was sent: the service may have counted from that
        moment. It grows while the service answers; reading it sends nothing. Optional: without it, nodes believe that a
        session lives until they are told otherwise.
        """

    @property
    def local_addr(self) -> str:
        """The address of this machine on its way to the service: peers can dial it, if they take the same way."""

    @property
    def remote_addr(self) -> str:
        """The address that was dialled to reach the service, or one of its members."""

    def create(self, key: str, value: bytes, *, ephemeral: bool = False, timeout: float) -> tuple[bool, KeyValue]:
        """Write ``key`` if it is absent. Returns whether that was done, and the key as it is now."""

    def put(
        self, items: Mapping[str, bytes], *, ephemeral: bool = False, guard: KeyValue | None = None, timeout: float
    ) -> int | None:
        """Write all ``items``, however many, in the order given; returns the revision of the last.

        With ``guard``, only if that key has not changed since: otherwise nothing is written and None is returned. A
        guard that is itself among the items makes this a compare-and-put. A service with a limit on one transaction may
        split the items, if each part is guarded and the order is kept. An ephemeral key belongs to the session that
        wrote it last.
        """

    def delete(self, keys: Iterable[str], *, guard: KeyValue | None = None, timeout: float) -> bool:
        """Delete those of ``keys`` that exist. False, and nothing is deleted, if ``guard`` has changed."""

    def list(self, prefix: str, *, timeout: float) -> tuple[Sequence[KeyValue], int]:
        """All keys that begin with ``prefix``, in order of their revisions, and the revision of this answer."""

    def watch(self, prefix: str, on_events: OnEvents, *, after: int = 0, timeout: float) -> Watch:
        """Call ``on_events`` with every change since revision ``after`` of keys that begin with ``prefix``.

        The service may leave out changes from before the watch if a later one of the same key supersedes them. The
        service pushes them: nothing is polled. ``on_events`` may be called before this returns, on a thread of the
        backend, one call at a time. Raises ``Compacted`` when the service no longer knows what happened since
        ``after``; 0 is always known, and gives the keys that are there.
        """

    def close(self) -> None:
        """End the session. May be called more than once."""


@runtime_checkable
class EndsSessions(Protocol):
    """What a ``Session`` may offer in addition: ending another session, whose process is proved gone, before its time.

    Optional. If it is missing, or returns False, the nodes still go on without the lost one, but its keys stay until
    its session ends by itself: a node that begins to lead meanwhile has to wait for that.
    """

    def end_session(self, key: str, *, timeout: float) -> bool:
        """End the session that owns the ephemeral ``key``, as if it had not been heard from for its time to live.

        All its ephemeral keys are deleted; whoever watches them is told, and so is its node, if it is alive. Returns
        whether that was done: False if there is no such key, if it is not ephemeral, if it is this session's own, or if
        the service cannot do it. May be repeated, by several sessions at once. Thread-safe; raises as ``Session`` does.
        """


@runtime_checkable
class CoordinationBackend(Protocol):
    """A coordination service as one node of one run sees it: what a plug-in's ``create`` returns."""

    @property
    def name(self) -> str:
        """The name of the backend."""

    @property
    def hosts_service(self) -> bool:
        """True if the service is part of this process: then its node leaves last."""

    def open_session(self, ttl: float, *, on_lost: Callable[[ConnectionLost], None], timeout: float) -> Session:
        """Reach the service, trying again for up to ``timeout`` seconds, and open a session.

        ``on_lost`` is called once, on any thread, with the reason, if the session ends other than by ``close``. It
        returns at once. Raises ``EndpointUnreachable``, or ``RunIdMismatch`` when the service belongs to another run.
        """

    def close(self) -> None:
        """End the open sessions and release everything, including the service if this process serves it.

        May be called more than once.
        """


@runtime_checkable
class SeveralServices(Protocol):
    """What a ``CoordinationBackend`` has in addition if its sessions are at one of several services.

    None of them knows what was said at another. Once a session has ended, the next may be at another service, and this
    node tells that one what it knows of the job (``elastic/coordinator/quorum.py``). Services are counted from 0.
    """

    @property
    def leaves_within(self) -> float:
        """The most seconds until a lost service may be left for another."""

    @property
    def at(self) -> int | None:
        """The service of the newest session; None before the first."""

    @property
    def begins_at(self) -> int | None:
        """The service at which the first round of the job is begun, if this node was sent there for that."""

    @property
    def left_gone(self) -> bool:
        """Whether the process that served the service before the newest one is known to be gone."""

    def note_complete(self) -> None:
        """Note that this node was in a complete round: wherever it goes, that is known there."""


# what an answer of a plug-in may be


def wrong_answer(method: str, answer: Any, *, guarded: bool = True) -> str:
    """What is wrong with an answer to ``method`` of a session, or of the kit's client; empty if nothing is.

    ``guarded``: the request had a guard, so that the service may have refused it.
    """
    is_right, wanted = _ANSWERS.get(method, _ANYTHING)
    if not is_right(answer):
        return f"returned {shown(answer)}, which is not {wanted}"
    refused = not guarded and method in ("put", "delete") and (answer is None or answer is False)
    return f"returned {shown(answer)}: a guard has changed, but there was none" if refused else ""


def shown(value: object) -> str:
    """A value for a message, with its type, cut where it is long."""
    text = repr(value)
    kind = "" if value is None else f" ({type(value).__name__})"
    return f"{text if len(text) <= _SHOWN else f'{text[:_SHOWN]}...'}{kind}"


def are_events(events: Any) -> bool:
    """Whether a watch may be told this."""
    return _are(events, lambda each: isinstance(each, Event) and _is_key(each, may_be_gone=True))


def _is_number(value: Any) -> bool:
    """Whether it is a whole number, such as a revision or a rank."""
    return isinstance(value, int) and not isinstance(value, bool)


def _is_key(value: Any, *, may_be_gone: bool = False) -> bool:
    held = isinstance(value.value, bytes) or (may_be_gone and value.value is None)
    return held and isinstance(value.key, str) and _is_number(value.revision)


def _is_key_value(value: Any) -> bool:
    return isinstance(value, KeyValue) and _is_key(value)


def _are(values: Any, is_right: Callable[[Any], bool]) -> bool:
    return isinstance(values, Sequence) and not isinstance(values, str | bytes) and all(map(is_right, values))


def _pair(answer: Any, first: Callable[[Any], bool], second: Callable[[Any], bool]) -> bool:
    return isinstance(answer, tuple) and len(answer) == 2 and first(answer[0]) and second(answer[1])


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool)


_SHOWN = 200
_ANYTHING: tuple[Callable[[Any], bool], str] = (lambda _: True, "")
_ANSWERS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "open": (
        lambda answer: isinstance(answer, int | float) and 0 < answer < float("inf"),
        "the time to live that was granted, in seconds",
    ),
    "create": (lambda answer: _pair(answer, _is_bool, _is_key_value), "(whether it was done, the KeyValue)"),
    "put": (lambda answer: answer is None or _is_number(answer), "a revision or None"),
    "delete": (_is_bool, "True or False"),
    "list": (
        lambda answer: _pair(answer, lambda held: _are(held, _is_key_value), _is_number),
        "(a sequence of KeyValue, a revision)",
    ),
    "changes": (lambda answer: _pair(answer, are_events, _is_number), "(a sequence of Event, a revision)"),
    "names_at": (lambda answer: answer is None or isinstance(answer, Set), "a set of names or None"),
    "watch": (lambda answer: callable(getattr(answer, "cancel", None)), "a Watch, which has cancel()"),
    "end_session": (_is_bool, "True or False"),
}
