"""What ``CoordinationBackend`` promises of watches: through the interface alone, but for ``service``."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest
from attack_kit import wait_until
from coordination_kit import LONG, Losses, Recorder, Service, keys_of, leave, opened
from wire_client import PATIENCE

from rdzv_plugins.coordination import Event, Session

T = PATIENCE


def assert_in_order(service: Service, events: Sequence[Event]) -> None:
    revisions = [each.revision for each in events]
    assert revisions == sorted(revisions if service.one_revision_per_put else set(revisions))


def test_a_watch_begins_with_what_is_there_and_goes_on_with_every_change(
    service: Service, one: Session, two: Session
) -> None:
    two.put({"m/1": b"a", "other": b"", "m/2": b"b"}, timeout=T)
    recorder = Recorder()
    one.watch("m/", recorder, timeout=T)
    two.put({"m/1": b"c", "elsewhere": b""}, timeout=T)
    two.delete(["m/2"], timeout=T)
    one.put({"m/3": b"own"}, timeout=T)
    assert recorder.take(5) == [("m/1", b"a"), ("m/2", b"b"), ("m/1", b"c"), ("m/2", None), ("m/3", b"own")]
    assert_in_order(service, recorder.events)
    found = {each.key: each.revision for each in one.list("m/", timeout=T)[0]}
    assert found == {each.key: each.revision for each in recorder.events[2:] if each.value is not None}


def test_a_watch_from_a_revision_misses_nothing_and_repeats_nothing(one: Session, two: Session) -> None:
    two.put({"m/old": b"", "m/gone": b"", "m/changed": b"1"}, timeout=T)
    _, revision = one.list("m/", timeout=T)
    two.delete(["m/gone"], timeout=T)
    two.put({"m/changed": b"2", "m/new": b""}, timeout=T)
    recorder = Recorder()
    one.watch("m/", recorder, after=revision, timeout=T)
    two.put({"m/last": b""}, timeout=T)
    assert recorder.take(4) == [("m/gone", None), ("m/changed", b"2"), ("m/new", b""), ("m/last", b"")]


def test_writers_at_once_are_seen_in_one_order_by_all(service: Service) -> None:
    sessions = [opened(service.backend()) for _ in range(4)]
    recorders = [Recorder() for _ in sessions]
    for session, recorder in zip(sessions, recorders, strict=True):
        session.watch("", recorder, timeout=T)

    def write(number: int) -> None:
        for count in range(50):
            sessions[number].put({f"{number}/{count}": b"", "last": b"%d" % number}, timeout=T)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(len(sessions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(T)
    histories = [recorder.until(lambda events: len(events) >= 400) for recorder in recorders]
    assert all(history == histories[0] for history in histories)
    assert_in_order(service, histories[0])
    for number in range(len(sessions)):
        mine = [each.key for each in histories[0] if each.key.startswith(f"{number}/")]
        assert mine == [f"{number}/{count}" for count in range(50)]


def test_calls_come_one_at_a_time(service: Service, two: Session) -> None:
    busy, overlaps, recorder = threading.Lock(), [], Recorder()

    def call(events: Sequence[Event]) -> None:
        if not busy.acquire(blocking=False):
            overlaps.append(events)
            return
        recorder(events)
        busy.release()

    watching = opened(service.backend())
    for _ in range(3):
        watching.watch("", call, timeout=T)
    for count in range(50):
        two.put({"k": b"%d" % count}, timeout=T)
    recorder.until(lambda events: len(events) >= 150)
    assert overlaps == []


def test_no_call_after_cancel(one: Session, two: Session) -> None:
    cancelled, fence = Recorder(), Recorder()
    watch = one.watch("k", cancelled, timeout=T)
    one.watch("", fence, timeout=T)
    two.put({"k1": b""}, timeout=T)
    cancelled.take(1)
    watch.cancel()
    watch.cancel()
    two.put({"k2": b""}, timeout=T)
    fence.take(2)
    assert cancelled.take(1) == [("k1", b"")]
    assert len(cancelled.events) == 1


@pytest.mark.parametrize("how", ["cancel", "close"])
def test_ending_a_watch_waits_for_the_call_that_runs_and_drops_those_behind_it(
    service: Service, one: Session, how: str
) -> None:
    running, go, history = threading.Event(), threading.Event(), []

    def call(events: Sequence[Event]) -> None:
        history.append("begins")
        running.set()
        assert go.wait(T)
        history.append("ends")

    watch = one.watch("", call, timeout=T)
    with service.client("from another process, ours being busy", ttl=LONG) as process:
        assert running.wait(T)
        leave(process)  # its key has gone, too

    def stop() -> None:
        watch.cancel() if how == "cancel" else one.close()
        history.append("stopped")

    thread = threading.Thread(target=stop)
    thread.start()
    thread.join(0.2)  # it should not come to its end before the call has
    go.set()
    thread.join(T)
    assert history == ["begins", "ends", "stopped"]
    recorder = Recorder()
    if how == "cancel":  # a push behind the dropped one
        one.watch("fence", recorder, timeout=T)
        one.put({"fence": b""}, timeout=T)
        recorder.take(1)
    assert history == ["begins", "ends", "stopped"]


def test_a_call_may_cancel_its_watch_and_close_its_session(service: Service, one: Session, two: Session) -> None:
    ended, calls, losses = threading.Event(), [], Losses()
    session = opened(service.backend(), losses=losses)

    def call(events: Sequence[Event]) -> None:
        calls.append(events)
        watch.cancel()
        session.close()
        ended.set()

    watch = session.watch("", call, timeout=T)
    session.put({"mine": b""}, ephemeral=True, timeout=T)
    assert ended.wait(T)
    wait_until(lambda: not keys_of(two), lambda: keys_of(two))
    assert len(calls) == 1
    assert losses.none
