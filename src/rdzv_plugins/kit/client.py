"""``ServiceClient``: what the author of a backend writes for a coordination service."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence, Set
from typing import TYPE_CHECKING

from rdzv_plugins.coordination import Event, KeyValue
from rdzv_plugins.kit.security import Security
from rdzv_plugins.runtime import SYSTEM

if TYPE_CHECKING:
    from rdzv_plugins.kit.reasons import Reason

WAIT_S = 20.0
"""How long the service lets a watch wait for a change: a dead connection is noticed within little more than this."""


class SessionEnded(Exception):
    """Raised by a client's coroutine: the service answers, but does not know this session, or no longer does."""


class ServiceClient(ABC):
    """One session's client of a service. All of it is coroutines on one thread; any number may wait at once.

    Each of them asks once, as if nothing could go wrong. The kit repeats what failed, after ``disconnect`` and
    ``connect``; it cancels what takes too long; and it turns exceptions into messages and the contract's errors:

    - ``Unusable``, with a ``Reason``: the service says that it cannot now, or never will;
    - ``SessionEnded``: it does not know this session;
    - ``Compacted``, from ``changes``, ``watch`` and ``names_at`` alone;
    - an ``OSError``, an error of TLS among them, or ``EOFError``: the connection is of no use (there is no need to tell
      of a time-out, for the kit measures the time);
    - an ``RdzvError`` reaches the user as it is;
    - anything else counts as an answer that makes no sense: the user is told which method raised it, and it is asked
      again for as long as an outage may last, or for ``ttl`` seconds if it has never worked. Then this node ends.

    What they return is checked: a value of another type than theirs ends this node at once (``BrokenPlugin``).
    """

    service: str
    """The name of the service, for messages: "Consul"."""
    address: str
    """The address of the service, for messages: "10.0.0.1:8500"."""
    local_addr: str = ""
    """This machine's address on the connection to the service. ``connect`` sets both as soon as possible."""
    remote_addr: str = ""
    """The service's address on that connection."""
    security: Security | None = None
    """The TLS files and credentials that it uses, so that messages about TLS can name the files."""
    repeats_writes: bool = True
    """True if the service does each ``number`` of a session only once, so that an unanswered write can be repeated.

    If False, such a write is a ``TimeoutError``, and the caller has to find out what became of it.
    """

    def __init__(self) -> None:
        self.session: str = SYSTEM.urandom(8).hex()
        """The unique name of this session."""

    @abstractmethod
    async def connect(self) -> None:
        """Reach the service, log in, and check that it is the right one."""

    @abstractmethod
    async def disconnect(self) -> None:
        """Close the connection, if there is one, however broken it is. May be repeated."""

    @abstractmethod
    async def open(self, ttl: float) -> float:
        """Open the session; returns the time to live that was granted. If the session is already open, do no more."""

    @abstractmethod
    async def keep_alive(self) -> None:
        """Say that the session lives; called four times within ``ttl``."""

    async def keep_alive_due(self) -> None:
        """Wait until ``keep_alive`` should be called, where that may be before its time; cancelled if it is not.

        Optional: for a service whose sessions look after each other, as often as one with a shorter ``ttl`` needs it.
        """
        import asyncio  # not for those who only check answers

        await asyncio.get_running_loop().create_future()

    @abstractmethod
    async def end(self) -> None:
        """End the session: its ephemeral keys are deleted at once."""

    @abstractmethod
    async def create(self, number: int, key: str, value: bytes, *, ephemeral: bool) -> tuple[bool, KeyValue]:
        """Write ``key`` if it is absent; returns whether that was done, and the key as it is now.

        Writes come one after the other, and each has a ``number``, one more than the last. The service does a number
        only once: if it is repeated, it gives the same answer, and a smaller number is too late.
        """

    @abstractmethod
    async def put(
        self, number: int, items: Mapping[str, bytes], *, ephemeral: bool, guard: KeyValue | None
    ) -> int | None:
        """Write all items in order if ``guard`` has not changed; returns the revision of the last one, or None."""

    @abstractmethod
    async def delete(self, number: int, keys: Sequence[str], *, guard: KeyValue | None) -> bool:
        """Delete those of ``keys`` that exist, if ``guard`` has not changed; returns False if it has."""

    @abstractmethod
    async def list(self, prefix: str) -> tuple[Sequence[KeyValue], int]:
        """Return the keys that begin with ``prefix``, in order of their revisions, and the revision of this answer.

        Keys whose names are not text, which only a stranger writes, are left out here and of ``changes``: ``name_of``.
        """

    async def changes(self, prefix: str, after: int, wait: float) -> tuple[Sequence[Event], int]:
        """Return all changes since revision ``after`` of keys that begin with ``prefix``, and up to which revision.

        If there is none yet it waits for one, but after ``wait`` seconds it returns none. Raises ``Compacted`` if the
        service no longer knows. Needed unless there is ``watch``.
        """
        raise NotImplementedError(f"{type(self).__name__} has neither changes() nor watch()")

    async def watch(self, prefix: str, after: int) -> AsyncIterator[tuple[Sequence[Event], int]]:
        """Yield what ``changes`` returns: at once, maybe nothing, and whenever there is something new.

        For a service that pushes; without it, ``changes`` is asked again and again. With it, a connection that is dead
        without a sign is found out by ``keep_alive`` alone.
        """
        wait = 0.0
        while True:
            events, after = await self.changes(prefix, after, wait)
            yield events, after
            wait = WAIT_S

    async def names_at(self, prefix: str, revision: int) -> Set[str] | None:
        """Return the names of the keys that began with ``prefix`` at ``revision``; None if the service cannot tell.

        Optional: where they are known, a session survives that the service forgets changes during an outage. Raises
        ``Compacted``.
        """
        return None

    def reason_of(self, error: Exception) -> Reason | None:
        """What ``error`` means, a time-out among them, where this knows more than the error; None: no more."""
        return None

    async def close(self) -> None:
        """Let go of what ``disconnect`` leaves. The last call; may be cancelled after a second."""
        return

    async def end_session(self, key: str) -> bool:
        """End the session that owns the ephemeral ``key``; returns whether that was done. May be repeated.

        Optional: without it, or if it returns False, the keys of a node whose process is gone stay for its time to
        live. Refusing it (``AccessRefused``) has the same effect, and leaves this session alone. See
        ``rdzv_plugins.coordination.EndsSessions``.
        """
        return False
