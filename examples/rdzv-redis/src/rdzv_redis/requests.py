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
        self.seen = 0
        """The highest revision that Redis has told of."""

    async def open(self, ttl: float, patience: float, deadline: float) -> int:
        """Begin to live; returns the revision then. ``ttl`` and ``patience`` in seconds."""
        answer = await self._ask(["open", self._name, self._epoch, _ms(ttl), _ms(patience)], deadline)
        self._epoch = answer[1].decode()
        self.seen = int(answer[2])
        self.shortest = int(answer[3]) / 1000
        """The shortest time to live of a session of the run, in seconds: as often others have to be looked after."""
        return self.seen

    async def keep(self, deadline: float) -> int:
        """Live on, and let those end who do not; returns the revision then."""
        answer = await self._ask(["keep", self._name, self._epoch, self.seen], deadline)
        self.shortest = int(answer[2]) / 1000
        return self._saw(answer[1])

    async def close(self, deadline: float) -> None:
        """End."""
        await self._ask(["close", self._name, self._epoch], deadline)

    async def create(self, key: str, value: bytes, deadline: float, *, ephemeral: bool) -> tuple[bool, KeyValue]:
        """As ``Session.create``."""
        answer = await self._change("create", None, ephemeral, [key, value], deadline)
        revision = self._saw(answer[2])
        return (False, held(key, answer[1])) if answer[1] else (True, KeyValue(key, value, revision))

    async def put(
        self, items: Mapping[str, bytes], guard: KeyValue | None, deadline: float, *, ephemeral: bool
    ) -> int | None:
        """As ``Session.put``, in one step."""
        flat = [part for item in items.items() for part in item]
        answer = await self._change("put", guard, ephemeral, flat, deadline)
        return self._saw(answer[1]) if answer[0] == b"OK" else None

    async def delete(self, keys: Sequence[str], guard: KeyValue | None, deadline: float) -> bool:
        """As ``Session.delete``, in one step."""
        answer = await self._change("delete", guard, False, keys, deadline)
        return bool(answer[0] == b"OK")

    async def find(self, prefix: str, deadline: float) -> tuple[list[KeyValue], int]:
        """As ``Session.list``."""
        answer = await self._ask(["list", self._name, self._epoch, prefix], deadline)
        return listed(answer[2:]), self._saw(answer[1])

    async def since(self, prefix: str, after: int, deadline: float) -> tuple[Sequence[Event], int]:
        """The changes after a revision, and up to which one. Raises ``Compacted``."""
        answer = await self._ask(["since", self._name, self._epoch, prefix, after], deadline)
        if answer[0] == b"COMPACTED":
            raise Compacted(
                f"watching {prefix!r}: Redis has forgotten what happened after revision {after}: "
                f"it knows what came from {int(answer[1])} on",
                remedy="List the keys, and watch after the revision of that answer.",
            )
        return list(events(answer[2:])), self._saw(answer[1])

    def _saw(self, revision: bytes) -> int:
        self.seen = max(self.seen, int(revision))
        return int(revision)

    async def _change(
        self, what: str, guard: KeyValue | None, ephemeral: bool, rest: Sequence[Any], deadline: float
    ) -> list[Any]:
        condition = ["", ""] if guard is None else [guard.key, guard.revision]
        owner = self._name if ephemeral else NOBODY

        def numbered() -> list[Any]:  # in the order in which they are sent
            self._number += 1
            return [what, self._name, self._epoch, self._number, *condition, owner, *rest]

        return self._checked(await self._channel.call(numbered, deadline))

    async def _ask(self, arguments: list[Any], deadline: float) -> list[Any]:
        return self._checked(await self._channel.call(lambda: arguments, deadline))

    def _checked(self, answer: list[Any]) -> list[Any]:
        if answer[0] == b"GONE":
            raise Gone(answer[1].decode())
        if answer[0] == b"STALE":
            raise EndpointUnreachable("Redis has been asked by two sessions of the same name")
        return answer


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
