"""This node in trials: a thread with an event loop, which does what the leader asks and lets other nodes measure.

It takes connections from when this node first says that it waits for a round until it has a place in one. Everything is
limited, so that a node that is slow, stands still or talks nonsense costs the others seconds at most; whoever cannot
prove knowledge of the trial's secret gets nothing done.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import socket as sockets
import struct
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, TypeVar

from rdzv_plugins.elastic.trial import flow
from rdzv_plugins.elastic.trial.gloo import Gloo
from rdzv_plugins.elastic.trial.greeting import DIAL, TEST, greet, welcome
from rdzv_plugins.elastic.trial.sockets import Broken, dial, least_latency, reason_of, receive, receive_struct, send
from rdzv_plugins.elastic.trial_keys import Partner, Task, Tried, Way
from rdzv_plugins.kvstore.coordination.reactor import close_in_children
from rdzv_plugins.kvstore.sockets.listening import bind
from rdzv_plugins.options import PortRange
from rdzv_plugins.threads import OwnThread

logger = logging.getLogger(__name__)

T = TypeVar("T")

_DIAL_S = {"measure": 2.0, "confirm": 4.0}
_WELCOME_S = 10.0
_ONE_WAY_S = {"measure": 0.25, "confirm": 0.5}
"""Seconds for which data is sent in each direction: longer when it matters."""
_TURN_S = 5.0
"""Seconds that a node waits for its turn with another that is busy with a third."""
_FLOW_S = 6.0
_GLOO_S = 15.0
_END_S = 2.0
_AT_ONCE = 64
_MOST_CALLERS = 512
_SERVICE_TIMES = 5
_GO = b"g"
_RATE = struct.Struct("!Q")
_PORT = struct.Struct("!H")


class NodeTrials:
    """Measures what the leader asks for, and lets other nodes measure this one.

    Runs a thread between ``open`` and ``close``, which one thread calls; ``hear`` may be called by any.
    """

    def __init__(
        self, ports: PortRange, say: Callable[[Tried], None], ask_service: Callable[[], float], gloo: bool
    ) -> None:
        """``say`` tells the leader, and may block; ``ask_service`` returns the seconds that one answer took."""
        self._ports, self._say, self._ask_service, self._with_gloo = ports, say, ask_service, gloo
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._listener: sockets.socket | None = None
        self._gloo: Gloo | None = None
        self._done: tuple[str, str] = ("", "")
        self._task: Task | None = None
        self._next: asyncio.Future[None]
        self._busy: asyncio.Lock
        self._running: set[asyncio.Task[Any]] = set()

    def open(self, address: str) -> int:
        """Take connections for ``address``; returns the port, which stays the same until ``close``.

        Raises ``AddressInUse`` if there is none.
        """
        if self._listener is None:
            listener = bind(address, self._ports, "the port for measurements before a round")
            listener.setblocking(False)
            close_in_children(listener)
            self._listener, self._loop = listener, asyncio.new_event_loop()
            if self._with_gloo:
                self._gloo = Gloo()
            self._thread = OwnThread(target=self._run, args=(self._loop, listener), name="rdzv-preflight")
            self._thread.start()
        return int(self._listener.getsockname()[1])

    def hear(self, task: Task | None) -> None:
        """Take in what the leader asks for, perhaps not for the first time. Returns at once."""
        loop = self._loop
        if task is not None and loop is not None:
            with contextlib.suppress(RuntimeError):  # it has ended in the meantime
                loop.call_soon_threadsafe(self._take, task)

    def close(self) -> None:
        """End everything. May be repeated."""
        loop, thread, listener, gloo = self._loop, self._thread, self._listener, self._gloo
        self._loop = self._thread = self._listener = self._gloo = None
        if gloo is not None:
            gloo.close()
        if loop is not None and thread is not None:
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(loop.stop)
            thread.join(_END_S)
        if listener is not None:
            listener.close()

    def _run(self, loop: asyncio.AbstractEventLoop, listener: sockets.socket) -> None:
        asyncio.set_event_loop(loop)
        self._task, self._next, self._busy = None, loop.create_future(), asyncio.Lock()
        try:
            self._spawn(loop, self._accept(listener))
            loop.run_forever()
        finally:
            for each in self._running:
                each.cancel()
            loop.run_until_complete(asyncio.gather(*self._running, return_exceptions=True))
            loop.close()

    def _spawn(self, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = loop.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    def _take(self, task: Task) -> None:
        if (task.trial, task.stage) == self._done or self._loop is None:
            return
        self._done = task.trial, task.stage
        told, self._task, self._next = self._next, task, self._loop.create_future()
        told.set_result(None)
        self._spawn(self._loop, self._perform(task))

    async def _perform(self, task: Task) -> None:
        """Do what the task asks for and report the results, as far as time allows."""
        ways: dict[int, Way] = {}
        service, problem = 0.0, ""
        try:
            service = await asyncio.wait_for(self._measure(task, ways), 0.9 * task.within)
        except (TimeoutError, asyncio.TimeoutError):
            logger.debug("not all could be measured in %g s", task.within)
        except Broken as error:
            problem = str(error)
        except Exception as error:
            logger.warning("this node could not measure its way to the others", exc_info=True)
            problem = f"{type(error).__name__}: {error}"
        tried = Tried(task.trial, task.stage, tuple(ways.values()), int(service * 1e6), problem)
        await _in_thread(lambda: self._say(tried))

    async def _measure(self, task: Task, ways: dict[int, Way]) -> float:
        """Fill in ``ways``; returns the seconds that the service takes to answer. Raises ``Broken``."""
        room = asyncio.Semaphore(_AT_ONCE)

        async def dialled(partner: Partner) -> None:
            async with room:
                ways[partner.index] = await self._dial(task, partner)

        await asyncio.gather(*map(dialled, task.dials))
        times = [await _in_thread(self._ask_service) for _ in range(_SERVICE_TIMES if task.store else 0)]
        gloo = self._gloo
        if task.gloo and gloo is not None:
            await _in_thread(gloo.wait_until_ready)
        for partner in task.tests:
            known = ways.get(partner.index, Way(partner.index))
            if not known.problem:
                ways[partner.index] = await self._test(task, partner, known)
        return min(times, default=0.0)

    async def _dial(self, task: Task, partner: Partner) -> Way:
        limit = _DIAL_S[task.stage]

        async def there_and_back() -> float:
            connection = await dial(partner.address, partner.port)
            with contextlib.closing(connection):
                await greet(connection, task, partner.index, DIAL)
                return await flow.ask_back(connection)

        try:
            seconds = await asyncio.wait_for(there_and_back(), limit)
        except (OSError, Broken, asyncio.TimeoutError) as error:
            return Way(partner.index, problem=_why(partner, error, limit))
        return Way(partner.index, latency_us=_us(seconds))

    async def _test(self, task: Task, partner: Partner, known: Way) -> Way:
        """Measure the throughput; returns what is known already if the other node is busy for too long."""
        async with self._busy:
            try:
                connection = await asyncio.wait_for(dial(partner.address, partner.port), _DIAL_S[task.stage])
            except (OSError, asyncio.TimeoutError) as error:
                return Way(partner.index, problem=_why(partner, error, _DIAL_S[task.stage]))
            with contextlib.closing(connection):
                try:
                    await asyncio.wait_for(self._its_turn(connection, task, partner), _TURN_S)
                except (OSError, Broken, asyncio.TimeoutError) as error:
                    logger.debug("%s port %d has no time: %s", partner.address, partner.port, reason_of(error))
                    return known
                try:
                    latency, rate = await asyncio.wait_for(_both_ways(connection, _ONE_WAY_S[task.stage]), _FLOW_S)
                    gloo = await asyncio.wait_for(self._gloo_as_dialler(connection, task, partner), _GLOO_S)
                except (OSError, Broken, asyncio.TimeoutError) as error:
                    return Way(partner.index, problem=_why(partner, error, _FLOW_S))
        latencies = [each for each in (known.latency_us, _us(latency) if latency else 0) if each]
        least = min(latencies, default=0)
        return Way(partner.index, latency_us=least, rate=rate, gloo_rate=gloo)

    async def _its_turn(self, connection: sockets.socket, task: Task, partner: Partner) -> None:
        await greet(connection, task, partner.index, TEST)
        await receive(connection, len(_GO))

    async def _gloo_as_dialler(self, connection: sockets.socket, task: Task, partner: Partner) -> int:
        gloo = self._gloo if task.gloo else None
        await send(connection, b"1" if gloo is not None else b"0")
        (port,) = await receive_struct(connection, _PORT)
        if gloo is None or port == 0:
            return 0
        prefix = _prefix(task, task.me, partner.index)
        return await _in_thread(lambda: gloo.measure(partner.address, port, prefix, 1, _FLOW_S))

    async def _accept(self, listener: sockets.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await loop.sock_accept(listener)
            except OSError as error:  # the process has no room for more: those who wait are not lost
                logger.debug("a connection could not be taken: %s", error)
                await asyncio.sleep(0.1)
                continue
            if len(self._running) >= _MOST_CALLERS:
                connection.close()
                continue
            # a task that is cancelled before it has begun closes nothing itself
            self._spawn(loop, self._serve(connection)).add_done_callback(functools.partial(_close, connection))

    async def _serve(self, connection: sockets.socket) -> None:
        """Serve a node that has dialled this one."""
        with contextlib.closing(connection):
            try:
                connection.setblocking(False)
                connection.setsockopt(sockets.IPPROTO_TCP, sockets.TCP_NODELAY, 1)
                task, index, kind = await asyncio.wait_for(welcome(connection, self._tasks()), _WELCOME_S)
                if kind == DIAL:
                    await asyncio.wait_for(flow.answer(connection), _FLOW_S)
                    return
                async with self._busy:
                    await asyncio.wait_for(_both_ways_answered(connection, _ONE_WAY_S[task.stage]), _FLOW_S)
                    await asyncio.wait_for(self._gloo_as_dialled(connection, task, index), _GLOO_S)
            except (OSError, Broken, asyncio.TimeoutError) as error:
                logger.debug("a connection of a trial has ended: %s", reason_of(error))

    async def _gloo_as_dialled(self, connection: sockets.socket, task: Task, index: int) -> None:
        gloo = self._gloo if task.gloo else None
        wanted = await receive(connection, 1) == b"1"
        if gloo is None or not wanted:
            await send(connection, _PORT.pack(0))
            return
        await _in_thread(gloo.wait_until_ready)
        port = await _in_thread(gloo.serve)
        await send(connection, _PORT.pack(port))
        prefix = _prefix(task, index, task.me)
        await _in_thread(lambda: gloo.measure("127.0.0.1", port, prefix, 0, _FLOW_S))

    async def _tasks(self) -> AsyncIterator[Task]:
        """Yield the task of this node, once it has one, and those that follow."""
        while True:
            following = self._next
            if self._task is not None:
                yield self._task
            await asyncio.shield(following)


def _close(connection: sockets.socket, _: object) -> None:
    connection.close()


async def _both_ways(connection: sockets.socket, seconds: float) -> tuple[float, int]:
    """Latency in seconds, as the kernel saw it meanwhile, and bytes per second in the slower direction.

    Latency is not measured separately: on a way that answers late that would take longer than all the rest.
    """
    there = await flow.pour(connection, seconds)
    await flow.swallow(connection)
    (back,) = await receive_struct(connection, _RATE)
    return least_latency(connection), int(min(there, back))


async def _both_ways_answered(connection: sockets.socket, seconds: float) -> None:
    await send(connection, _GO)
    await flow.swallow(connection)
    rate = await flow.pour(connection, seconds)
    await send(connection, _RATE.pack(int(rate)))


async def _in_thread(call: Callable[[], T]) -> T:
    """What the blocking ``call`` returns or raises, run in a thread that keeps no process from ending."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T] = loop.create_future()

    def tell(result: T | None, error: BaseException | None) -> None:
        if answer.done():
            return
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result: T | None = None
        error: BaseException | None = None
        try:
            result = call()
        except Exception as raised:
            error = raised
        with contextlib.suppress(RuntimeError):  # nobody is waiting any more
            loop.call_soon_threadsafe(tell, result, error)

    OwnThread(target=run, name="rdzv-preflight-call").start()
    return await answer


def _why(partner: Partner, error: BaseException, limit: float) -> str:
    if isinstance(error, Broken):
        return str(error)
    late = isinstance(error, TimeoutError | asyncio.TimeoutError)
    reason = f"no answer within {limit:g} s" if late else reason_of(error)
    return f"{partner.address} port {partner.port}: {reason}"


def _us(seconds: float) -> int:
    return max(1, int(seconds * 1e6))


def _prefix(task: Task, dialler: int, dialled: int) -> str:
    return f"{task.trial}/{task.stage}/{dialler}/{dialled}"
