"""A signal at any moment of the agent's loop ends it with 128+n, whatever the code in between makes of it."""

from __future__ import annotations

import logging
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any
from unittest.mock import MagicMock

import pytest

from rdzv_launcher.console import logging_given_back, setup_logging
from rdzv_launcher.run.agent.loop import AgentLoop, Inbox, Settings
from rdzv_launcher.run.agent.state_machine import Limits
from rdzv_launcher.run.agent.steps import End
from rdzv_launcher.run.agent.stopping_signals import Interrupted, StoppingSignals
from rdzv_launcher.run.signals import given_back
from rdzv_plugins.background_queue import BackgroundQueue
from rdzv_plugins.errors import UsageError
from rdzv_plugins.interfaces import Outcome, Request
from rdzv_plugins.registry import PluginHost
from rdzv_plugins.registry.rendezvous import Rendezvous
from rdzv_plugins.runtime import SYSTEM


@pytest.fixture
def inbox() -> Iterator[Inbox]:
    numbers = (signal.SIGTERM, signal.SIGUSR1)
    before = [signal.getsignal(number) for number in numbers]
    yield queue.SimpleQueue()
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


@pytest.fixture
def signals(inbox: Inbox) -> StoppingSignals:
    return StoppingSignals("SIGTERM,SIGUSR1", inbox.put, SYSTEM)


def get_signal() -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    raise AssertionError("it goes on")


def another_error() -> None:
    try:
        get_signal()
    except Interrupted:
        raise UnboundLocalError("as torch's metrics say") from None


def swallowed() -> None:
    with suppress(Interrupted):
        get_signal()


def interrupted() -> None:
    raise KeyboardInterrupt


class Joining:
    """A rendezvous in which ``what`` happens while a node joins."""

    def __init__(self, what: Callable[[], None]) -> None:
        self._what = what
        self.outcomes: list[Outcome] = []
        self.told: list[str] = []

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *_: "run"

    def next_rendezvous(self) -> None:
        self._what()

    def note_leaving(self, reason: str) -> None:
        assert not self.outcomes, "the workers of others fail before that"
        self.told.append(reason)

    def leave(self, outcome: Outcome) -> None:
        os.kill(os.getpid(), signal.SIGTERM)  # the process is ending: this one is ignored
        self.outcomes.append(outcome)


def run(inbox: Inbox, signals: StoppingSignals, rendezvous: Joining) -> End:
    hosted = Rendezvous(rendezvous, PluginHost([]), Request("toy", "run", "", 1, 1, 1))  # type: ignore[arg-type]
    settings = Settings(Limits(1), monitor_interval=0.01)
    return AgentLoop(settings, hosted, MagicMock(), inbox, signals, SYSTEM).run()


@pytest.mark.parametrize("what", [get_signal, swallowed, another_error, interrupted])
def test_signal_whatever_the_code_in_between_makes_of_it(
    inbox: Inbox, signals: StoppingSignals, what: Callable[[], None]
) -> None:
    """At any other moment: ``simulation/test_agent_signals.py``."""
    rendezvous = Joining(what)
    if what is interrupted:
        with pytest.raises(KeyboardInterrupt):
            run(inbox, signals, rendezvous)
        assert ["KeyboardInterrupt" in reason for reason in rendezvous.told] == [True]
    else:
        end = run(inbox, signals, rendezvous)
        assert (end.exit_code, end.signal) == (143, signal.SIGTERM)
    assert [outcome.end for outcome in rendezvous.outcomes] == ["lost"]


def test_what_was_ignored_stays_ignored_and_all_is_given_back(inbox: Inbox) -> None:
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    signals = StoppingSignals("SIGTERM,SIGUSR1,SIGTERM", inbox.put, SYSTEM)
    assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    os.kill(os.getpid(), signal.SIGUSR1)
    assert inbox.empty()
    signals.close()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    for names in ("SIGTERM,NONE", " , ", "SIGKILL"):
        with pytest.raises(UsageError, match="--signals-to-handle"):
            StoppingSignals(names, inbox.put, SYSTEM)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    before = signal.getsignal(signal.SIGALRM)
    with given_back():  # whoever calls a launch gets no alarm afterwards, either
        calling = StoppingSignals("TERM", inbox.put, SYSTEM)
        calling.set_alarm(600.0)
        calling.ignore_all()
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGALRM)) == (signal.SIG_DFL, before)
    assert signal.setitimer(signal.ITIMER_REAL, 0)[0] == 0


def test_a_signal_while_a_line_is_logged_is_not_taken_for_an_error_of_logging(
    signals: StoppingSignals, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = MagicMock(write=lambda _: os.kill(os.getpid(), signal.SIGTERM))
    monkeypatch.setattr(sys, "stderr", screen)
    with logging_given_back():
        setup_logging("rdzv-run", verbose=False)
        with pytest.raises(Interrupted), signals.raising():
            logging.getLogger("rdzv_launcher").info("a line")


@pytest.mark.parametrize("started", [True, False])
def test_a_signal_while_the_thread_of_a_queue_is_started_loses_nothing(
    signals: StoppingSignals, monkeypatch: pytest.MonkeyPatch, started: bool
) -> None:
    delivered: list[int] = []
    items = BackgroundQueue("test", delivered.append, lambda count: None, limit=10)
    start = threading.Thread.start

    def interrupted(thread: threading.Thread) -> None:
        if started:
            start(thread)
        os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", interrupted)
        with pytest.raises(Interrupted), signals.raising():
            items.put(1)
    items.put(2)
    assert items.flush(30)
    assert delivered == [1, 2]
    items.rest(30)
