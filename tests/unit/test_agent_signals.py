"""A signal at any moment of the agent's loop ends it with 128+n, whatever the code in between makes of it."""

from __future__ import annotations

import io
import logging
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
import torch.distributed as dist

from rdzv_launcher.console import logging_given_back, setup_logging
from rdzv_launcher.run.agent.events import GroupEnded, WorkerEnded
from rdzv_launcher.run.agent.limits import Limits
from rdzv_launcher.run.agent.loop import AgentLoop, Inbox, Settings
from rdzv_launcher.run.agent.steps import End
from rdzv_launcher.run.agent.stopping_signals import Interrupted, StoppingSignals
from rdzv_launcher.run.workers.worker_group import WorkerGroup
from rdzv_plugins.assemble.rendezvous import Rendezvous
from rdzv_plugins.background_queue import BackgroundQueue
from rdzv_plugins.errors import UsageError
from rdzv_plugins.host import PluginHost
from rdzv_plugins.interfaces import Outcome, Request
from rdzv_plugins.runtime import SYSTEM

NUMBERS = (signal.SIGTERM, signal.SIGUSR1)


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in NUMBERS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def inbox() -> Inbox:
    return queue.SimpleQueue()


@pytest.fixture
def signals(inbox: Inbox) -> StoppingSignals:
    return StoppingSignals("SIGTERM,SIGUSR1", inbox.put, SYSTEM)


def get_signal() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def at_once() -> None:
    get_signal()
    raise AssertionError("it goes on")


def another_error() -> None:
    try:
        get_signal()
    except Interrupted:
        raise UnboundLocalError("as torch's metrics say") from None


def swallowed() -> None:
    try:
        get_signal()
    except Interrupted:
        return


ANSWERS = {
    "get_run_id": "run",
    "next_rendezvous": SimpleNamespace(store=dist.HashStore(), rank=0, world_size=1, bootstrap_store_info=None),
    "num_nodes_waiting": 0,
    "working_peers": (),
    "lost_peers": (),
}


class Alone:
    """The rendezvous of a node that is alone; ``at`` names the method in which ``what`` happens, once."""

    def __init__(self, at: str, what: Callable[[], None]) -> None:
        self._at, self._what = at, what
        self.outcomes: list[Outcome] = []
        self.told: list[str] = []

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def answer(*_: object) -> Any:
            if name == self._at:
                self._at = ""
                self._what()
            return ANSWERS.get(name)

        return answer

    def leave(self, outcome: Outcome) -> None:
        get_signal()  # the process is ending: this one is ignored
        self.outcomes.append(outcome)


class Given:
    """Workers that end as they are told to: with ``code`` when started, or by a signal."""

    def __init__(self, inbox: Inbox, code: int | None, on_start: Callable[[], None]) -> None:
        self._inbox, self._code, self._on_start = inbox, code, on_start
        self._generation, self._runs = 0, False
        self.tail = self.close = lambda *_: ()
        self.cause = lambda *_: ""

    def start(self, group: WorkerGroup) -> Mapping[int, int]:
        self._generation, self._runs = group.generation, True
        self._on_start()
        if self._code is not None:
            self._end(self._code)
        return {0: 7}

    def stop(self, number: signal.Signals, seconds: float, background: bool = False) -> None:
        self._end(-number)
        if background:
            self._inbox.put(GroupEnded(self._generation, True))

    def kill_all(self) -> None:
        self._end(-signal.SIGKILL)

    def _end(self, code: int) -> None:
        if self._runs:
            self._inbox.put(WorkerEnded(self._generation, 0, code))
            self._inbox.put(GroupEnded(self._generation))
            self._runs = False


def run(
    inbox: Inbox,
    signals: StoppingSignals,
    rendezvous: Alone,
    code: int | None,
    *,
    restarts: int = 0,
    on_start: Callable[[], None] = lambda: None,
) -> End:
    workers = Given(inbox, code, on_start)
    hosted = Rendezvous(rendezvous, PluginHost([]), Request("toy", "run", "", 1, 1, 1))  # type: ignore[arg-type]
    settings = Settings(Limits(1, restarts), monitor_interval=0.01)
    return AgentLoop(settings, hosted, workers, inbox, signals, SYSTEM).run()


@pytest.mark.parametrize(
    ("at", "code", "what"),
    [
        ("next_rendezvous", None, at_once),
        ("next_rendezvous", None, swallowed),
        ("next_rendezvous", None, another_error),
        ("num_nodes_waiting", None, another_error),
        ("note_done", 0, swallowed),
        ("stay", 0, another_error),
        ("peer_lost", 3, swallowed),
        ("lost_peers", 3, another_error),
        ("first_failure", 3, swallowed),
        ("count_restart", 3, another_error),
    ],
)
def test_signal_in_every_question(
    inbox: Inbox, signals: StoppingSignals, at: str, code: int | None, what: Callable[[], None]
) -> None:
    rendezvous = Alone(at, what)
    end = run(inbox, signals, rendezvous, code, restarts=int(at == "count_restart"))
    assert (end.exit_code, end.signal) == (143, signal.SIGTERM)
    assert [outcome.end for outcome in rendezvous.outcomes] == ["lost"]


def test_second_signal_while_the_others_are_told_of_the_first(inbox: Inbox, signals: StoppingSignals) -> None:
    def both() -> None:
        os.kill(os.getpid(), signal.SIGUSR1)
        raise AssertionError("it goes on")

    rendezvous = Alone("note_leaving", both)
    assert run(inbox, signals, rendezvous, None, on_start=get_signal).exit_code == 128 + signal.SIGUSR1
    assert len(rendezvous.outcomes) == 1


def test_what_is_no_error_kills_the_workers_and_is_told(inbox: Inbox, signals: StoppingSignals) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    class Told(Alone):
        def note_leaving(self, reason: str) -> None:
            assert not self.outcomes, "the workers of others fail before that"
            self.told.append(reason)

    rendezvous = Told("num_nodes_waiting", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(inbox, signals, rendezvous, None)
    assert [outcome.end for outcome in rendezvous.outcomes] == ["lost"]
    assert ["KeyboardInterrupt" in reason for reason in rendezvous.told] == [True]


def test_what_was_ignored_stays_ignored(inbox: Inbox) -> None:
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    signals = StoppingSignals("SIGTERM,SIGUSR1,SIGTERM", inbox.put, SYSTEM)
    assert signals.handled == (signal.SIGTERM,)
    os.kill(os.getpid(), signal.SIGUSR1)
    assert inbox.empty()
    signals.close()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_signal_outside_of_a_wait_is_only_noted(inbox: Inbox, signals: StoppingSignals) -> None:
    get_signal()
    assert signals.pending
    with pytest.raises(Interrupted), signals.raising():
        logging.error("it goes on")
    inbox.get_nowait()
    signals.taken()
    with signals.raising():
        assert not signals.pending


@pytest.mark.parametrize(
    ("names", "said"), [("SIGTERM,NONE", "no signal 'NONE'"), (" , ", "is empty"), ("SIGKILL", "")]
)
def test_names_that_cannot_be(inbox: Inbox, names: str, said: str) -> None:
    with pytest.raises(UsageError, match=f"--signals-to-handle.*{said}"):
        StoppingSignals(names, inbox.put, SYSTEM)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


class SignalledStream(io.StringIO):
    """The signal comes while something is written to it for the first time."""

    def write(self, text: str) -> int:
        if not self.tell():
            super().write(text)
            get_signal()
        return super().write(text)


def test_a_signal_while_a_line_is_logged_is_not_taken_for_an_error_of_logging(
    signals: StoppingSignals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", SignalledStream())
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
        get_signal()

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", interrupted)
        with pytest.raises(Interrupted), signals.raising():
            items.put(1)
    items.put(2)
    assert items.flush(30)
    assert delivered == [1, 2]
    items.rest(30)
