"""What a ``CoordinationBackend`` promises about sessions and their ephemeral keys: part of the theme ``backend``."""

from __future__ import annotations

import ipaddress
import threading

import pytest

from rdzv_plugins.clock import now
from rdzv_plugins.coordination import CoordinationBackend, EndsSessions
from rdzv_plugins.errors import ConnectionLost
from rdzv_plugins.kvstore.sockets.reach import is_own_address
from rdzv_plugins.testing.contract.census import at_rest, census
from rdzv_plugins.testing.contract.job import ContractJob, JobTheme, of_kind
from rdzv_plugins.testing.contract.parts import (
    LONG,
    PATIENCE,
    Losses,
    Recorder,
    end_of,
    keys_of,
    opened,
    stop,
    together,
    wait_gone,
    wait_until,
)

T = PATIENCE
_MANY = 50


class CoordinationSessions(JobTheme):
    """Promises about sessions, tried through the interface alone, except that processes are killed and stopped."""

    @of_kind("coordination")
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

    @of_kind("coordination")
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

    @pytest.mark.parametrize("child", ["", "fork", "spawn"])
    @of_kind("coordination")
    def test_the_keys_of_a_killed_process_go(self, job: ContractJob, child: str) -> None:
        # They go at once or after its time to live, even if it leaves a child that has inherited what it could.
        one, recorder = job.session(), Recorder()
        one.watch("node", recorder, timeout=T)
        with job.client("node", job.ttl, child=child) as process:
            assert recorder.take(1) == [("node", b"here")]
            process.kill()
            assert recorder.take(2, end_of(process.first["ttl"]))[1] == ("node", None)

    @of_kind("coordination")
    def test_the_keys_of_a_stopped_process_go_after_its_time_to_live(self, job: ContractJob) -> None:
        # When it wakes up, it is told that its session was lost.
        one, recorder = job.session(), Recorder()
        one.watch("node", recorder, timeout=T)
        with job.client("node", job.ttl) as process:
            assert recorder.take(1) == [("node", b"here")]
            stop(process.pid)
            assert recorder.take(2, end_of(process.first["ttl"]))[1] == ("node", None)
            process.go_on()
            assert process.line()["lost"]
            process.leave()

    @of_kind("coordination")
    def test_a_session_stays_while_nothing_is_asked(self, job: ContractJob) -> None:
        # The backend keeps it alive by its own means.
        losses, recorder, ttl = Losses(), Recorder(), 3 * job.ttl  # this process is busy with others, too
        idle = job.session(ttl, losses)
        idle.put({"idle": b""}, ephemeral=True, timeout=T)
        idle.watch("dead", recorder, timeout=T)
        for ended in (1, 2):  # sessions of the same time to live end one after the other: so ours would have ended
            with job.client("dead", ttl) as process:
                stop(process.pid)
                assert recorder.take(2 * ended)[-1] == ("dead", None)
        assert losses.none, "on_lost was called, though the session has not been lost"
        assert keys_of(idle) == {"idle": b""}

    @of_kind("coordination")
    def test_a_session_knows_until_when_it_lives(self, job: ContractJob) -> None:
        # That time advances while the session is kept alive, and is never later than the service would end it.
        session = job.session(job.ttl)
        if not hasattr(session, "known_until"):
            job.gap("the session does not say until when it is known to live (known_until)")
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

    @of_kind("coordination")
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
            job.gap("a session cannot end another one (end_session); one that is told by its connection need not")
            return
        for none in ("e/stays", "e/", "never", "mine"):
            assert not (two if none == "mine" else one).end_session(none, timeout=T), none
        one.watch("e/", recorder, timeout=T)
        if not one.end_session("e/a", timeout=T):
            job.gap("the service cannot end the session of a node that is gone (end_session)")
            return
        assert sorted(recorder.take(7)[5:]) == [("e/a", None), ("e/b", None)]
        assert losses.next()
        with pytest.raises(ConnectionLost):
            ended.list("", timeout=T)
        assert not one.end_session("e/a", timeout=T), "it is gone already"
        assert keys_of(one) == {"e/two": b"", "e/a of two": b"", "mine": b"", "e/stays": b""}
        last = job.session(job.ttl)
        last.put({"last": b""}, ephemeral=True, timeout=T)
        together([lambda each=each: each.end_session("last", timeout=T) for each in (one, two)])  # type: ignore[misc]
        wait_gone(one, "last")
        assert keys_of(two) == {"e/two": b"", "e/a of two": b"", "mine": b"", "e/stays": b""}

    @of_kind("coordination")
    def test_one_session_serves_many_threads_and_gives_each_its_answer(self, job: ContractJob) -> None:
        # It does so for all of them at once.
        one = job.session()

        def ask(number: int) -> None:
            for count in range(25):
                one.put({f"{number}/": b"%d" % count}, timeout=T)
                assert keys_of(one, f"{number}/") == {f"{number}/": b"%d" % count}

        together([lambda number=number: ask(number) for number in range(8)])  # type: ignore[misc]
        assert len(one.list("", timeout=T)[0]) == 8

    @of_kind("coordination")
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
        for ask in (
            lambda: session.create("k", b"", timeout=T),
            lambda: session.put({"k": b""}, timeout=T),
            lambda: session.delete(["k"], timeout=T),
            lambda: session.list("", timeout=T),
            lambda: session.watch("", recorder, timeout=T),
        ):
            with pytest.raises(ConnectionLost, match=r"\w"):
                ask()
        wait_gone(two, "mine")
        two.put({"later": b""}, timeout=T)
        assert keys_of(two) == {"later": b""}
        assert session_losses.none, "on_lost was called, though the session has not been lost"
        assert len(recorder.events) == 1

    @of_kind("coordination")
    def test_many_sessions_of_one_process(self, job: ContractJob) -> None:
        # Each is told what it watches, and none leaves a thread or a descriptor behind when it is closed.
        one, backend, recorder, seen = job.session(), job.backend(), Recorder(), Recorder()
        one.watch("node/", seen, timeout=T)
        opened(backend).close()  # what all sessions of a process share may stay
        before = at_rest(census)
        sessions = [opened(backend) for _ in range(_MANY)]
        for number, session in enumerate(sessions):
            assert session.create(f"node/{number}", b"", ephemeral=True, timeout=T)[0]
            session.watch("round", recorder, timeout=T)
        one.put({"round": b"1"}, timeout=T)
        assert set(recorder.take(_MANY)) == {("round", b"1")}
        for session in sessions:
            session.close()
        gone = seen.until(lambda events: len(events) >= 2 * _MANY)
        assert {each.key for each in gone if each.value is None} == {f"node/{number}" for number in range(_MANY)}
        wait_until(lambda: census()["Python threads"] <= before["Python threads"], threading.enumerate)
        wait_until(
            lambda: census()["descriptors"] <= before["descriptors"],
            lambda: f"{census()['descriptors']} descriptors are open, {before['descriptors']} were before",
        )

    @of_kind("coordination")
    def test_closing_the_backend_ends_its_sessions(self, job: ContractJob) -> None:
        # Closing may be repeated.
        two, losses = job.session(), Losses()
        backend = job.backend()
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

    @of_kind("coordination")
    def test_what_a_session_says_of_itself(self, job: ContractJob) -> None:
        # The time to live that was granted, and addresses of both ends that can be dialled.
        backend = job.backend()
        session = opened(backend, ttl=7.5)
        assert 7.5 <= session.ttl <= LONG, "etcd grants whole seconds, Consul ten at least; nobody less than was asked"
        assert is_own_address(session.local_addr), f"{session.local_addr} is no address of this machine"
        if job.harness.dialled:
            ipaddress.ip_address(session.remote_addr)
        assert session.remote_addr
        assert isinstance(backend, CoordinationBackend)
        assert backend.name
        assert isinstance(backend.hosts_service, bool)
