"""The thread on which everything is done, and what is done there."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading

import pytest
from kits.kit.kit_parts import T, backend_at

from rdzv_plugins.kit import within
from rdzv_plugins.kit.loop import NAME, acquire_loop, here, release_loop
from rdzv_plugins.kvstore.coordination.reactor import reactor
from rdzv_plugins.runtime import SYSTEM, Runtime
from rdzv_plugins.testing import ServerProcess
from rdzv_plugins.testing.parts import opened


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


def test_the_thread_is_there_while_somebody_holds_it(server: ServerProcess) -> None:
    before = loops()  # etcd's stays, if this process has had any
    first, second = acquire_loop(), acquire_loop()
    assert first is second
    release_loop(first)
    assert len(loops()) == 1
    release_loop(second)
    assert loops() <= before
    with backend_at(server.port) as backend:
        sessions = [opened(backend) for _ in range(3)]
        assert len(loops()) == 1, "one for all sessions"
        for session in sessions:
            session.close()
        assert loops() <= before


def loops() -> set[threading.Thread]:
    """Other threads of this process may come and go."""
    return {each for each in threading.enumerate() if each.name == NAME}


_ENDS = """
import threading
from rdzv_http.client import HttpClient
from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.errors import EndpointUnreachable
from rdzv_plugins.kit import Security, coordination_backend
from rdzv_plugins.runtime import Runtime

def look_up(*_, **__):
    threading.Event().wait()

Runtime.getaddrinfo = staticmethod(look_up)
client = lambda: HttpClient(Endpoint("slow.example", 8700), "run", Security())
try:
    coordination_backend("http", client, outage_timeout=1).open_session(1, on_lost=print, timeout=0.2)
except EndpointUnreachable as error:
    print(error)
"""


def test_a_name_server_that_does_not_answer_does_not_hold_up_the_end_of_the_process() -> None:
    done = subprocess.run([sys.executable, "-c", _ENDS], capture_output=True, text=True, timeout=T)
    assert done.returncode == 0, done.stderr
    assert "rdzv-http at slow.example:8700 could not be reached within 0.2 s" in done.stdout


def test_a_runtime_has_one_reactor_of_its_own() -> None:
    one = Runtime()
    assert reactor(one) is reactor(one)
    assert reactor(one) is not reactor(SYSTEM)


def test_a_coroutine_finds_the_runtime_of_its_loop() -> None:
    async def asked() -> Runtime:
        return here()

    one, other = Runtime(), Runtime()
    loops = [acquire_loop(one), acquire_loop(other), acquire_loop(one)]
    assert loops[0] is loops[2]
    assert [loop.run(asked(), T) for loop in loops] == [one, other, one]
    for loop in loops:
        release_loop(loop)
    assert here() is SYSTEM
