"""A thread of ours that dies of an error or gets stuck is never unseen, and work in the background does not pile up."""

from __future__ import annotations

import functools
import logging
import os
import queue
import threading
from contextlib import ExitStack
from typing import Any
from unittest.mock import MagicMock

import pytest
from kits.eventually import eventually

from rdzv_launcher.run.agent import events
from rdzv_launcher.run.agent.fence import Fence
from rdzv_launcher.run.agent.node_workers import NodeWorkers
from rdzv_launcher.run.supervisor.descendants import ProcessTag
from rdzv_plugins import errors
from rdzv_plugins.elastic.coordinator.coordinator import CoordinatorWatchdog
from rdzv_plugins.elastic.endpoint_monitor import EndpointMonitor
from rdzv_plugins.elastic.liveness_probe import ProbePort
from rdzv_plugins.elastic.retry import BackgroundTasks
from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.kvstore.coordination.reactor import Reactor, reactor
from rdzv_plugins.kvstore.coordination.sessions import NativeCoordination
from rdzv_plugins.kvstore.native.server import StoreServer
from rdzv_plugins.runtime import SYSTEM, OwnThread
from rdzv_plugins.shared_numbers import BEAT, ENDED, PAUSE_AT, RUNNING, START, STATE, STILL, UNTIL

PATIENCE_S = 60.0


def fails(*_: Any, **__: Any) -> Any:
    raise ZeroDivisionError("of ours")


def test_error_that_ends_a_thread_is_logged_and_told(caplog: pytest.LogCaptureFixture):
    told: queue.SimpleQueue[tuple[Exception, str]] = queue.SimpleQueue()
    OwnThread(
        target=fails, name="dies", on_error=lambda error: told.put((error, threading.current_thread().name))
    ).start()
    error, on = told.get(timeout=PATIENCE_S)
    assert (type(error), on) == (ZeroDivisionError, "dies")
    [record] = [each for each in caplog.records if each.levelno == logging.ERROR]
    assert "dies" in record.getMessage()
    assert record.exc_info is not None


def test_sessions_end_when_the_thread_that_serves_them_does(monkeypatch: pytest.MonkeyPatch):
    with StoreServer("127.0.0.1", 0, run="r") as server, ExitStack() as closing:
        service = NativeCoordination(Endpoint("127.0.0.1", server.port), "r", name="parallel", who="it")
        closing.callback(service.close)
        lost: queue.SimpleQueue[errors.ConnectionLost] = queue.SimpleQueue()
        service.open_session(60, on_lost=lost.put, timeout=PATIENCE_S)
        own_port = ProbePort(None, SYSTEM)
        assert own_port.listen("node", "127.0.0.1", "127.0.0.1")
        before = reactor()
        monkeypatch.setattr(Reactor, "_pause", lambda self: fails() if self is before else None)
        before.remind(MagicMock(tick=lambda now: None), 0.0)
        assert "ZeroDivisionError" in str(lost.get(timeout=PATIENCE_S))
        before._thread.join(PATIENCE_S)
        assert (own_port.port, before._handlers) == (0, {})
        monkeypatch.undo()
        assert reactor() is not before
        session = service.open_session(60, on_lost=lost.put, timeout=PATIENCE_S)
        assert session.create("k", b"", timeout=PATIENCE_S)[0]


def test_place_is_looked_at_again_after_an_error_of_ours(caplog: pytest.LogCaptureFixture):
    with StoreServer("127.0.0.1", 0, run="r") as server, ExitStack() as closing:
        endpoint = Endpoint("127.0.0.1", server.port)
        service = NativeCoordination(endpoint, "r", name="parallel", who="it")
        closing.callback(service.close)
        look, left = service.look, [1, 2, 3]
        service.look = lambda timeout: fails() if left and left.pop() else look(timeout)  # type: ignore[method-assign]
        looking = EndpointMonitor(endpoint, service, 60.0, lambda: None, [str(endpoint)], SYSTEM)
        closing.callback(looking.close)
        eventually(lambda: looking.status.answers, lambda: "it is seen")
    assert len([each for each in caplog.records if each.exc_info]) == 1, "once, however often"


def test_workers_that_nobody_watches_any_more_are_killed():
    page: dict[int, int] = dict.fromkeys((BEAT, PAUSE_AT, START, STATE, STILL, UNTIL), 0)
    breaks, signals = threading.Event(), queue.SimpleQueue[int]()

    def wait_for_news(timeout: float) -> None:
        breaks.wait(PATIENCE_S)
        fails()

    holding = MagicMock(ttl=60.0, wait_for_news=wait_for_news, until=lambda: float("inf"), ended=lambda: False)
    fence = Fence(holding, page, ProcessTag("mark"), signals.put, lambda: signals.put(0), SYSTEM)  # type: ignore[arg-type]
    fence.starting()
    assert page[STATE] == RUNNING
    breaks.set()
    assert [signals.get(timeout=PATIENCE_S) for _ in range(2)] == [0, 9]
    assert page[STATE] == ENDED
    fence.starting()
    assert [signals.get(timeout=PATIENCE_S) for _ in range(2)] == [0, 9], "the next start is watched, too"


def test_agent_ends_when_it_hears_of_its_workers_no_more(monkeypatch: pytest.MonkeyPatch):
    inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
    monkeypatch.setattr(NodeWorkers, "_waits", fails)
    silent = os.eventfd(0)
    try:
        supervisor = MagicMock(fileno=lambda: silent, events=list)
        supervisor.close.return_value = []
        fence = MagicMock(close=list)
        output, monitor, stacks, starts = (MagicMock() for _ in range(4))
        NodeWorkers(
            MagicMock(run_id="job"), supervisor, MagicMock(), fence, monitor, output, stacks, inbox, starts, SYSTEM
        )
        failed = inbox.get(timeout=PATIENCE_S)
        assert isinstance(failed, events.Failed)
        assert isinstance(failed.error, ZeroDivisionError)
    finally:
        os.close(silent)


def test_background_does_one_task_of_a_kind_at_a_time_and_then_the_newest():
    in_background, done, begun, may_end = BackgroundTasks("r", SYSTEM), [], queue.SimpleQueue(), threading.Event()

    def task(name: str) -> None:
        begun.put(name)
        assert may_end.wait(PATIENCE_S)
        done.append(name)

    for number in range(50):
        in_background("say", functools.partial(task, f"say {number}"))
    in_background("lead", functools.partial(task, "lead"))
    assert {begun.get(timeout=PATIENCE_S) for _ in range(2)} == {"say 0", "lead"}
    may_end.set()
    eventually(lambda: sorted(done) == ["lead", "say 0", "say 49"], lambda: done)
    in_background("say", functools.partial(task, "again"))
    eventually(lambda: "again" in done, lambda: "the next is done")


def test_background_goes_on_after_an_error():
    in_background, done, may_fail = BackgroundTasks("r", SYSTEM), threading.Event(), threading.Event()

    def fail() -> None:
        may_fail.wait(PATIENCE_S)
        fails()

    in_background("say", fail)
    in_background("say", done.set)
    may_fail.set()
    assert done.wait(PATIENCE_S)


def test_a_leader_that_does_not_get_on_is_told_with_where_it_stands() -> None:
    told: queue.SimpleQueue[str] = queue.SimpleQueue()
    watchdog = CoordinatorWatchdog(0.01, told.put, SYSTEM)
    with watchdog.turn():
        assert "test_a_leader_that_does_not_get_on" in told.get(timeout=PATIENCE_S)
    assert watchdog.stuck
