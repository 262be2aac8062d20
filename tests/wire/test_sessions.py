"""What ``CoordinationBackend`` promises of keys and sessions: through the interface alone, but for ``service``."""

from __future__ import annotations

import os
import signal
import threading

import pytest
from attack_kit import read_line, wait_until
from coordination_kit import LONG, Losses, Recorder, Service, keys, keys_of, opened, stop
from wire_client import PATIENCE

from rdzv_plugins.coordination import CoordinationBackend, KeyValue, Session
from rdzv_plugins.errors import ConnectionLost

T = PATIENCE


def test_a_key_is_created_once(one: Session, two: Session) -> None:
    done, mine = one.create("k", b"first", timeout=T)
    assert (done, mine.key, mine.value) == (True, "k", b"first")
    assert mine.revision > 0
    assert two.create("k", b"second", timeout=T) == (False, mine)
    assert one.list("", timeout=T)[0] == [mine]


def test_keys_are_listed_by_prefix_in_the_order_of_their_last_changes(one: Session) -> None:
    last = one.put({"a/2": b"", "b/1": b"\0\xff", "a/1": b"x" * 5000}, timeout=T)
    again = one.put({"a/2": b"new"}, timeout=T)
    assert last is not None
    assert again is not None
    assert again > last
    found, revision = one.list("a/", timeout=T)
    assert [(each.key, each.value) for each in found] == [("a/1", b"x" * 5000), ("a/2", b"new")]
    assert [each.revision for each in found] == [last, again]
    assert revision >= again  # greater where other runs have changed keys since
    assert keys(one.list("", timeout=T)).keys() == {"a/1", "a/2", "b/1"}
    nothing, revision = one.list("nothing", timeout=T)
    assert (nothing, revision >= again) == ([], True)


def test_keys_are_text_of_any_alphabet(one: Session) -> None:
    recorder = Recorder()
    one.watch("узел/", recorder, timeout=T)
    one.put({"узел/é": b"1"}, timeout=T)
    assert recorder.take(1) == [("узел/é", b"1")]
    assert keys(one.list("узел/", timeout=T)) == {"узел/é": b"1"}


def test_a_guard_that_has_changed_stops_the_whole_put(one: Session, two: Session) -> None:
    _, guard = one.create("guard", b"1", timeout=T)
    assert one.put({"x": b"1", "y": b"1"}, guard=guard, timeout=T) is not None
    two.put({"guard": b"1"}, timeout=T)  # the same value, but another revision
    assert one.put({"x": b"2", "z": b"2"}, guard=guard, timeout=T) is None
    assert keys(one.list("", timeout=T)) == {"guard": b"1", "x": b"1", "y": b"1"}
    two.delete(["guard"], timeout=T)
    assert one.put({"x": b"3"}, guard=guard, timeout=T) is None


def test_a_guard_among_the_items_is_compare_and_put(one: Session) -> None:
    _, before = one.create("k", b"1", timeout=T)
    revision = one.put({"k": b"2"}, guard=before, timeout=T)
    assert revision is not None
    assert one.put({"k": b"3"}, guard=before, timeout=T) is None
    assert one.put({"k": b"4"}, guard=KeyValue("k", b"2", revision), timeout=T) is not None


def test_delete_takes_what_exists_unless_its_guard_has_changed(one: Session) -> None:
    _, guard = one.create("guard", b"", timeout=T)
    one.put({"a": b"", "b": b"", "c": b""}, timeout=T)
    assert one.delete(["a", "missing"], timeout=T) is True
    assert one.delete(iter(["b"]), guard=guard, timeout=T) is True
    one.put({"guard": b"new"}, timeout=T)
    assert one.delete(["c", "guard"], guard=guard, timeout=T) is False
    assert keys(one.list("", timeout=T)) == {"c": b"", "guard": b"new"}


def test_an_ephemeral_key_goes_with_its_session_and_watchers_hear_of_it(one: Session, two: Session) -> None:
    one.create("e/created", b"1", ephemeral=True, timeout=T)
    one.put({"e/put": b"1"}, ephemeral=True, timeout=T)
    one.put({"e/stays": b"1"}, timeout=T)
    recorder = Recorder()
    two.watch("e/", recorder, timeout=T)
    one.close()
    assert sorted(recorder.take(5)[3:]) == [("e/created", None), ("e/put", None)]
    assert keys(two.list("", timeout=T)) == {"e/stays": b"1"}


def test_an_ephemeral_key_belongs_to_who_has_written_it_last(service: Service, one: Session, two: Session) -> None:
    for session in (one, two):
        session.put({"taken over": b"", "stays": b""}, ephemeral=True, timeout=T)
    watcher, recorder = opened(service.backend()), Recorder()
    watcher.put({"stays": b"kept"}, timeout=T)
    watcher.watch("", recorder, timeout=T)
    one.close()
    opened(service.backend()).put({"fence": b""}, timeout=T)
    two.close()
    assert [event for event in recorder.take(4) if event[1] is None] == [("taken over", None)]
    assert keys(watcher.list("", timeout=T)) == {"stays": b"kept", "fence": b""}


@pytest.mark.parametrize("child", ["", "fork", "spawn"])
def test_the_keys_of_a_killed_process_go(service: Service, one: Session, child: str) -> None:
    """At once where that can be known, and even if it leaves a child, which has inherited what it could."""
    recorder = Recorder()
    one.watch("node", recorder, timeout=T)
    longer_than_we_wait = 2 * LONG
    with service.client("node", longer_than_we_wait if service.notices_a_kill else 2.0, child=child) as process:
        assert recorder.take(1) == [("node", b"here")]
        process.kill()
        assert recorder.take(2)[1] == ("node", None)


def test_the_keys_of_a_stopped_process_go_after_its_time_to_live(service: Service, one: Session) -> None:
    recorder = Recorder()
    one.watch("node", recorder, timeout=T)
    with service.client("node", ttl=2.0) as process:
        assert recorder.take(1) == [("node", b"here")]
        stop(process.pid)
        assert recorder.take(2)[1] == ("node", None)
        process.send_signal(signal.SIGCONT)
        assert read_line(process).startswith("lost: ")
        assert process.stdin
        process.stdin.close()
        assert process.wait(T) == 0


def test_a_session_stays_while_nothing_is_asked(service: Service) -> None:
    losses, recorder, ttl = Losses(), Recorder(), service.least_ttl
    idle = opened(service.backend(), ttl, losses)
    idle.put({"idle": b""}, ephemeral=True, timeout=T)
    idle.watch("dead", recorder, timeout=T)
    for ended in range(1, 4):  # sessions of the same time to live end one after the other: so ours would have
        with service.client("dead", ttl) as process:
            stop(process.pid)
            assert recorder.take(2 * ended)[-1] == ("dead", None)
    assert losses.none
    assert keys(idle.list("", timeout=T)) == {"idle": b""}


def test_runs_are_kept_apart(service: Service, one: Session) -> None:
    other, recorder = opened(service.backend("another")), Recorder()
    other.watch("", recorder, timeout=T)
    one.put({"k": b"mine"}, timeout=T)
    assert other.create("k", b"theirs", timeout=T)[0]
    assert recorder.take(1) == [("k", b"theirs")]
    assert keys(one.list("", timeout=T)) == {"k": b"mine"}


def test_one_session_serves_many_threads_and_gives_each_its_answer(one: Session) -> None:
    wrong = []

    def ask(number: int) -> None:
        for count in range(50):
            one.put({f"{number}/": b"%d" % count}, timeout=T)
            if keys(one.list(f"{number}/", timeout=T)) != {f"{number}/": b"%d" % count}:
                wrong.append((number, count))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(T)
    assert wrong == []
    assert len(one.list("", timeout=T)[0]) == 8


def test_after_close_every_call_says_so_and_nobody_is_told_of_a_loss(service: Service, two: Session) -> None:
    losses, recorder = Losses(), Recorder()
    session = opened(service.backend(), losses=losses)
    watch = session.watch("", recorder, timeout=T)
    session.put({"mine": b""}, ephemeral=True, timeout=T)
    recorder.take(1)
    session.close()
    session.close()
    watch.cancel()
    for ask in (
        lambda: session.create("k", b"", timeout=T),
        lambda: session.put({"k": b""}, timeout=T),
        lambda: session.delete(["k"], timeout=T),
        lambda: session.list("", timeout=T),
        lambda: session.watch("", recorder, timeout=T),
    ):
        with pytest.raises(ConnectionLost, match="closed"):
            ask()
    wait_until(lambda: not keys_of(two), lambda: keys_of(two))
    two.put({"later": b""}, timeout=T)
    assert losses.none
    assert len(recorder.events) == 1


def test_many_sessions_of_one_process(service: Service, one: Session) -> None:
    backend, recorder, seen = service.backend(), Recorder(), Recorder()
    one.watch("node/", seen, timeout=T)
    threads, descriptors = threading.active_count(), len(os.listdir("/proc/self/fd"))
    sessions = [opened(backend) for _ in range(300)]
    assert threading.active_count() == threads
    for number, session in enumerate(sessions):
        assert session.create(f"node/{number}", b"", ephemeral=True, timeout=T)[0]
        session.watch("round", recorder, timeout=T)
    one.put({"round": b"1"}, timeout=T)
    assert set(recorder.take(300)) == {("round", b"1")}
    assert len(recorder.threads) == 1
    for session in sessions:
        session.close()
    gone = seen.until(lambda events: len(events) >= 600)
    assert {each.key for each in gone if each.value is None} == {f"node/{number}" for number in range(300)}
    wait_until(lambda: len(os.listdir("/proc/self/fd")) <= descriptors, lambda: os.listdir("/proc/self/fd"))


def test_closing_the_backend_ends_its_sessions(service: Service, two: Session) -> None:
    backend, losses = service.backend(), Losses()
    sessions = [opened(backend, losses=losses) for _ in range(2)]
    for number, session in enumerate(sessions):
        session.put({f"{number}": b""}, ephemeral=True, timeout=T)
    backend.close()
    backend.close()
    wait_until(lambda: not keys_of(two), lambda: keys_of(two))
    with pytest.raises(ConnectionLost):
        sessions[0].list("", timeout=T)
    assert losses.none


def test_what_a_session_says_of_itself(service: Service) -> None:
    backend = service.backend()
    session = opened(backend, ttl=7.5)
    assert session.ttl == (8 if service.whole_seconds else 7.5)
    assert (session.local_addr, session.remote_addr) == ("127.0.0.1", "127.0.0.1")
    assert isinstance(backend, CoordinationBackend)
    assert backend.name
