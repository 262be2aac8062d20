"""A node whose service or network fails, and what has to be true of it: for the tests of ``service``."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

import pytest

from rdzv_plugins.coordination import Session
from rdzv_plugins.errors import ConnectionLost, EndpointUnreachable
from rdzv_plugins.testing.contract.job import ContractJob, split_endpoint
from rdzv_plugins.testing.contract.parts import (
    LONG,
    PATIENCE,
    Losses,
    Recorder,
    assert_says,
    bounded,
    keys_of,
    opened,
    wait_gone,
)

T = PATIENCE
SHORT_S = 0.3
"""The time-out, in seconds, of requests that nobody will answer."""


class Subject:
    """A node whose service or network fails: its session, an ephemeral key, a key that stays, a watch."""

    def __init__(self, job: ContractJob, ttl: float, endpoint: str | None = None) -> None:
        conf = job.not_serving() if endpoint is not None else {}
        self.backend = job.backend(endpoint, conf=conf)
        self.losses, self.told, self.where = Losses(), Recorder(), endpoint or job.endpoint
        self.session = opened(self.backend, ttl, self.losses)
        self.session.put({"mine": b""}, ephemeral=True, timeout=T)
        self.session.put({"kept": b""}, timeout=T)
        self.session.watch("seen/", self.told, timeout=T)

    def ask(self, timeout: float) -> bool:
        """Whether a request is done; False if it was not done in time. Raises ``ConnectionLost`` after the end."""
        try:
            bounded("put()", lambda: self.session.put({"asked": b""}, timeout=timeout), timeout)
        except TimeoutError as error:
            assert_says(error)
            return False
        return True

    def nobody_answers(self, where: str) -> None:
        """Check that every kind of request ends in a ``TimeoutError``, and in time."""
        asks: dict[str, Callable[[], object]] = {
            "put()": lambda: self.session.put({"asked": b""}, timeout=SHORT_S),
            "create()": lambda: self.session.create("created", b"", timeout=SHORT_S),
            "delete()": lambda: self.session.delete(["missing"], timeout=SHORT_S),
            "list()": lambda: self.session.list("", timeout=SHORT_S),
        }
        for what, ask in asks.items():
            try:
                bounded(what, ask, SHORT_S)
            except TimeoutError as error:
                assert_says(error)
            else:
                raise AssertionError(f"{what} was answered by {where}")

    def ask_for(self, seconds: float) -> None:
        """Keep asking for that long while nobody answers, or until the session is lost."""
        end = time.monotonic() + seconds
        with contextlib.suppress(ConnectionLost):
            while time.monotonic() < end:
                self.ask(SHORT_S)

    def settle(self, observer: Session) -> bool:
        """Whether the session lives, once that is known; checks all the consequences."""
        end = time.monotonic() + T
        try:
            while not self.ask(1.0):
                assert time.monotonic() < end, "it is neither answered nor lost, though the service is back"
        except ConnectionLost:
            self.is_over(observer)
            return False
        assert self.losses.none, "on_lost was called, and the session goes on"
        there = keys_of(observer)
        assert {"mine", "kept"} <= there.keys(), f"the session goes on, and of its keys only these are there: {there}"
        observer.put({"seen/fence": b""}, timeout=T)
        try:
            told = self.told.until(lambda events: events and events[-1].key == "seen/fence")
        except AssertionError as error:
            raise AssertionError(f"the session goes on, and its watch does not: {error}") from None
        there = keys_of(observer, "seen/")
        assert {each.key for each in told} >= there.keys(), "the session goes on, and its watch has missed an event"
        assert self.losses.none, "on_lost was called, and the session goes on"
        return True

    def is_over(self, observer: Session | None) -> ConnectionLost:
        """Check that the session is lost, stays so, and everybody is told. Returns the reason given to ``on_lost``."""
        error = self.losses.next()
        assert isinstance(error, ConnectionLost)
        assert str(error), "on_lost was not told why"
        for _ in range(2):
            for ask in (
                lambda: self.session.put({"late": b""}, timeout=T),
                lambda: self.session.list("", timeout=T),
            ):
                with pytest.raises(ConnectionLost, match=r"\w"):
                    bounded("a call after the end of the session", ask)
        if observer is not None:
            wait_gone(observer, "mine")
            assert "late" not in keys_of(observer)
        self.session.close()
        assert self.losses.none, "on_lost was called twice"
        return error

    def comes_back(self, ttl: float) -> None:
        """Check that a session of the same backend can be opened again, as by a node that comes back."""
        again = opened(self.backend, ttl)
        assert again.put({"back": b""}, ephemeral=True, timeout=T) is not None
        assert "back" in keys_of(again)
        again.close()

    def cannot_come_back(self) -> None:
        """Check that opening a session says who is not there, and what to do, within its time-out."""
        with pytest.raises(EndpointUnreachable) as raised:
            bounded("open_session()", lambda: opened_within(self, 1.0), 1.0)
        _, host, port, _ = split_endpoint(self.where) or ("", self.where, "", "")
        assert_says(raised.value, host, str(port))


def opened_within(subject: Subject, timeout: float) -> Session:
    """Open a session with a new time-out, for a node that expects none."""
    return subject.backend.open_session(LONG, on_lost=Losses(), timeout=timeout)
