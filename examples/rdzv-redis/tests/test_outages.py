"""Redis goes away and comes back: with its data, without them, and not at all."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from kit import Losses, Recorder, T, backend_at, client, keys_of, opened, redis_server, refused, wait_until
from rdzv_plugins.kit import Coordination
from rdzv_plugins.testing import ServerProcess

TTL = 3
"""Short for the tests that wait for it, and long enough for a busy machine."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    """It keeps its data."""
    with redis_server(tmp_path) as server:
        yield server


class Subject:
    """A session with a key of its own, one that stays and a watch."""

    def __init__(self, backend: Coordination, ttl: float) -> None:
        self.losses, self.recorder = Losses(), Recorder()
        self.session = opened(backend, ttl, self.losses)
        self.session.put({"mine": b""}, ephemeral=True, timeout=T)
        self.session.put({"stays": b""}, timeout=T)
        self.session.watch("seen/", self.recorder, timeout=T)

    def check(self) -> None:
        """Nothing has happened to it."""
        self.session.put({"seen/fence": b""}, timeout=T)
        assert self.recorder.take(1) == [("seen/fence", b"")]
        assert {"mine", "stays"} <= keys_of(self.session).keys()
        assert self.losses.none


def outlive() -> None:
    """Redis is away for longer than sessions live: there is nothing to wait for but the time."""
    time.sleep(1.5 * TTL)


@pytest.mark.parametrize("how", ["killed", "frozen"])
def test_an_outage_that_is_longer_than_a_session_lives_changes_nothing(server: ServerProcess, how: str) -> None:
    with backend_at(server.port) as backend, backend_at(server.port) as other:
        subjects = [Subject(backend, TTL), Subject(other, TTL)]
        if how == "killed":
            server.kill()
            outlive()
            server.start_again()
        else:
            os.kill(server.pids[0], signal.SIGSTOP)
            outlive()
            os.kill(server.pids[0], signal.SIGCONT)
        with backend_at(server.port) as late:  # whoever comes first takes nobody for lost
            newcomer = opened(late, TTL)
            assert {"mine", "stays"} <= keys_of(newcomer).keys()
            for subject in subjects[1:]:
                subject.check()
            outlive()
            assert {"mine", "stays", "seen/fence"} == keys_of(newcomer).keys()
        assert all(subject.losses.none for subject in subjects)


def test_who_is_lost_during_an_outage_is_lost_after_it(server: ServerProcess) -> None:
    with backend_at(server.port) as backend, backend_at(server.port) as other:
        session, recorder = opened(backend, TTL), Recorder()
        lost = opened(other, TTL)
        lost.put({"lost": b""}, ephemeral=True, timeout=T)
        session.watch("lost", recorder, timeout=T)
        server.kill()
        lost.abandon()  # as if its process had been killed
        server.start_again()
        assert recorder.take(2)[1] == ("lost", None)


def test_an_outage_that_is_too_long(server: ServerProcess, caplog: pytest.LogCaptureFixture) -> None:
    with backend_at(server.port, outage=5) as backend:
        subject = Subject(backend, TTL)
        server.kill()
        error = subject.losses.next()
        assert error.silent
        assert f"Redis at 127.0.0.1:{server.port} has not answered for" in str(error)
        assert "connection refused" in str(error)
        assert "Is Redis running" in error.remedy
        assert "this node goes on without it for another" in caplog.text


def test_a_redis_that_has_lost_its_data_is_named(tmp_path: Path) -> None:
    with redis_server(tmp_path, keeps_data=False) as server, backend_at(server.port) as backend:
        subject = Subject(backend, TTL)
        server.kill()
        server.start_again()
        error = subject.losses.next()
        assert not error.silent
        assert "Redis has lost data of this run" in str(error)
        assert "appendonly yes" in error.remedy
        again = Subject(backend, TTL)
        again.check()


def test_data_that_go_back_are_named(server: ServerProcess) -> None:
    with backend_at(server.port) as backend, client(server.port) as redis:
        subject = Subject(backend, TTL)
        subject.session.put({"k": b"", "l": b""}, timeout=T)
        redis.hincrby("rdzv-plugins/run/state", "rev", -1)  # as a replica that was behind has it
        assert "Redis has lost data of this run" in str(subject.losses.next())


def test_a_wall_clock_that_is_set_ends_nobody(server: ServerProcess) -> None:
    """The run's own clock is Redis', as far as it goes on evenly."""
    with backend_at(server.port) as backend, backend_at(server.port) as other, client(server.port) as redis:
        subjects = [Subject(backend, TTL), Subject(other, TTL)]
        state = "rdzv-plugins/run/state"
        for jump in (-3_600_000, 3_600_000):  # as Redis' clock sees what it has noted before
            before = int(redis.hget(state, "clock"))
            redis.hincrby(state, "seen", jump)
            wait_until(lambda before=before: int(redis.hget(state, "clock")) > before + 1200 * TTL)
        assert all(subject.losses.none for subject in subjects)
        subjects[1].check()


def test_a_redis_that_is_not_there_yet_is_waited_for(tmp_path: Path) -> None:
    with redis_server(tmp_path) as server:
        server.kill()
        assert "connection refused" in str(refused(server.port, timeout=2))
        with backend_at(server.port) as backend:
            server.start_again()
            assert opened(backend).put({"k": b""}, timeout=T)
