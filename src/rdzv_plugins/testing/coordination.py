"""What a ``CoordinationBackend`` promises about keys, sessions and watches: part of the theme ``backend``.

All is tried through the interface alone, except that processes are killed and stopped.
"""

from __future__ import annotations

import ipaddress
import threading
from collections.abc import Sequence

import pytest

from rdzv_plugins.clock import now
from rdzv_plugins.coordination import CoordinationBackend, EndsSessions, Event, KeyValue
from rdzv_plugins.errors import Compacted, ConnectionLost, RunIdMismatch
from rdzv_plugins.kvstore.sockets.reach import is_own_address
from rdzv_plugins.testing.job import ContractJob, JobTheme
from rdzv_plugins.testing.parts import (
    LONG,
    PATIENCE,
    Losses,
    Recorder,
    assert_says,
    calls,
    end_of,
    keys_of,
    like,
    opened,
    stop,
    together,
    wait_gone,
    wait_until,
)

T = PATIENCE
_ITEMS = 400
_BUSY_S = 0.005
_BEGUN_S = 1.0
"""Seconds within which a call has got as far as it can, even on a busy machine."""


class CoordinationKeys(JobTheme, kind="coordination"):
    """Promises about keys, tried through the interface alone.

    The natural differences between services are left open.
    """

    def test_a_key_is_created_once(self, job: ContractJob) -> None:
        # Whoever comes first creates it; the second is told what is there.
        one, two = job.session(), job.session()
        done, mine = one.create("k", b"first", timeout=T)
        assert (done, mine.key, mine.value) == (True, "k", b"first")
        assert mine.revision > 0, f"a key has revision {mine.revision}: it has to be more than 0"
        assert two.create("k", b"second", timeout=T) == (False, mine)
        assert one.list("", timeout=T)[0] == [mine]

    def test_keys_are_listed_by_prefix_in_the_order_of_their_last_changes(self, job: ContractJob) -> None:
        # The revision of the answer is not one of the past.
        one = job.session()
        last = one.put({"a/2": b"", "b/1": b"\0\xff", "a/1": b"x" * 5000}, timeout=T)
        again = one.put({"a/2": b"new"}, timeout=T)
        assert last is not None
        assert again is not None
        assert again > last, f"a second write has revision {again}, and the first had {last}"
        found, revision = one.list("a/", timeout=T)
        assert [(each.key, each.value) for each in found] == [("a/1", b"x" * 5000), ("a/2", b"new")]
        assert [each.revision for each in found] == [last, again]
        # greater if other runs have changed keys since
        assert revision >= again, f"list() answers with revision {revision}, and one of its keys has {again}"
        assert keys_of(one).keys() == {"a/1", "a/2", "b/1"}
        nothing, revision = one.list("nothing", timeout=T)
        assert (list(nothing), revision >= again) == ([], True)

    def test_keys_are_text_of_any_alphabet(self, job: ContractJob) -> None:
        # They may contain what a service's own patterns and names might take for something else.
        one, recorder = job.session(), Recorder()
        one.watch("узел/", recorder, timeout=T)
        one.put({"узел/é": b"1"}, timeout=T)
        assert recorder.take(1) == [("узел/é", b"1")]
        assert keys_of(one, "узел/") == {"узел/é": b"1"}
        odd = {"a*b": b"1", "a[b]?": b"2", "a\\b %": b"3", 'a"b': b"4"}
        one.put(odd, timeout=T)
        for key, value in odd.items():
            assert keys_of(one, key) == {key: value}

    def test_a_guard_that_has_changed_stops_the_whole_put(self, job: ContractJob) -> None:
        # Changed to the same value is changed; gone is changed; created anew is changed.
        one, two = job.session(), job.session()
        _, guard = one.create("guard", b"1", timeout=T)
        assert one.put({"x": b"1", "y": b"1"}, guard=guard, timeout=T) is not None
        two.put({"guard": b"1"}, timeout=T)
        assert one.put({"x": b"2", "z": b"2"}, guard=guard, timeout=T) is None
        assert keys_of(one) == {"guard": b"1", "x": b"1", "y": b"1"}
        two.delete(["guard"], timeout=T)
        assert one.put({"x": b"3"}, guard=guard, timeout=T) is None
        two.create("guard", b"1", timeout=T)
        assert one.put({"x": b"4"}, guard=guard, timeout=T) is None
        assert keys_of(one)["x"] == b"1"

    def test_a_guard_among_the_items_is_compare_and_put(self, job: ContractJob) -> None:
        # The revision that a put has returned guards the next one.
        one = job.session()
        _, before = one.create("k", b"1", timeout=T)
        revision = one.put({"k": b"2"}, guard=before, timeout=T)
        assert revision is not None
        assert one.put({"k": b"3"}, guard=before, timeout=T) is None
        assert one.put({"k": b"4"}, guard=KeyValue("k", b"2", revision), timeout=T) is not None

    def test_many_who_compare_and_put_at_once_lose_nothing(self, job: ContractJob) -> None:
        # Fencing: of all that write under the same revision, one succeeds.
        sessions = [job.session() for _ in range(4)]
        sessions[0].put({"count": b"0"}, timeout=T)

        def count(number: int) -> None:
            for _ in range(10):
                while True:
                    (held,), _ = sessions[number].list("count", timeout=T)
                    more = {"count": b"%d" % (int(held.value) + 1)}
                    if sessions[number].put(more, guard=held, timeout=T) is not None:
                        break

        together(4, count)
        assert keys_of(sessions[0]) == {"count": b"40"}

    def test_one_put_takes_as_many_items_as_a_large_job_has_nodes(self, job: ContractJob) -> None:
        # They take effect in the given order if a service has to split them; with a guard that has changed, none does.
        one, recorder = job.session(), Recorder()
        one.watch("n/", recorder, timeout=T)
        _, guard = one.create("guard", b"", timeout=T)
        items = {f"n/{number}": b"x" * 200 for number in range(_ITEMS)}
        last = one.put(items, guard=guard, timeout=T)
        events = recorder.until(lambda events: len(events) >= _ITEMS)
        assert [each.key for each in events] == list(items)
        assert events[-1].revision == last
        one.put({"guard": b"new"}, timeout=T)
        assert one.put(dict.fromkeys(items, b""), guard=guard, timeout=T) is None
        assert keys_of(one, "n/") == items
        assert one.delete(items, timeout=T)
        assert keys_of(one) == {"guard": b"new"}

    def test_delete_takes_what_exists_unless_its_guard_has_changed(self, job: ContractJob) -> None:
        # Something missing is no error.
        one = job.session()
        _, guard = one.create("guard", b"", timeout=T)
        one.put({"a": b"", "b": b"", "c": b""}, timeout=T)
        assert one.delete(["a", "missing"], timeout=T) is True
        assert one.delete(iter(["b"]), guard=guard, timeout=T) is True
        one.put({"guard": b"new"}, timeout=T)
        assert one.delete(["c", "guard"], guard=guard, timeout=T) is False
        assert keys_of(one) == {"c": b"", "guard": b"new"}

    def test_runs_are_kept_apart(self, job: ContractJob) -> None:
        # Or the second is refused by name, if an endpoint belongs to one run.
        runs = {job.run_id: (job.session(), Recorder())}
        for another in like(job.run_id):
            try:
                runs[another] = opened(job.created(run_id=another)), Recorder()
            except RunIdMismatch as error:
                assert_says(error, another, job.run_id)
        for session, recorder in runs.values():
            session.watch("", recorder, timeout=T)
        for run, (session, _) in runs.items():
            session.delete(["k"], timeout=T)
            assert session.create("k", run.encode(), timeout=T)[0], f"run {run!r} has keys of another"
        for run, (session, recorder) in runs.items():
            assert keys_of(session) == {"k": run.encode()}, f"run {run!r} sees keys of another"
            session.put({"fence": b""}, timeout=T)
            assert recorder.take(2) == [("k", run.encode()), ("fence", b"")], f"run {run!r} is told of another's keys"


class CoordinationSessions(JobTheme, kind="coordination"):
    """Promises about sessions, tried through the interface alone, except that processes are killed and stopped."""

    def test_an_ephemeral_key_goes_with_its_session_and_watchers_hear_of_it(self, job: ContractJob) -> None:
        # Created or put; keys that are not ephemeral stay.
        one, two, recorder = job.session(), job.session(), Recorder()
        one.create("e/created", b"1", ephemeral=True, timeout=T)
        one.put({"e/put": b"1"}, ephemeral=True, timeout=T)
        one.put({"e/stays": b"1"}, timeout=T)
        two.watch("e/", recorder, timeout=T)
        one.close()
        assert sorted(recorder.take(5)[3:]) == [("e/created", None), ("e/put", None)]
        assert keys_of(two) == {"e/stays": b"1"}

    def test_an_ephemeral_key_belongs_to_who_has_written_it_last(self, job: ContractJob) -> None:
        # It belongs to nobody once it was written as one that stays.
        one, two, watcher, recorder = job.session(), job.session(), job.session(), Recorder()
        for session in (one, two):
            session.put({"taken over": b"", "stays": b""}, ephemeral=True, timeout=T)
        watcher.put({"stays": b"kept"}, timeout=T)
        watcher.watch("", recorder, timeout=T)
        one.close()
        job.session().put({"fence": b""}, timeout=T)
        two.close()
        assert [event for event in recorder.take(4) if event[1] is None] == [("taken over", None)]
        assert keys_of(watcher) == {"stays": b"kept", "fence": b""}

    @pytest.mark.parametrize("child", ["fork", "spawn"])
    def test_the_keys_of_a_killed_process_go(self, job: ContractJob, child: str) -> None:
        # They go at once or after its time to live, although it leaves a child that has inherited what it could.
        one, recorder = job.session(), Recorder()
        one.watch("node", recorder, timeout=T)
        with job.holder("node", job.ttl, child) as process:
            assert recorder.take(1) == [("node", b"here")]
            process.kill()
            assert recorder.take(2, end_of(process.ttl))[1] == ("node", None)

    def test_the_keys_of_a_stopped_process_go_after_its_time_to_live(self, job: ContractJob) -> None:
        # When it wakes up, it is told that its session was lost.
        one, recorder = job.session(), Recorder()
        one.watch("node", recorder, timeout=T)
        with job.holder("node", job.ttl) as process:
            assert recorder.take(1) == [("node", b"here")]
            stop(process.pid)
            assert recorder.take(2, end_of(process.ttl))[1] == ("node", None)
            process.go_on()
            assert process.next()
            process.leave()

    def test_a_session_stays_while_nothing_is_asked(self, job: ContractJob) -> None:
        # The backend keeps it alive by its own means.
        losses, recorder, ttl = Losses(), Recorder(), 2 * job.ttl  # this process is busy with others, too
        idle = job.session(ttl, losses)
        idle.put({"idle": b""}, ephemeral=True, timeout=T)
        idle.watch("dead", recorder, timeout=T)
        with job.holder("dead", ttl) as process:  # it ends when ours, with the same time to live, would have ended
            stop(process.pid)
            assert recorder.take(2, end_of(ttl))[-1] == ("dead", None)
        assert losses.none, "on_lost was called, though the session has not been lost"
        assert keys_of(idle) == {"idle": b""}

    def test_a_session_knows_until_when_it_lives(self, job: ContractJob) -> None:
        # That time advances while the session is kept alive, and is never later than the service would end it.
        session = job.session(job.ttl)
        if not hasattr(session, "known_until"):
            self.gap("the session does not report how long it is sure to live (known_until)")
            return
        session.put({"here": b""}, ephemeral=True, timeout=T)
        wait_until(lambda: session.known_until > now(), lambda: session.known_until - now())
        first = session.known_until
        assert first <= now() + session.ttl
        wait_until(lambda: session.known_until > first, lambda: session.known_until)  # nothing was requested
        session.close()
        last = session.known_until
        assert last <= now() + session.ttl
        assert session.known_until == last, "it has ended: nothing is known of it any more"

    def test_a_session_can_be_ended_by_others(self, job: ContractJob) -> None:
        # It ends as when its time to live is over: it alone, with everything it has written as ephemeral; and it is
        # told.
        one, two, recorder, losses = job.session(), job.session(), Recorder(), Losses()
        ended = job.session(LONG, losses)
        for key in ("e/a", "e/b"):
            ended.create(key, b"", ephemeral=True, timeout=T)
        two.put({"e/two": b""}, ephemeral=True, timeout=T)
        two.put({"e/a of two": b"", "mine": b""}, ephemeral=True, timeout=T)
        ended.put({"e/stays": b""}, timeout=T)
        if not isinstance(one, EndsSessions) or not isinstance(two, EndsSessions):
            self.gap("sessions cannot end others (end_session); not needed where broken connections are noticed")
            return
        for none in ("e/stays", "e/", "never", "mine"):
            assert not (two if none == "mine" else one).end_session(none, timeout=T), none
        one.watch("e/", recorder, timeout=T)
        if not one.end_session("e/a", timeout=T):
            self.gap("the service cannot end the session of a node that is gone (end_session)")
            return
        assert sorted(recorder.take(7)[5:]) == [("e/a", None), ("e/b", None)]
        assert losses.next()
        with pytest.raises(ConnectionLost):
            ended.list("", timeout=T)
        assert not one.end_session("e/a", timeout=T), "it is gone already"
        assert keys_of(one) == {"e/two": b"", "e/a of two": b"", "mine": b"", "e/stays": b""}
        last = job.session(job.ttl)
        last.put({"last": b""}, ephemeral=True, timeout=T)
        together(2, lambda number: (one, two)[number].end_session("last", timeout=T))
        wait_gone(one, "last")
        assert keys_of(two) == {"e/two": b"", "e/a of two": b"", "mine": b"", "e/stays": b""}

    def test_one_session_serves_many_threads_and_gives_each_its_answer(self, job: ContractJob) -> None:
        # It does so for all of them at once.
        one = job.session()

        def ask(number: int) -> None:
            for count in range(25):
                one.put({f"{number}/": b"%d" % count}, timeout=T)
                assert keys_of(one, f"{number}/") == {f"{number}/": b"%d" % count}

        together(8, ask)
        assert len(one.list("", timeout=T)[0]) == 8

    def test_after_close_every_call_says_so_and_nobody_is_told_of_a_loss(self, job: ContractJob) -> None:
        # No watch is called again either.
        session_losses, recorder, two = Losses(), Recorder(), job.session()
        session = job.session(losses=session_losses)
        watch = session.watch("", recorder, timeout=T)
        session.put({"mine": b""}, ephemeral=True, timeout=T)
        recorder.take(1)
        session.close()
        session.close()
        watch.cancel()
        asks = calls(session, T) | {"watch()": lambda: session.watch("", recorder, timeout=T)}
        for ask in asks.values():
            with pytest.raises(ConnectionLost, match=r"\w"):
                ask()
        wait_gone(two, "mine")
        two.put({"later": b""}, timeout=T)
        assert keys_of(two) == {"later": b""}
        assert session_losses.none, "on_lost was called, though the session has not been lost"
        assert len(recorder.events) == 1

    def test_closing_the_backend_ends_its_sessions(self, job: ContractJob) -> None:
        # Closing may be repeated.
        two, losses = job.session(), Losses()
        backend = job.created()
        sessions = [opened(backend, losses=losses) for _ in range(2)]
        for number, session in enumerate(sessions):
            session.put({f"{number}": b""}, ephemeral=True, timeout=T)
        backend.close()
        backend.close()
        wait_until(lambda: not keys_of(two), lambda: keys_of(two))
        for session in sessions:
            with pytest.raises(ConnectionLost):
                session.list("", timeout=T)
        assert losses.none, "on_lost was called, though the session has not been lost"

    def test_what_a_session_says_of_itself(self, job: ContractJob) -> None:
        # The time to live that was granted, and addresses of both ends that can be dialled.
        backend = job.created()
        session = opened(backend, ttl=7.5)
        assert 7.5 <= session.ttl <= LONG, "etcd grants whole seconds, Consul ten at least; nobody less than was asked"
        assert is_own_address(session.local_addr), f"{session.local_addr} is no address of this machine"
        if job.harness.dialled:
            ipaddress.ip_address(session.remote_addr)
        assert session.remote_addr
        assert isinstance(backend, CoordinationBackend)
        assert backend.name
        assert isinstance(backend.hosts_service, bool)


def assert_in_order(events: Sequence[Event]) -> None:
    """Assert that events are in order; items of one put may share a revision."""
    revisions = [each.revision for each in events]
    assert revisions == sorted(revisions)


class CoordinationWatches(JobTheme, kind="coordination"):
    """Promises about watches, tried through the interface alone."""

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

    def test_writers_at_once_are_seen_in_one_order_by_all(self, job: ContractJob) -> None:
        # Each writer's changes come in the order in which it made them.
        sessions = [job.session() for _ in range(4)]
        recorders = [Recorder() for _ in sessions]
        for session, recorder in zip(sessions, recorders, strict=True):
            session.watch("", recorder, timeout=T)

        def write(number: int) -> None:
            for count in range(25):
                sessions[number].put({f"{number}/{count}": b"", "last": b"%d" % number}, timeout=T)

        together(4, write)
        histories = [recorder.until(lambda events: len(events) >= 200) for recorder in recorders]
        assert all(history == histories[0] for history in histories)
        assert_in_order(histories[0])
        for number in range(len(sessions)):
            mine = [each.key for each in histories[0] if each.key.startswith(f"{number}/")]
            assert mine == [f"{number}/{count}" for count in range(25)]

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
    def test_ending_a_watch_drops_the_calls_behind_the_one_that_runs(self, job: ContractJob, how: str) -> None:
        # No call begins after ``cancel`` or ``close`` has returned; they may wait for the running one.
        running, go, begun, history = threading.Event(), threading.Event(), threading.Event(), []
        one = job.session()

        def call(events: Sequence[Event]) -> None:
            history.append("begins")
            running.set()
            assert go.wait(T), "cancel() was not reached in time"

        watch = one.watch("", call, timeout=T)
        with job.holder("from another process, ours being busy", LONG) as process:
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

    def test_a_call_may_cancel_its_watch_and_close_its_session(self, job: ContractJob) -> None:
        # That call is then the last one.
        two, ended, calls, losses = job.session(), threading.Event(), [], Losses()
        session = opened(job.created(), losses=losses)

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
