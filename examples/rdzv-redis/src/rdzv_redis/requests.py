"""What a session asks of its run: each request is one call of ``run.lua``. On the loop's thread only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rdzv_plugins import Event, KeyValue
from rdzv_plugins.errors import Compacted, EndpointUnreachable

from rdzv_redis.channel import Channel
from rdzv_redis.space import NOBODY, events, held, listed


class Gone(Exception):
    """The session has ended, as Redis says. ``how``: LOST, BACK or OVER, see ``run.lua``."""

    def __init__(self, how: str) -> None:
        super().__init__(how)
        self.how = how


class Requests:
    """Of session ``name``. Each raises ``TimeoutError``, ``Gone``, and what ``Channel.call`` does."""

    def __init__(self, channel: Channel, name: str, epoch: str) -> None:
        self._channel, self._name, self._epoch = channel, name, epoch
        self._number = 0
        self._seen, self._identity = 0, b""

    async def open(self, ttl: float, patience: float, deadline: float) -> tuple[int, bytes]:
        """Begin to live; returns the revision then, and its identity. ``ttl`` and ``patience`` in seconds."""
        first = ["open", self._name, self._epoch, _ms(ttl), _ms(patience)]
        answer = self._checked(await self._channel.call(lambda: first, deadline))
        self._epoch = answer[3].decode()
        self.shortest = int(answer[4]) / 1000
        """The shortest time to live of a session of the run, in seconds: as often others have to be looked after."""
        self._seen, self._identity = int(answer[1]), answer[2]
        return self._seen, self._identity

    def saw(self, revision: int, identity: bytes) -> None:
        """This session knows of that change. Redis is told with each request, and compares: it may have lost it."""
        if revision > self._seen:
            self._seen, self._identity = revision, identity

    async def keep(self, deadline: float) -> int:
        """Live on, and let those end who do not; returns the revision then."""
        answer = await self._ask(["keep"], deadline)
        self.shortest = int(answer[3]) / 1000
        return self._saw(answer)

    async def close(self, deadline: float) -> None:
        """End."""
        await self._ask(["close"], deadline)

    async def evict(self, key: str, deadline: float) -> bool:
        """End the session that has written the ephemeral ``key``; whether there was one."""
        answer = await self._ask(["evict", key], deadline)
        self._saw(answer)
        return answer[3] == b"1"

    async def create(self, key: str, value: bytes, deadline: float, *, ephemeral: bool) -> tuple[bool, KeyValue]:
        """As ``Session.create``."""
        answer = await self._change("create", None, ephemeral, [key, value], deadline)
        revision = self._saw(answer)
        return (False, held(key, answer[3])) if answer[3] else (True, KeyValue(key, value, revision))

    async def put(
        self, items: Mapping[str, bytes], guard: KeyValue | None, deadline: float, *, ephemeral: bool
    ) -> int | None:
        """As ``Session.put``, in one step."""
        flat = [part for item in items.items() for part in item]
        answer = await self._change("put", guard, ephemeral, flat, deadline)
        return self._saw(answer) if answer[0] == b"OK" else None

    async def delete(self, keys: Sequence[str], guard: KeyValue | None, deadline: float) -> bool:
        """As ``Session.delete``, in one step."""
        answer = await self._change("delete", guard, False, keys, deadline)
        if answer[0] != b"OK":
            return False
        self._saw(answer)
        return True

    async def find(self, prefix: str, deadline: float) -> tuple[list[KeyValue], int]:
        """As ``Session.list``."""
        answer = await self._ask(["list", prefix], deadline)
        return listed(answer[3:]), self._saw(answer)

    async def since(self, prefix: str, after: int, deadline: float) -> tuple[Sequence[Event], int]:
        """The changes after a revision, and up to which one. Raises ``Compacted``."""
        answer = await self._ask(["since", prefix, after], deadline)
        if answer[0] == b"COMPACTED":
            raise Compacted(
                f"watching {prefix!r}: Redis has forgotten what happened after revision {after}: "
                f"it knows what came from {int(answer[1])} on",
                remedy="List the keys, and watch after the revision of that answer.",
            )
        return list(events(answer[3:])), self._saw(answer)

    def _saw(self, answer: Sequence[bytes]) -> int:
        revision = int(answer[1])
        self.saw(revision, answer[2])
        return revision

    async def _change(
        self, what: str, guard: KeyValue | None, ephemeral: bool, rest: Sequence[Any], deadline: float
    ) -> list[Any]:
        condition = ["", ""] if guard is None else [guard.key, guard.revision]
        owner = self._name if ephemeral else NOBODY

        def numbered() -> list[Any]:  # in the order in which they are sent
            self._number += 1
            return self._signed([what, self._number, *condition, owner, *rest])

        return self._checked(await self._channel.call(numbered, deadline))

    async def _ask(self, arguments: list[Any], deadline: float) -> list[Any]:
        return self._checked(await self._channel.call(lambda: self._signed(arguments), deadline))

    def _signed(self, arguments: Sequence[Any]) -> list[Any]:
        operation, *rest = arguments
        return [operation, self._name, self._epoch, self._seen, self._identity, *rest]

    def _checked(self, answer: list[Any]) -> list[Any]:
        if answer[0] == b"GONE":
            raise Gone(answer[1].decode())
        if answer[0] == b"STALE":
            raise EndpointUnreachable("Redis has been asked by two sessions of the same name")
        return answer


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
