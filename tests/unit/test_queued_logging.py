"""A log call returns at once, whatever the user's handlers do; and nothing else is different for them."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rdzv_plugins import background_queue
from rdzv_plugins.background_queue import BackgroundQueue, queue_logging, unqueue_logging

LOGGER = logging.getLogger("rdzv_plugins.elastic.handler")
TOP = logging.getLogger("rdzv_plugins")
PATIENCE_S = 60


class Slow(logging.Handler):
    """Blocks at each record until ``go`` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.go.wait(PATIENCE_S)
        self.texts.append(self.format(record))


@pytest.fixture(params=["rdzv_plugins"])
def slow(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Slow]:
    """Given by the user to that logger, before log calls are queued or, to one above, later."""
    monkeypatch.setattr(background_queue, "_FLUSH_S", PATIENCE_S)
    handler, where = Slow(), logging.getLogger(request.param)
    if not request.param:
        queue_logging()
    where.addHandler(handler)
    queue_logging()
    yield handler
    handler.go.set()
    unqueue_logging()
    where.removeHandler(handler)


@pytest.mark.parametrize("slow", ["", "rdzv_plugins"], indirect=True)
def test_nobody_waits_for_a_handler_and_it_gets_all_in_order(slow: Slow) -> None:
    changing = ["as it was"]
    for number in range(100):
        LOGGER.warning("message %d: %s", number, changing)  # a log call that waits is one that never ends
    changing[0] = "as it became"
    slow.go.set()
    unqueue_logging()
    assert slow.texts == [f"message {number}: ['as it was']" for number in range(100)]


def test_what_is_too_much_is_dropped_and_counted(slow: Slow, monkeypatch: pytest.MonkeyPatch) -> None:
    unqueue_logging()
    monkeypatch.setattr(background_queue, "_MOST", 10)
    queue_logging()
    for number in range(25):
        LOGGER.warning("message %d", number)
    slow.go.set()
    unqueue_logging()
    [told] = [text for text in slow.texts if "dropped" in text]
    assert told.startswith("15 ")
    assert [text for text in slow.texts if text != told] == [f"message {number}" for number in range(10)]


def test_traceback_and_level_reach_the_handler_and_all_is_as_before_after_it(slow: Slow) -> None:
    unqueue_logging()
    before = (list(TOP.handlers), TOP.propagate)
    queue_logging()
    assert (TOP.handlers, TOP.propagate) != before
    slow.setLevel(logging.ERROR)
    slow.go.set()
    LOGGER.error("it went wrong", exc_info=ValueError("the cause"))
    LOGGER.warning("below the handler's level")
    unqueue_logging()
    unqueue_logging()
    assert (TOP.handlers, TOP.propagate) == before
    (text,) = slow.texts
    assert text.startswith("it went wrong\n")
    assert text.endswith("ValueError: the cause")


def queue_to(deliver: Callable[[Any], object]) -> BackgroundQueue[Any]:
    return BackgroundQueue("queue", deliver, lambda count: None, limit=10)


def test_forked_child_delivers_at_once() -> None:
    reading, writing = os.pipe()
    go = threading.Event()

    def deliver(item: bytes) -> None:
        if item == b"parent's":
            go.wait(PATIENCE_S)
        os.write(writing, item)

    queue = queue_to(deliver)
    queue.put(b"parent's")
    child = os.fork()
    if child == 0:
        queue.put(b"child's ")
        os._exit(0 if queue.flush(0) else 1)
    assert os.waitpid(child, 0)[1] == 0
    go.set()
    assert queue.flush(PATIENCE_S)
    assert os.read(reading, 100) == b"child's parent's"
    os.close(reading)
    os.close(writing)


def test_all_who_wait_for_room_are_told() -> None:
    """The stderr of workers and --tee share one queue: who asks, and even finds room, must not make the other wait."""
    go, rooms, told = threading.Event(), [threading.Event(), threading.Event()], []
    queue = queue_to(lambda item: go.wait(PATIENCE_S))
    assert all(queue.put("x") for _ in range(10))
    assert not queue.put("one too many")
    for room in [*rooms, rooms[0]]:
        assert not queue.has_room(room.set)
    assert not queue.has_room(lambda: told.append(1 // 0))
    go.set()
    assert [room.wait(PATIENCE_S) for room in rooms] == [True, True]
    assert queue.flush(PATIENCE_S)
    assert queue.has_room(rooms[0].set)


def test_who_rests_has_no_thread_until_there_is_more() -> None:
    go, delivered, threads = threading.Event(), [], set()

    def deliver(item: str) -> None:
        go.wait(PATIENCE_S)
        threads.add(threading.current_thread())
        delivered.append(item)

    queue = queue_to(deliver)
    queue.rest(PATIENCE_S)  # it has none yet
    assert queue.put("one")
    queue.rest(0.01)  # it takes longer: the thread stays
    assert queue.put("two")
    go.set()
    queue.rest(PATIENCE_S)
    assert delivered == ["one", "two"]
    (first,) = threads
    assert not first.is_alive()
    assert queue.put("three")
    assert queue.flush(PATIENCE_S)
    assert delivered == ["one", "two", "three"]
    assert threads - {first}
