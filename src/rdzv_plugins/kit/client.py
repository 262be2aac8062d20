"""``ServiceClient``: what the author of a backend writes of a coordination service."""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from rdzv_plugins.coordination import Event, KeyValue
from rdzv_plugins.kit.security import Security


class SessionEnded(Exception):
    """Raised by a client's coroutine: the service answers, and does not know this session, or not any more."""


class ServiceClient(ABC):
    """One session's client of a service. All of it is coroutines on one thread; any number may wait at once.

    Each of them asks once, as if all went well. The kit repeats what failed, after ``disconnect`` and ``connect``; it
    cancels what takes too long; and it turns what is raised into messages and the contract's errors:

    - ``Unusable``, with a ``Reason``: the service says that it cannot now, or never will;
    - ``SessionEnded``: it does not know this session;
    - ``Compacted``, from ``changes`` alone;
    - an ``OSError``, an error of TLS among them, or ``EOFError``: the connection is of no use (there is no need to tell
      of a time-out, for the kit measures the time);
    - an ``RdzvError`` reaches the user as it is; anything else counts as an answer that makes no sense.
    """

    service: str
    """What it is, for messages: "Consul"."""
    address: str
    """Where it is, for messages: "10.0.0.1:8500"."""
    local_addr: str = ""
    """This machine's address on the connection to the service. Set both in ``connect``, as soon as it is there."""
    remote_addr: str = ""
    """The other end of it."""
    security: Security | None = None
    """With what it talks to the service, so that messages about TLS can name the files."""
    repeats_writes: bool = True
    """The service does each ``number`` of a session once, so that a write which was not answered can be repeated.

    False: such a write is a ``TimeoutError``, and whoever asked for it looks what has become of it.
    """

    def __init__(self) -> None:
        self.session: str = secrets.token_hex(8)
        """The name of this session: no other has it."""

    @abstractmethod
    async def connect(self) -> None:
        """Reach the service, log in, and see that it is what it should be."""

    @abstractmethod
    async def disconnect(self) -> None:
        """Let go of the connection, if there is one, however broken it is. May be repeated."""

    @abstractmethod
    async def open(self, ttl: float) -> float:
        """Open the session; returns its time to live as granted. The session may be open already: then do no more."""

    @abstractmethod
    async def keep_alive(self) -> None:
        """Say that the session lives; called four times within ``ttl``."""

    @abstractmethod
    async def end(self) -> None:
        """End the session: its ephemeral keys go at once."""

    @abstractmethod
    async def create(self, number: int, key: str, value: bytes, *, ephemeral: bool) -> tuple[bool, KeyValue]:
        """Write ``key`` if it is absent: (whether that was done, the key as it is now).

        Writes come one after the other, and each has a ``number``, one more than the last. The service does a number
        once: asked again it gives the same answer, and a smaller number is too late.
        """

    @abstractmethod
    async def put(
        self, number: int, items: Mapping[str, bytes], *, ephemeral: bool, guard: KeyValue | None
    ) -> int | None:
        """Write all items in order, if ``guard`` has not changed: the revision of the last one, else None."""

    @abstractmethod
    async def delete(self, number: int, keys: Sequence[str], *, guard: KeyValue | None) -> bool:
        """Delete those of ``keys`` that exist, if ``guard`` has not changed; returns whether it has not."""

    @abstractmethod
    async def list(self, prefix: str) -> tuple[Sequence[KeyValue], int]:
        """The keys that begin with ``prefix``, in the order of their revisions, and the revision of this answer."""

    @abstractmethod
    async def changes(self, prefix: str, after: int, wait: float) -> tuple[Sequence[Event], int]:
        """All changes since revision ``after`` of keys that begin with ``prefix``, and up to which revision.

        If there is none yet it waits for one, but answers after ``wait`` seconds at the latest, with nothing. Raises
        ``Compacted`` if the service does not know any more.
        """

    async def end_session(self, key: str) -> bool:
        """End the session to which the ephemeral ``key`` belongs: whether that was done. It may be asked again.

        Optional: without it, False, the keys of a node whose process is gone stay for its time to live. To refuse it
        (``AccessRefused``) is the same, and leaves this session alone. See ``rdzv_plugins.coordination.EndsSessions``.
        """
        return False
