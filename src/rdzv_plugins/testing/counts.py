"""Counts what a node asks of its backend, in the node's process: for the conformance suite and ``rdzv bench``.

Attempts to lead are counted separately: who makes one depends on who came first. What a backend does beneath (retries,
signs of life) is not seen here.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter
from typing import Any

from rdzv_plugins.coordination import CoordinationBackend, EndsSessions, KeyValue, Session, SeveralServices
from rdzv_plugins.elastic import keys
from rdzv_plugins.interfaces import RendezvousBackend, Request, TorchHandler
from rdzv_plugins.registry.catalog import Entry

LEAD = "lead"

_SESSION_CALLS = ("create", "put", "delete", "list", "watch")
_STATE_CALLS = ("get_state", "set_state")
_WRITES = ("put", "set_state")


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
            if name in _WRITES and not came_second:
                self.has_written = True
            return answer

        return counted

    def counting_each(self, names: Iterable[str], made: Any) -> dict[str, Callable[..., Any]]:
        """Return these methods of ``made``, each counted under its name."""
        return {name: self.counting(name, getattr(made, name)) for name in names}

    def counts(self) -> dict[str, int]:
        """A copy of the counts."""
        with self._lock:
            return dict(self._counts)


class _Counted:
    """``inner``, with these calls instead of its own; its other attributes can be read and set as usual."""

    _inner: Any

    def __init__(self, inner: Any, calls: Mapping[str, Callable[..., Any]]) -> None:
        vars(self).update(calls, _inner=inner)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._inner, name, value)

    # since Python 3.12 a protocol's attributes, as those of ``EndsSessions``, have to be found without ``__getattr__``

    @property
    def name(self) -> str:
        return str(self._inner.name)

    @property
    def hosts_service(self) -> bool:
        return bool(self._inner.hosts_service)


class _CountedSeveral(_Counted):
    """One of ``SeveralServices``, whose attributes change."""

    leaves_within = property(attrgetter("_inner.leaves_within"))
    at = property(attrgetter("_inner.at"))
    begins_at = property(attrgetter("_inner.begins_at"))
    left_gone = property(attrgetter("_inner.left_gone"))
    note_complete = property(attrgetter("_inner.note_complete"))


def counted(entry: Entry, asked: Asked) -> Entry:
    """Return ``entry`` with what its backend makes being counted; calls of a handler of its own are not counted."""

    def create(request: Request) -> Any:
        asked.created = created = entry.backend.create(request)
        if isinstance(created, TorchHandler):
            return created
        if isinstance(created, CoordinationBackend):
            return _counted_service(created, asked)
        is_state = isinstance(created, RendezvousBackend)
        return _Counted(created, asked.counting_each(_STATE_CALLS, created)) if is_state else created

    return Entry(dataclasses.replace(entry.backend, create=create), entry.record)


def _counted_service(service: CoordinationBackend, asked: Asked) -> Any:
    opening = asked.counting("open_session", service.open_session)

    def open_session(*args: Any, **kwargs: Any) -> Any:
        return _counted_session(opening(*args, **kwargs), asked)

    kind = _CountedSeveral if isinstance(service, SeveralServices) else _Counted
    return kind(service, {"open_session": open_session, "close": service.close})


def _counted_session(session: Session, asked: Asked) -> Any:
    """The requests of a session are counted, including those that its own methods make of each other."""
    leading = asked.counting(LEAD, session.create)
    calls = asked.counting_each(_SESSION_CALLS, session)
    for name, call in calls.items():
        with contextlib.suppress(AttributeError):  # it has slots
            setattr(session, name, call)

    def create(key: str, value: bytes, **kwargs: Any) -> tuple[bool, KeyValue]:
        call = leading if key == keys.LEADER else calls["create"]
        answer: tuple[bool, KeyValue] = call(key, value, **kwargs)
        asked.leads |= key == keys.LEADER and answer[0]
        return answer

    ends = {"end_session": session.end_session} if isinstance(session, EndsSessions) else {}
    return _Counted(session, {**calls, **ends, "create": create})
