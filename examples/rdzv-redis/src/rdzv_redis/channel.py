"""The connection of a session's requests: one at a time, made again when it breaks. On the loop's thread only."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from rdzv_plugins.kit import Closed, within

from rdzv_redis.server import TIMEOUTS, TROUBLE, Server
from rdzv_redis.wire import Wire

_PAUSE_S = 0.2
_LONGEST_ATTEMPT_S = 10.0

Arguments = Callable[[], list[Any]]
"""Makes the arguments of the script, once its turn has come."""


class Channel:
    """Asks again when an answer does not come: requests that change something are numbered, so they are done once.

    ``attempt``: seconds after which an answer counts as lost, the first time; then twice as long, and so on.
    ``on_trouble`` is called when a connection has broken.
    """

    def __init__(self, server: Server, keys: list[str], attempt: float, on_trouble: Callable[[], None]) -> None:
        self._server, self._keys, self._attempt, self._on_trouble = server, keys, attempt, on_trouble
        self._turn = asyncio.Lock()
        self._wire: Wire | None = None
        self._closed = False

    def take(self, wire: Wire) -> None:
        """Use that connection first."""
        self._wire = wire

    async def call(self, arguments: Arguments, deadline: float) -> list[Any]:
        """What the script returns, by ``deadline`` in the monotonic clock's seconds.

        Raises ``TimeoutError`` with the reason, ``EndpointUnreachable`` if Redis never was of use and will not be, and
        ``Closed``.
        """
        try:
            await within(deadline - time.monotonic(), self._turn.acquire(), undo=self._turn.release)
        except TimeoutError:
            raise TimeoutError(f"{self._server.name} has not answered in time: {self._server.reason.text}") from None
        try:
            return await self._call(arguments(), deadline)
        finally:
            self._turn.release()

    async def _call(self, arguments: list[Any], deadline: float) -> list[Any]:
        limit, failures = self._attempt, 0
        while (left := deadline - time.monotonic()) > 0:
            if self._closed:
                raise Closed
            try:
                wire = self._wire = self._wire or await self._server.connect(deadline)
            except TimeoutError:
                break
            if self._closed or (left := deadline - time.monotonic()) <= 0:
                break
            try:
                answer: list[Any] = await within(min(left, limit), wire.script(self._keys, arguments))
                self._server.answered()
                return answer
            except TROUBLE as error:
                reason = self._server.judge(error)
                await self._leave(wire)
                self._server.note(reason, cut_short=left <= limit and isinstance(error, TIMEOUTS))
                failures += 1
                if reason.remedy or failures > 1:  # it has answered: not yet, for example
                    await asyncio.sleep(min(_PAUSE_S, max(0.0, deadline - time.monotonic())))
            except BaseException:  # whoever asked does not wait any more; the answer is not for the next one
                await self._leave(wire)
                raise
            limit = min(limit * 2, _LONGEST_ATTEMPT_S)
        if self._closed:
            await self.close()
            raise Closed
        raise TimeoutError(f"{self._server.name} has not answered in time: {self._server.reason.text}")

    async def _leave(self, wire: Wire) -> None:
        if self._wire is wire:
            self._wire = None
            self._on_trouble()
        await wire.drop()

    async def close(self) -> None:
        """Nothing is asked any more. May be repeated."""
        self._closed = True
        wire, self._wire = self._wire, None
        if wire is not None:
            await wire.drop()
