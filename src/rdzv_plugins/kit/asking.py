"""``Asking``: a ``ServiceClient`` that is asked again until it answers, or a deadline has come."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from rdzv_plugins.coordination import wrong_answer
from rdzv_plugins.errors import BrokenPlugin, ConnectionLost, EndpointUnreachable, RdzvError
from rdzv_plugins.kit.client import ServiceClient, SessionEnded
from rdzv_plugins.kit.loop import TIMEOUTS, here, looked_at, within
from rdzv_plugins.kit.reasons import NO_ANSWER, SILENT, Reason, Unusable, network_reason
from rdzv_plugins.timing import growing

logger = logging.getLogger(__name__)

T = TypeVar("T")
_Asked = list[asyncio.Future[None]]
MOST_ATTEMPT_S = 3.0
"""An answer that has not come by then counts as lost, the first time; then after twice as long, and so on."""
LONGEST_ATTEMPT_S = 10.0
_LATE_S = 0.3
"""If a time-out is noticed this many seconds late, the answer may have come in time.

It is then this process that is busy, not the service.
"""
_HANG_UP_S = 1.0
_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 1.0


class Closed(Exception):
    """Raised by what was still asked when ``drop`` was called."""


class _Faulty(Exception):
    """A method of the client has raised what no client may. The text says which, and what."""

    def __init__(self, method: str, text: str) -> None:
        super().__init__(text)
        self.method = method


class _Left(Exception):
    """Somebody else has found out that the connection is of no use."""


class Asking:
    """Asks by one client, as coroutines on the loop's thread, any number of them at once.

    Deadlines are in the monotonic clock's seconds. What is asked raises ``TimeoutError`` with the reason when its
    deadline has come; ``ConnectionLost`` when the session has ended; ``EndpointUnreachable`` when nothing else will be
    answered either; and ``Closed`` after ``drop``. It may be cancelled. ``outage``: seconds without an answer to put up
    with.
    """

    def __init__(self, client: ServiceClient, outage: float) -> None:
        self._client, self.outage, self._ttl = client, outage, 0.0
        self.name = f"{client.service} at {client.address}"
        """For messages: "Redis at 10.0.0.1:6379"."""
        self.reason = Reason("no answer yet")
        """What is wrong with the service now."""
        self._noted = False  # the reason, and nothing was answered since
        self._attempt = MOST_ATTEMPT_S
        self._proven = False  # it has been of use: what was right then is expected to become right again
        self._worked: set[str] = set()  # the client's methods that have answered
        self._faulty: dict[str, float] = {}  # those that have raised nonsense since then, and since when
        self._connecting = asyncio.Lock()
        self._connection: asyncio.Future[None] | None = None  # done when it is left
        self._closed = False

    def problem(self, lead: str) -> EndpointUnreachable:
        """Return what is wrong as an error, with what to do about it; ``lead`` says what was tried."""
        return self.reason.error(lead, self._client.service)

    async def ask(
        self,
        name: str,
        method: Callable[..., Awaitable[T]],
        *arguments: Any,
        deadline: float,
        again: bool = True,
        **named: Any,
    ) -> T:
        """What that method of the client returns. ``again``: ask also when it may have been done."""
        return await self._repeat(lambda: self._call(name, method, *arguments, **named), deadline, again=again)

    async def _repeat(
        self, ask: Callable[[], Awaitable[T]], deadline: float, *, limit: float = 0.0, again: bool = True
    ) -> T:
        """The answer, as ``ask``. ``limit``: seconds of the first attempt."""
        limit, excused = limit or self._attempt, False
        pauses = growing(_FIRST_PAUSE_S, _LONGEST_PAUSE_S, random=here().random)
        while (left := deadline - (began := here().monotonic())) > 0:
            if self._closed:
                raise Closed
            asked: _Asked = []
            try:
                answer = await within(min(left, limit), self._once(ask, asked))
                self._noted = False
                return answer
            except SessionEnded:
                raise self._why_over() from None
            except (Closed, RdzvError, NotImplementedError):
                raise
            except _Left:
                pass
            except Unusable as error:  # it has answered
                self._note(error)
                asked = []
            except Exception as error:
                timed_out, took = isinstance(error, TIMEOUTS), here().monotonic() - began
                if timed_out and not excused and took > min(left, limit) + _LATE_S:
                    excused = True
                else:
                    await self._failed(error, asked, cut_short=timed_out and left <= limit)
            if asked and not again:
                raise self.late()
            if here().monotonic() - began > LONGEST_ATTEMPT_S:  # a watch was told for so long: this is another outage
                pauses, excused = growing(_FIRST_PAUSE_S, _LONGEST_PAUSE_S, random=here().random), False
            left = deadline - here().monotonic()
            await asyncio.sleep(max(0.0, min(left, next(pauses))))
            limit = max(limit, min(limit * 2, LONGEST_ATTEMPT_S))
        raise Closed if self._closed else self.late()

    async def _failed(self, error: Exception, asked: _Asked, *, cut_short: bool) -> None:
        """There is no answer to what was asked. ``cut_short``: it was we who had no time left."""
        if not (cut_short and self._noted):
            self._note(error)
        elif not asked:  # it was still connecting, and may know more by now
            self.reason = self._client.reason_of(error) or self.reason
        if asked and not cut_short:
            await self._leave(asked[0])

    async def _call(
        self, name: str, method: Callable[..., Awaitable[T]], *arguments: Any, checked_as: str = "", **named: Any
    ) -> T:
        """What a method of the author's client returns: the only place where one is called."""
        where = f"{type(self._client).__name__}.{name}()"
        try:
            answer = await method(*arguments, **named)
        except (SessionEnded, Unusable, RdzvError, NotImplementedError, OSError, EOFError, *TIMEOUTS):
            raise
        except Exception as error:
            raise _Faulty(name, f"{where} raised {type(error).__name__}: {error}") from error
        if wrong := wrong_answer(checked_as or name, answer, guarded=named.get("guard") is not None):
            raise self._broken(BrokenPlugin(f"{where} of the client for {self.name} {wrong}"))
        self._worked.add(name)
        self._faulty.pop(name, None)
        return answer

    def _broken(self, fault: RdzvError) -> RdzvError:
        """The error to raise because of ``fault``, which ends the session if there is one."""
        return fault

    def _why_over(self) -> ConnectionLost:
        """Why the session is over, if the service says that it is."""
        return ConnectionLost(f"the session with {self.name} has ended before it was open")

    def late(self) -> TimeoutError:
        """What to raise when a deadline has come."""
        return TimeoutError(f"{self.name} has not answered in time: {self.reason.text}")

    async def _once(self, ask: Callable[[], Awaitable[T]], asked: _Asked) -> T:
        """The connection by which it was asked goes into ``asked``."""
        async with self._connecting:
            if self._connection is not None and self._connection.done():  # whoever left it may have been cancelled
                await self._disconnect()
                if self._closed:
                    raise Closed
            if self._connection is None:
                self._client.local_addr = self._client.remote_addr = ""
                try:
                    await self._call("connect", self._client.connect)
                    if self._closed:
                        raise Closed
                except BaseException:
                    await self._disconnect()
                    raise
                self._connection = asyncio.get_running_loop().create_future()
            connection = self._connection
        asked.append(connection)
        answer = asyncio.ensure_future(ask())
        either: set[asyncio.Future[Any]] = {answer, connection}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if answer.done() and not answer.cancelled():
                return answer.result()
            if connection.done():  # which may have cancelled what was asked there
                raise _Left
            raise EOFError
        finally:
            if not answer.done():
                answer.cancel()
                await asyncio.wait({answer})
                looked_at(answer)

    def _note(self, error: Exception) -> None:
        """It is of no use now. Raises ``EndpointUnreachable`` if it never was, and waiting is of no use."""
        logger.debug("%s: %r", self.name, error)
        client, self._noted = self._client, True
        if isinstance(error, Unusable):
            self.reason = error.reason
        elif known := client.reason_of(error):
            self.reason = known
        elif isinstance(error, TIMEOUTS):
            self.reason = SILENT if client.remote_addr else NO_ANSWER
        else:
            nonsense = Reason(
                f"its answer makes no sense here ({error})",
                f"Check host and port: is {client.service} there? If it is, the plug-in is at fault.",
                final=True,
            )
            self.reason = network_reason(error, client.service, client.security) or nonsense
            if self.reason is nonsense:
                self._note_faulty(error)
        if self.reason.final and not self._proven:
            raise self.problem(f"{self.name} cannot be used")

    def _note_faulty(self, error: Exception) -> None:
        """Tell the user once, and put up with it as with an outage; if it has never worked, no longer than ``ttl``."""
        told = f"{self.name}: {self.reason.text}"
        if not self._proven:
            raise BrokenPlugin(f"{told}. It cannot be used", remedy=self.reason.remedy) from error
        name = error.method if isinstance(error, _Faulty) else ""
        if name == "keep_alive":  # the keeper waits for it, and tells: only the service knows if the session lives
            self._faulty.setdefault(name, here().now())
            return
        longest = max(self.outage, self._ttl) if name in self._worked else self._ttl
        if name not in self._faulty:
            logger.warning("%s; this node asks again, for another %g s at most", told, longest)
        if here().now() - self._faulty.setdefault(name, here().now()) > longest:
            fault = BrokenPlugin(f"{told}, for {longest:g} s", remedy=self.reason.remedy)
            fault.__cause__ = error
            raise self._broken(fault)

    async def _leave(self, connection: asyncio.Future[None]) -> None:
        """Use that connection no longer. Others that wait on it might wait in vain, without a sign of it."""
        if not connection.done():
            connection.set_result(None)
        async with self._connecting:
            if connection is self._connection:
                await self._disconnect()

    async def _disconnect(self) -> None:
        with contextlib.suppress(Exception):  # it is broken
            await within(_HANG_UP_S, self._client.disconnect())
        self._connection = None

    async def drop(self) -> None:
        """Release everything. May be repeated."""
        self._closed = True
        with contextlib.suppress(Exception):  # nothing depends on it any more
            await within(_HANG_UP_S, self._client.close())
        if self._connection is not None:
            await self._leave(self._connection)
