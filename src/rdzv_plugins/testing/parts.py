"""What the tests have in common: call-backs that remember, short forms, waits that end, a count of what is held."""

from __future__ import annotations

import gc
import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from typing import Any, TypeVar

from rdzv_plugins.coordination import CoordinationBackend, Event, Session
from rdzv_plugins.errors import ConnectionLost, RdzvError
from rdzv_plugins.system.processes import children_now, read_stat
from rdzv_plugins.testing.harness import Service
from rdzv_plugins.testing.processes import send

T = TypeVar("T")

PATIENCE = float(os.environ.get("RDZV_CONFORMANCE_PATIENCE", "60"))
"""Seconds within which everything has to happen, even on a busy machine; set by ``RDZV_CONFORMANCE_PATIENCE``."""
SLACK = max(10.0, PATIENCE / 6)
"""Seconds by which a busy machine may exceed a measured time."""
LONG = 60.0
"""Time to live, in seconds, of sessions whose end no test waits for."""
_PAUSE_S, _STILL_S = 0.02, 0.3


class Losses:
    """An ``on_lost`` that remembers. Thread-safe."""

    def __init__(self) -> None:
        self._errors: queue.Queue[ConnectionLost] = queue.Queue()

    def __call__(self, error: ConnectionLost) -> None:
        self._errors.put(error)

    def next(self) -> ConnectionLost:
        """The next reported error, which is waited for. Raises ``AssertionError`` if none comes."""
        try:
            return self._errors.get(timeout=PATIENCE)
        except queue.Empty:
            raise AssertionError(f"on_lost was not called within {PATIENCE:g} s") from None

    @property
    def none(self) -> bool:
        return self._errors.empty()


class Recorder:
    """An ``on_events`` that remembers the events. Thread-safe."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._changed = threading.Condition()

    def __call__(self, events: Sequence[Event]) -> None:
        with self._changed:
            self.events.extend(events)
            self._changed.notify_all()

    def until(self, condition: Callable[[list[Event]], object], patience: float = PATIENCE) -> list[Event]:
        """The events, once ``condition`` holds for them. Raises ``AssertionError`` if it never does."""
        with self._changed:
            if not self._changed.wait_for(lambda: condition(self.events), patience):
                told = [(each.key, each.value) for each in self.events[-20:]]
                raise AssertionError(
                    f"the watch has not told all within {patience:g} s: {len(self.events)} events, the last: {told}"
                )
            return list(self.events)

    def take(self, count: int, patience: float = PATIENCE) -> list[tuple[str, bytes | None]]:
        """Keys and values of the first ``count`` events, once there are that many."""
        events = self.until(lambda events: len(events) >= count, patience)
        return [(each.key, each.value) for each in events][:count]


def end_of(ttl: float) -> float:
    """Seconds within which others are told that a session with that granted time to live is over.

    A service may double it (Consul does), and may look for ended sessions only now and then.
    """
    return 3 * ttl + SLACK


def opened(backend: CoordinationBackend, ttl: float = LONG, losses: Losses | None = None) -> Session:
    """A new session."""
    return backend.open_session(ttl, on_lost=losses or Losses(), timeout=PATIENCE)


def calls(session: Session, timeout: float, key: str = "asked") -> dict[str, Callable[[], object]]:
    """One request of each kind, by its name."""
    return {
        "put()": lambda: session.put({key: b""}, timeout=timeout),
        "create()": lambda: session.create(key, b"", timeout=timeout),
        "delete()": lambda: session.delete(["missing"], timeout=timeout),
        "list()": lambda: session.list("", timeout=timeout),
    }


def keys_of(session: Session, prefix: str = "") -> dict[str, bytes]:
    """The keys that are there now, and their values."""
    return {each.key: each.value for each in session.list(prefix, timeout=PATIENCE)[0]}


def like(run_id: str) -> list[str]:
    """Ids of other runs that a backend might confuse with that one if it makes paths, patterns or prefixes of them.

    One is a prefix of it, and it is a prefix of some.
    """
    text = "{0}-another", "{0}/b", "./{0}", "../{0}", "{0}:", "{0}*", "ä b {0}"
    return [run_id[:-1], *(each.format(run_id) for each in text)]


def wait_until(condition: Callable[[], Any], what: str | Callable[[], object], patience: float = PATIENCE) -> Any:
    """Poll for a state of the outside world that nobody can notify us of; returns what ``condition`` returned.

    Fails with ``what`` after ``patience`` seconds.
    """
    deadline = time.monotonic() + patience
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {patience:g} s: {what if isinstance(what, str) else what()}")
        time.sleep(_PAUSE_S)
    return value


def census() -> dict[str, int]:
    """How many threads, by the kernel's count, descriptors and child processes this process has."""
    gc.collect()  # releases what waits for that
    return {
        "threads": len(os.listdir("/proc/self/task")),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "child processes": len(children_now()(os.getpid())),
    }


def at_rest(figures: Callable[[], T]) -> T:
    """The ``figures`` once they stay the same for a while; the last ones if they never do.

    What was closed is gone a moment later: the other side has to notice, a thread has to end.
    """
    now = figures()
    since = begin = time.monotonic()
    while time.monotonic() - since < _STILL_S and time.monotonic() - begin < PATIENCE / 3:
        time.sleep(0.05)
        last, now = now, figures()
        if now != last:
            since = time.monotonic()
    return now


def wait_gone(session: Session, key: str) -> None:
    """Wait until ``key`` is gone."""
    wait_until(lambda: key not in keys_of(session, key), f"key {key!r} is still there")


def bounded(what: str, ask: Callable[[], T], timeout: float | None = None) -> T:
    """Return or raise what ``ask`` does; fail if it does neither in time, instead of hanging.

    ``timeout`` is the one that it was given. Without one, and at the latest, it has to end within ``PATIENCE``.
    """
    allowed = PATIENCE if timeout is None else min(PATIENCE, timeout + SLACK)
    answer: Future[T] = Future()

    def run() -> None:
        try:
            answer.set_result(ask())
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=run, name="conformance-call", daemon=True).start()
    if not wait([answer], allowed).done:
        given = "" if timeout is None else f", with a time-out of {timeout:g} s"
        raise AssertionError(f"{what} has not returned within {allowed:g} s{given}")
    return answer.result()


def together(count: int, act: Callable[[int], object]) -> None:
    """Call ``act(0)`` to ``act(count - 1)`` at once, each on a thread of its own; raises the first error of any."""
    errors: list[BaseException] = []
    beginning = threading.Barrier(count)

    def run(number: int) -> None:
        try:
            beginning.wait(PATIENCE)
            act(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    if errors:
        raise errors[0]
    alive = sum(thread.is_alive() for thread in threads)
    assert not alive, f"{alive} of {count} threads did not end within {PATIENCE:g} s"


def assert_says(error: BaseException, *words: str) -> None:
    """Assert that an error has a text, containing ``words``, and if it is one of ours, says what to do next."""
    assert str(error), f"a {type(error).__name__} has no message"
    for word in words:
        assert word in str(error), f"{type(error).__name__} does not mention {word!r}: {error}"
    assert not isinstance(error, RdzvError) or error.remedy, f"no remedy: {type(error).__name__}: {error}"


def stop(pid: int) -> None:
    """Send SIGSTOP, and wait until each thread has stopped: the signal may return before that."""
    os.kill(pid, signal.SIGSTOP)

    def states() -> list[str]:
        stats = [read_stat(pid, int(thread)) for thread in os.listdir(f"/proc/{pid}/task")]
        return [stat.state for stat in stats if stat is not None]  # otherwise it has ended

    wait_until(lambda: set(states()) <= {"T"}, f"process {pid} did not stop")


@contextmanager
def frozen(service: Service) -> Iterator[None]:
    """Stop all its processes with SIGSTOP, and let them continue at the end."""
    stopped: list[int] = []
    assert service.pids, "the harness's service reports no processes"
    try:
        while new := [pid for pid in service.pids if pid not in stopped]:  # one may just have started another
            for pid in new:
                stopped.append(pid)
                stop(pid)
        yield
    finally:
        for pid in stopped:
            send(pid, signal.SIGCONT)
