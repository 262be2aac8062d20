"""An ``AsyncSession`` on a ``ServiceClient``: it repeats what failed, with deadlines, and its watches miss nothing."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from rdzv_plugins.coordination import Event, KeyValue
from rdzv_plugins.errors import BrokenPlugin, Compacted, ConnectionLost, EndpointUnreachable, RdzvError
from rdzv_plugins.kit.client import WAIT_S, ServiceClient, SessionEnded, wrong_answer
from rdzv_plugins.kit.coordination import Coordination
from rdzv_plugins.kit.keeping import PER_TTL, Keeper
from rdzv_plugins.kit.loop import here, looked_at, within
from rdzv_plugins.kit.reasons import NO_ANSWER, SILENT, Reason, Unusable, network_reason
from rdzv_plugins.kit.session import AsyncSession, Closed
from rdzv_plugins.kvstore.coordination.reactor import StoppableCall
from rdzv_plugins.timing import growing

logger = logging.getLogger(__name__)

T = TypeVar("T")
_Asked = list[asyncio.Future[None]]
_TIMEOUTS = (TimeoutError, asyncio.TimeoutError)  # one class from Python 3.11 on

_LEAST_ATTEMPT_S = 0.5
_MOST_ATTEMPT_S = 3.0
"""An answer that has not come by then counts as lost, the first time; then after twice as long, and so on."""
_LONGEST_ATTEMPT_S = 10.0
_LATE_S = 0.3
"""If a time-out is noticed this many seconds late, the answer may have come in time.

It is then this process that is busy, not the service.
"""
_HANG_UP_S = 1.0
_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 1.0


def coordination_backend(name: str, new_client: Callable[[], ServiceClient], *, outage_timeout: float) -> Coordination:
    """Make a ``CoordinationBackend`` called ``name``; each of its sessions has its own client, made by ``new_client``.

    A session goes on for ``outage_timeout`` seconds while the service does not answer (``ttl``, if that is more).
    """
    return Coordination(name, lambda: ClientSession(new_client(), outage_timeout))


async def _first(news: AsyncIterator[T]) -> T:
    async for each in news:
        return each
    raise EOFError


class _Faulty(Exception):
    """A method of the client has raised what no client may. The text says which, and what."""

    def __init__(self, method: str, text: str) -> None:
        super().__init__(text)
        self.method = method


class _Left(Exception):
    """Somebody else has found out that the connection is of no use."""


class _CallBackFailed(RdzvError):
    """A watch's call-back has raised ``cause``."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(repr(cause))
        self.cause = cause


class _Watched:
    """A watch. ``revision``: up to which it was told. ``names``: of the keys then; None if that is not known."""

    def __init__(self, prefix: str, call: StoppableCall, revision: int, names: set[str] | None) -> None:
        self.prefix, self.call, self.revision, self.names = prefix, call, revision, names
        self.stream: AsyncIterator[tuple[Sequence[Event], int]] | None = None
        self.task: asyncio.Task[None] | None = None

    def tell(self, events: Sequence[Event]) -> None:
        if self.names is not None:
            for event in events:
                (self.names.discard if event.value is None else self.names.add)(event.key)
        try:
            if events:
                self.call(events)
        except Exception as error:
            raise _CallBackFailed(error) from error


class ClientSession(AsyncSession):
    """A session by one client. ``outage``: seconds without an answer to put up with."""

    def __init__(self, client: ServiceClient, outage: float) -> None:
        self._client, self._outage = client, outage
        self.name = f"{client.service} at {client.address}"
        self.reason = Reason("no answer yet")
        self._noted = False  # the reason, and nothing was answered since
        self._attempt = _MOST_ATTEMPT_S
        self._keeper: Keeper | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._watches: dict[_Watched, None] = {}
        self._polls = type(client).watch is ServiceClient.watch
        self._connecting, self._writing = asyncio.Lock(), asyncio.Lock()
        self._number = 0
        self._connection: asyncio.Future[None] | None = None  # done when it is left
        self._proven = False  # it has been of use: what was right then is expected to become right again
        self._worked: set[str] = set()  # the client's methods that have answered
        self._faulty: dict[str, float] = {}  # those that have raised nonsense since then, and since when
        self._closed = False

    @property
    def known_until(self) -> float:  # type: ignore[override]
        return self._keeper.known_until if self._keeper is not None else 0.0

    def why(self) -> str:
        return self.reason.text

    def problem(self, lead: str) -> EndpointUnreachable:
        return self.reason.error(lead, self._client.service)

    async def reach(self, deadline: float) -> None:
        async def nothing() -> None: ...

        await self._ask(nothing, deadline)

    async def open(self, ttl: float, deadline: float) -> None:
        self._attempt = min(max(ttl / PER_TTL, _LEAST_ATTEMPT_S), _MOST_ATTEMPT_S)
        asked = here().now()
        self.ttl = await self._ask(lambda: self._call("open", self._client.open, ttl), deadline)
        self.local_addr, self.remote_addr = self._client.local_addr, self._client.remote_addr
        self._proven = True
        service = self._client.service
        self._keeper = Keeper(
            self.name,
            service,
            self._renew,
            self._client.keep_alive_due,
            lambda: self.reason,
            self.ttl,
            self._outage,
            opened=asked,
        )
        self._keeping = asyncio.get_running_loop().create_task(self._keep(self._keeper))

    async def _keep(self, keeper: Keeper) -> None:
        lost = await keeper.run()
        if "keep_alive" in self._faulty:
            lost.__cause__ = BrokenPlugin(str(lost), remedy=lost.remedy)
        self.lose(lost)

    async def _renew(self, deadline: float) -> None:
        try:
            await self._ask(lambda: self._call("keep_alive", self._client.keep_alive), deadline)
        except (ConnectionLost, Closed):
            raise
        except (RdzvError, NotImplementedError) as error:  # the author's own; the service may do it later
            self.reason = Reason(str(error) or repr(error), error.remedy if isinstance(error, RdzvError) else "")
            await asyncio.sleep(max(0.0, deadline - here().monotonic()))
            raise self._late() from error

    async def ask(self, name: str, method: Callable[..., Awaitable[T]], *arguments: Any, deadline: float) -> T:
        """What a method of the client returns that only its author knows. No session is needed for it."""
        return await self._ask(lambda: self._call(name, method, *arguments), deadline)

    async def create(self, key: str, value: bytes, deadline: float, *, ephemeral: bool) -> tuple[bool, KeyValue]:
        return await self._write(
            lambda n: self._call("create", self._client.create, n, key, value, ephemeral=ephemeral), deadline
        )

    async def put(
        self, items: Mapping[str, bytes], guard: KeyValue | None, deadline: float, *, ephemeral: bool
    ) -> int | None:
        return await self._write(
            lambda n: self._call("put", self._client.put, n, items, ephemeral=ephemeral, guard=guard), deadline
        )

    async def delete(self, keys: Sequence[str], guard: KeyValue | None, deadline: float) -> bool:
        return await self._write(lambda n: self._call("delete", self._client.delete, n, keys, guard=guard), deadline)

    async def list(self, prefix: str, deadline: float) -> tuple[Sequence[KeyValue], int]:
        return await self._ask(lambda: self._call("list", self._client.list, prefix), deadline)

    async def watch(self, prefix: str, call: StoppableCall, after: int, deadline: float) -> _Watched:
        events: Sequence[Event] = ()
        if not after:
            held, revision = await self.list(prefix, deadline)
            watched = _Watched(prefix, call, revision, set())
            events = [Event(each.key, each.value, each.revision) for each in held]
        else:
            names = await self._ask(lambda: self._call("names_at", self._client.names_at, prefix, after), deadline)
            watched = _Watched(prefix, call, after, None if names is None else set(names))
            events, watched.revision = await self._ask(lambda: self._next(watched), deadline)
        watched.task = asyncio.get_running_loop().create_task(self._follow(watched, events))
        self._watches[watched] = None
        return watched

    async def end_session(self, key: str, deadline: float) -> bool:
        return await self._ask(lambda: self._call("end_session", self._client.end_session, key), deadline)

    def unwatch(self, watched: _Watched) -> None:
        self._watches.pop(watched, None)
        if watched.task is not None:
            watched.task.cancel()

    async def end(self, deadline: float) -> None:
        self._stop()
        await self._ask(lambda: self._call("end", self._client.end), deadline)

    async def drop(self) -> None:
        self._closed = True
        self._stop()
        with contextlib.suppress(Exception):  # nothing depends on it any more
            await within(_HANG_UP_S, self._client.close())
        if self._connection is not None:
            await self._leave(self._connection)

    def _stop(self) -> None:
        if self._keeping is not None:
            self._keeping.cancel()
        for watched in list(self._watches):
            self.unwatch(watched)

    async def _follow(self, watched: _Watched, events: Sequence[Event]) -> None:
        """Tell ``events``, which is all up to its revision, and then what comes."""
        limit = WAIT_S + _LONGEST_ATTEMPT_S if self._polls else math.inf
        try:
            watched.tell(events)
            while True:
                try:
                    await self._ask(lambda: self._serve(watched), math.inf, limit=limit)
                except Compacted:
                    if watched.names is None:
                        raise
                    events, watched.revision = await self._compared(watched, watched.names)
                    watched.tell(events)
        except Closed:
            pass
        except ConnectionLost as error:
            self.lose(error)
        except NotImplementedError as error:
            self._broken(BrokenPlugin(f"changes() of the client for {self.name} is not written yet: {error}"))
        except _CallBackFailed as error:
            logger.error("a watch's call-back has failed", exc_info=error.cause)
            self.lose(
                ConnectionLost(f"the session with {self.name} ends: it may have missed an event: {error.cause!r}")
            )
        except RdzvError as error:
            self._broken(error)

    async def _serve(self, watched: _Watched) -> None:
        """Tell what comes: all that is pushed, or what one poll has found."""
        while True:
            events, watched.revision = await self._next(watched)
            watched.tell(events)
            if self._polls:
                return
            self._noted = False

    async def _next(self, watched: _Watched) -> tuple[Sequence[Event], int]:
        """What comes next by its stream, which begins anew when it has failed."""
        if watched.stream is None:
            watched.stream = self._client.watch(watched.prefix, watched.revision)
        name = "changes" if self._polls else "watch"
        try:
            return await self._call(name, _first, watched.stream, checked_as="changes")
        except BaseException:
            watched.stream = None
            raise

    async def _compared(self, watched: _Watched, known: set[str]) -> tuple[Sequence[Event], int]:
        """What has changed since, where the service has forgotten it: as far as what exists now shows it."""
        held, revision = await self.list(watched.prefix, math.inf)
        gone = sorted(known - {each.key for each in held})
        events = [Event(key, None, watched.revision + 1) for key in gone]  # then, or later
        events += [Event(each.key, each.value, each.revision) for each in held if each.revision > watched.revision]
        return events, revision

    async def _write(self, ask: Callable[[int], Awaitable[T]], deadline: float) -> T:
        """One after the other: of numbers, the service knows the last one."""
        try:
            await within(deadline - here().monotonic(), self._writing.acquire(), undo=self._writing.release)
        except TimeoutError:
            raise self._late() from None
        try:
            self._number += 1
            number = self._number
            return await self._ask(lambda: ask(number), deadline, again=self._client.repeats_writes)
        finally:
            self._writing.release()

    async def _ask(
        self, ask: Callable[[], Awaitable[T]], deadline: float, *, limit: float = 0.0, again: bool = True
    ) -> T:
        """The answer. ``limit``: seconds of the first attempt. ``again``: also when it may have been done."""
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
                raise self._over() from None
            except (Closed, RdzvError, NotImplementedError):
                raise
            except _Left:
                pass
            except Unusable as error:  # it has answered
                self._note(error)
                asked = []
            except Exception as error:
                timed_out, took = isinstance(error, _TIMEOUTS), here().monotonic() - began
                if timed_out and not excused and took > min(left, limit) + _LATE_S:
                    excused = True
                else:
                    await self._failed(error, asked, cut_short=timed_out and left <= limit)
            if asked and not again:
                raise self._late()
            if here().monotonic() - began > _LONGEST_ATTEMPT_S:  # a watch was told for so long: this is another outage
                pauses, excused = growing(_FIRST_PAUSE_S, _LONGEST_PAUSE_S, random=here().random), False
            left = deadline - here().monotonic()
            await asyncio.sleep(max(0.0, min(left, next(pauses))))
            limit = max(limit, min(limit * 2, _LONGEST_ATTEMPT_S))
        raise Closed if self._closed else self._late()

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
        except (SessionEnded, Unusable, RdzvError, NotImplementedError, OSError, EOFError, *_TIMEOUTS):
            raise
        except Exception as error:
            raise _Faulty(name, f"{where} raised {type(error).__name__}: {error}") from error
        if wrong := wrong_answer(checked_as or name, answer, guarded=named.get("guard") is not None):
            raise self._broken(BrokenPlugin(f"{where} of the client for {self.name} {wrong}"))
        self._worked.add(name)
        self._faulty.pop(name, None)
        return answer

    def _broken(self, fault: RdzvError) -> RdzvError:
        """End the session, if there is one, because of ``fault``; returns the error to raise."""
        if self._keeper is None:
            return fault
        lost = ConnectionLost(str(fault), remedy=fault.remedy)
        lost.__cause__ = fault
        self.lose(lost)
        return lost

    async def _once(self, ask: Callable[[], Awaitable[T]], asked: _Asked) -> T:
        """The connection by which it was asked goes into ``asked``."""
        async with self._connecting:
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
        elif isinstance(error, _TIMEOUTS):
            self.reason = SILENT if client.remote_addr else NO_ANSWER
        else:
            nonsense = Reason(
                f"it answers what makes no sense here ({error})",
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
        longest = max(self._outage, self.ttl) if name in self._worked else self.ttl
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
        if connection is self._connection:
            await self._disconnect()

    async def _disconnect(self) -> None:
        self._connection = None
        with contextlib.suppress(Exception):  # it is broken
            await within(_HANG_UP_S, self._client.disconnect())

    def _over(self) -> ConnectionLost:
        if self._keeper is None:
            return ConnectionLost(f"the session with {self.name} has ended before it was open")
        return self._keeper.over()

    def _late(self) -> TimeoutError:
        return TimeoutError(f"{self.name} has not answered in time: {self.reason.text}")
