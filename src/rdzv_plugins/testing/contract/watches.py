"""What a ``CoordinationBackend`` promises about watches: part of the theme ``backend``."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from rdzv_plugins.coordination import Event
from rdzv_plugins.errors import Compacted
from rdzv_plugins.testing.contract.job import ContractJob, JobTheme, of_kind
from rdzv_plugins.testing.contract.parts import (
    LONG,
    PATIENCE,
    Losses,
    Recorder,
    assert_says,
    keys_of,
    opened,
    together,
    wait_gone,
)

T = PATIENCE
_BUSY_S = 0.005
_BEGUN_S = 1.0
"""Seconds within which a call has got as far as it can, even on a busy machine."""


def assert_in_order(events: Sequence[Event]) -> None:
    """Assert that events are in order; items of one put may share a revision."""
    revisions = [each.revision for each in events]
    assert revisions == sorted(revisions)


class CoordinationWatches(JobTheme):
    """Promises about watches, tried through the interface alone."""

    @of_kind("coordination")
    def test_a_watch_begins_with_what_is_there_and_goes_on_with_every_change(self, job: ContractJob) -> None:
        # These include its own changes.
        one, two, recorder = job.session(), job.session(), Recorder()
        two.put({"m/1": b"a", "other": b""}, timeout=T)
        two.put({"m/2": b"b"}, timeout=T)
        one.watch("m/", recorder, timeout=T)
        two.put({"m/1": b"c", "elsewhere": b""}, timeout=T)
        two.delete(["m/2"], timeout=T)
        one.put({"m/3": b"own"}, timeout=T)
        assert recorder.take(5) == [("m/1", b"a"), ("m/2", b"b"), ("m/1", b"c"), ("m/2", None), ("m/3", b"own")]
        assert_in_order(recorder.events)
        found = {each.key: each.revision for each in one.list("m/", timeout=T)[0]}
        assert found == {each.key: each.revision for each in recorder.events[2:] if each.value is not None}

    @of_kind("coordination")
    def test_a_watch_from_a_revision_misses_nothing_and_repeats_nothing(self, job: ContractJob) -> None:
        # It begins after the revision of a list, which has told what was before.
        one, two, recorder = job.session(), job.session(), Recorder()
        two.put({"m/old": b"", "m/gone": b"", "m/changed": b"1"}, timeout=T)
        _, revision = one.list("m/", timeout=T)
        two.delete(["m/gone"], timeout=T)
        two.put({"m/changed": b"2", "m/new": b""}, timeout=T)
        one.watch("m/", recorder, after=revision, timeout=T)
        two.put({"m/last": b""}, timeout=T)
        assert recorder.take(4) == [("m/gone", None), ("m/changed", b"2"), ("m/new", b""), ("m/last", b"")]

    @of_kind("coordination")
    def test_a_watch_from_long_ago_tells_all_or_says_that_it_is_forgotten(self, job: ContractJob) -> None:
        # Changes that others have since overtaken may be left out; the last one of each key never is.
        one, recorder = job.session(), Recorder()
        one.create("begin", b"", timeout=T)
        _, revision = one.list("", timeout=T)
        many = {f"k/{number}": b"" for number in range(500)}
        for _ in range(6):
            one.put(many, timeout=T)
        one.delete(many, timeout=T)
        one.put({"k/last": b""}, timeout=T)
        try:
            one.watch("k/", recorder, after=revision, timeout=T)
        except Compacted as error:
            assert_says(error)
        else:
            events = recorder.until(lambda events: events and events[-1].key == "k/last")
            assert_in_order(events)
            assert {each.key: each.value for each in events} == dict.fromkeys(many) | {"k/last": b""}
        fresh = Recorder()
        one.watch("k/", fresh, after=one.list("k/", timeout=T)[1], timeout=T)
        one.put({"k/new": b""}, timeout=T)
        assert fresh.take(1) == [("k/new", b"")]

    @of_kind("coordination")
    def test_writers_at_once_are_seen_in_one_order_by_all(self, job: ContractJob) -> None:
        # Each writer's changes come in the order in which it made them.
        sessions = [job.session() for _ in range(4)]
        recorders = [Recorder() for _ in sessions]
        for session, recorder in zip(sessions, recorders, strict=True):
            session.watch("", recorder, timeout=T)

        def write(number: int) -> None:
            for count in range(25):
                sessions[number].put({f"{number}/{count}": b"", "last": b"%d" % number}, timeout=T)

        together([lambda number=number: write(number) for number in range(4)])  # type: ignore[misc]
        histories = [recorder.until(lambda events: len(events) >= 200) for recorder in recorders]
        assert all(history == histories[0] for history in histories)
        assert_in_order(histories[0])
        for number in range(len(sessions)):
            mine = [each.key for each in histories[0] if each.key.startswith(f"{number}/")]
            assert mine == [f"{number}/{count}" for count in range(25)]

    @of_kind("coordination")
    def test_calls_of_a_watch_come_one_at_a_time(self, job: ContractJob) -> None:
        # This holds however fast the changes come, and even if a call takes longer than it should.
        two, watching, overlaps, recorders = job.session(), job.session(), [], [Recorder(), Recorder()]

        def watch(recorder: Recorder, busy: threading.Lock) -> None:
            def call(events: Sequence[Event]) -> None:
                if not busy.acquire(blocking=False):
                    overlaps.append(events)
                    return
                nothing.wait(_BUSY_S)
                recorder(events)
                busy.release()

            watching.watch("", call, timeout=T)

        nothing = threading.Event()
        for recorder in recorders:
            watch(recorder, threading.Lock())
        for count in range(20):
            two.put({"k": b"%d" % count}, timeout=T)
        two.put({"last": b""}, timeout=T)
        for recorder in recorders:
            events = recorder.until(lambda events: overlaps or (events[-1:] and events[-1].key == "last"))
            assert overlaps == []
            assert [each.value for each in events[:-1]] == [b"%d" % count for count in range(20)]

    @of_kind("coordination")
    def test_no_call_after_cancel(self, job: ContractJob) -> None:
        # It may be repeated, and leaves the session's other watches alone.
        one, two, cancelled, fence = job.session(), job.session(), Recorder(), Recorder()
        watch = one.watch("k", cancelled, timeout=T)
        one.watch("", fence, timeout=T)
        two.put({"k1": b""}, timeout=T)
        cancelled.take(1)
        watch.cancel()
        watch.cancel()
        two.put({"k2": b""}, timeout=T)
        two.put({"k3": b""}, timeout=T)
        fence.take(3)  # of two watches either may be told first: anything wrong with k2 has been seen by now
        assert cancelled.take(1) == [("k1", b"")]
        assert len(cancelled.events) == 1

    @pytest.mark.parametrize("how", ["cancel", "close"])
    @of_kind("coordination")
    def test_ending_a_watch_drops_the_calls_behind_the_one_that_runs(self, job: ContractJob, how: str) -> None:
        # No call begins after ``cancel`` or ``close`` has returned; they may wait for the running one.
        running, go, begun, history = threading.Event(), threading.Event(), threading.Event(), []
        one = job.session()

        def call(events: Sequence[Event]) -> None:
            history.append("begins")
            running.set()
            assert go.wait(T), "cancel() was not reached in time"

        watch = one.watch("", call, timeout=T)
        with job.client("from another process, ours being busy", LONG) as process:
            assert running.wait(T), "the watch was not told in time"
            process.leave()  # its key has gone, too

        def end() -> None:
            begun.set()
            watch.cancel() if how == "cancel" else one.close()

        ending = threading.Thread(target=end, daemon=True)
        ending.start()
        assert begun.wait(T), "the thread that ends it has not begun"
        ending.join(_BEGUN_S)  # it is under way: those that wait for the call cannot have ended
        go.set()
        ending.join(T)
        assert not ending.is_alive(), f"{how}() has not returned, though the call that ran has"
        if how == "cancel":  # a push after the dropped one
            recorder = Recorder()
            one.watch("fence", recorder, timeout=T)
            one.put({"fence": b""}, timeout=T)
            recorder.take(1)
        assert history == ["begins"]

    @of_kind("coordination")
    def test_a_call_may_cancel_its_watch_and_close_its_session(self, job: ContractJob) -> None:
        # That call is then the last one.
        two, ended, calls, losses = job.session(), threading.Event(), [], Losses()
        session = opened(job.backend(), losses=losses)

        def call(events: Sequence[Event]) -> None:
            calls.append(events)
            watch.cancel()
            session.close()
            ended.set()

        watch = session.watch("", call, timeout=T)
        session.put({"mine": b""}, ephemeral=True, timeout=T)
        assert ended.wait(T), "close() within a call-back has not returned in time"
        wait_gone(two, "mine")
        assert keys_of(two) == {}
        assert len(calls) == 1
        assert losses.none, "on_lost was called for a session that was closed"
