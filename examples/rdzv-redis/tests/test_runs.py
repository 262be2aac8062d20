"""What a run leaves in Redis, and what it leaves alone."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from kit import Losses, T, backend_at, client, keys_of, opened, redis_server, wait_until
from rdzv_plugins.testing import ServerProcess


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with redis_server(tmp_path) as server:
        yield server


def test_the_last_session_deletes_the_keys_of_its_run_and_of_no_other(server: ServerProcess) -> None:
    ids = ["job", "jo", "job2", "job/2", "job%2F2", "job/", "/job", "Job", "задание", "a b", "*"]
    with client(server.port) as redis, ExitStack() as stack:
        redis.set("rdzv-plugins/somebody-elses", "1")
        backends = {run: stack.enter_context(backend_at(server.port, run)) for run in ids}
        sessions = {run: opened(backend) for run, backend in backends.items()}
        for run, each in sessions.items():
            each.put({"k": run.encode(), "s/k": b""}, timeout=T)
        with backend_at(server.port, "job", prefix="rdzv-plugins/x") as elsewhere, backend_at(server.port, "job", db=1):
            others, last = opened(elsewhere), opened(backends["job"])
            others.put({"k": b"another prefix"}, timeout=T)
            sessions.pop("job").close()
            assert keys_of(last) == {"k": b"job", "s/k": b""}, "another session of the run is left"
            before = set(redis.keys())
            last.close()
            gone = before - set(redis.keys())
            assert gone
            assert all(key.startswith(b"rdzv-plugins/job/") for key in gone)
            assert [keys_of(each) for each in sessions.values()] == [{"k": r.encode(), "s/k": b""} for r in sessions]
            assert keys_of(others) == {"k": b"another prefix"}
        stack.close()
        assert redis.keys() == [b"rdzv-plugins/somebody-elses"]


def test_a_run_that_was_killed_leaves_nothing_to_the_next_one(server: ServerProcess) -> None:
    with client(server.port) as redis, backend_at(server.port, outage=10) as killed:
        sessions = opened(killed, 5), opened(killed, 5)
        sessions[0].put({"old": b""}, timeout=T)
        sessions[1].put({"older": b""}, ephemeral=True, timeout=T)
        for each in sessions:
            each.abandon()
        assert {60_000 < redis.pttl(key) <= 620_000 for key in redis.scan_iter()} == {True}, "they go by themselves"
        redis.hincrby("rdzv-plugins/run/state", "seen", -15_100)  # its nodes have given up by themselves by then
        with backend_at(server.port, outage=10) as backend:
            session = opened(backend, 5)
            assert keys_of(session) == {}
            session.put({"new": b""}, timeout=T)
            assert keys_of(opened(backend, 5)) == {"new": b""}, "only the first one clears up"


def test_keys_of_a_run_last_as_long_as_somebody_lives_in_it(server: ServerProcess) -> None:
    with client(server.port) as redis, backend_at(server.port) as backend:
        session = opened(backend, 3)
        session.put({"k": b""}, ephemeral=True, timeout=T)
        for key in list(redis.scan_iter()):
            redis.pexpire(key, 30_000)
        wait_until(lambda: {redis.pttl(key) > 60_000 for key in redis.scan_iter()} == {True})
        assert keys_of(session) == {"k": b""}


def test_a_session_that_was_ended_by_hand_says_so(server: ServerProcess) -> None:
    losses = Losses()
    with client(server.port) as redis, backend_at(server.port) as backend, backend_at(server.port) as other:
        opened(backend, 2, losses)
        [name] = redis.hkeys("rdzv-plugins/run/answers")
        opened(other, 2)
        redis.hdel("rdzv-plugins/run/answers", name)
        assert "somebody has ended it by hand" in str(losses.next())


def test_sessions_that_come_and_go_at_once_delete_nothing_of_those_that_stay(server: ServerProcess) -> None:
    wrong: list[object] = []

    def come_and_go(number: int) -> None:
        try:
            with backend_at(server.port) as backend:
                for count in range(10):
                    session = opened(backend)
                    key = f"{number}/{count}"
                    session.put({key: b""}, timeout=T)
                    if key not in keys_of(session):
                        wrong.append(key)
                    session.close()
        except Exception as error:
            wrong.append(error)

    before = set(threading.enumerate())
    threads = [threading.Thread(target=come_and_go, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(T)
    assert wrong == []
    assert set(threading.enumerate()) <= before, "the loop's thread has ended with the last session"
    with client(server.port) as redis:
        assert redis.keys() == []


def test_the_time_to_live_of_others_is_heeded(server: ServerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """A session of an hour notices the end of one of three seconds as soon as that one's own kind would."""
    monkeypatch.setattr("rdzv_plugins.kit.keeping._LONGEST_PERIOD_S", 3600)
    with backend_at(server.port) as backend, backend_at(server.port) as other:
        session = opened(backend, 3600)
        short = opened(other, 3)
        short.put({"short": b""}, ephemeral=True, timeout=T)
        assert keys_of(session) == {"short": b""}
        short.abandon()
        wait_until(lambda: not keys_of(session), lambda: "it looks after others when its own time comes")
