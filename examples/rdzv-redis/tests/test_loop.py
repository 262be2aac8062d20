"""The thread on which everything is done, and what is done there."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading

import pytest
from kit import T, backend_at, opened

from rdzv_redis.conformance import RedisHarness
from rdzv_redis.loop import hold, let_go, within


def test_a_cancellation_that_comes_when_the_work_is_done_is_not_lost() -> None:
    undone: list[str] = []

    async def come_together() -> None:
        work: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        task = asyncio.ensure_future(within(T, work, undo=lambda: undone.append("undone")))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        work.set_result(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(come_together())
    assert undone == ["undone"]


def test_what_takes_too_long_has_ended_when_that_is_said() -> None:
    ended: list[str] = []

    async def work() -> None:
        try:
            await asyncio.sleep(T)
        finally:
            ended.append("ended")

    async def take_too_long() -> None:
        with pytest.raises(TimeoutError):
            await within(0.01, work())

    asyncio.run(take_too_long())
    assert ended == ["ended"]


def test_the_thread_is_there_while_somebody_holds_it(harness: RedisHarness) -> None:
    assert harness.service is not None
    before = loops()
    first, second = hold(), hold()
    assert first is second
    let_go(first)
    assert len(loops() - before) == 1
    let_go(second)
    assert loops() <= before
    port = int(harness.endpoint(None).rpartition(":")[2])  # type: ignore[arg-type]
    with backend_at(port) as backend:
        sessions = [opened(backend) for _ in range(3)]
        assert len(loops() - before) == 1, "one for all sessions"
        for session in sessions:
            session.close()
        assert loops() <= before


def loops() -> set[threading.Thread]:
    """Other threads of this process may come and go."""
    return {each for each in threading.enumerate() if each.name == "rdzv-redis"}


_ENDS = """
import socket, threading
from rdzv_plugins.errors import EndpointUnreachable
from rdzv_redis.coordination import RedisCoordination
from rdzv_redis.target import Target

def look_up(*_, **__):
    threading.Event().wait()

socket.getaddrinfo = look_up
try:
    RedisCoordination(Target("slow.example", 6379), "run").open_session(1, on_lost=print, timeout=0.2)
except EndpointUnreachable as error:
    print(error)
"""


def test_a_name_server_that_does_not_answer_does_not_hold_up_the_end_of_the_process() -> None:
    done = subprocess.run([sys.executable, "-c", _ENDS], capture_output=True, text=True, timeout=T)
    assert done.returncode == 0, done.stderr
    assert "Redis at slow.example:6379 could not be reached within 0.2 s" in done.stdout
