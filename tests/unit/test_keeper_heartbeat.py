"""When a keeper counts as standing still, and what an agent does about its workers then."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

from rdzv_launcher.run.agent import events
from rdzv_launcher.run.agent.limits import Limits
from rdzv_launcher.run.agent.loop import Inbox
from rdzv_launcher.run.agent.node_workers import NodeWorkers
from rdzv_launcher.run.keeper import keeper as keeper_module
from rdzv_launcher.run.keeper import template_process
from rdzv_launcher.run.keeper.heartbeat import BEAT_S, SILENT_S, STOPPED_S, Heartbeat, RunningTime
from rdzv_launcher.run.keeper.messages import Lost
from rdzv_launcher.run.workers.worker_group import Worker, WorkerGroup
from rdzv_plugins.errors import KeeperLost
from rdzv_plugins.runtime import SYSTEM


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_time_in_which_the_agent_did_not_run_does_not_count() -> None:
    clock = Clock()
    ran = RunningTime(clock)
    for _ in range(10):
        clock.now += 0.5
        ran()
    assert ran() == 5.0
    clock.now += 3600.0  # SIGSTOP, a machine that sleeps
    assert ran() == 5.0 + 2 * BEAT_S


def test_it_is_asked_once_in_a_beat_and_anything_is_an_answer() -> None:
    clock = Clock()
    beat = Heartbeat(clock)
    assert not beat.due
    clock.now += BEAT_S
    assert beat.due
    beat.asked(True)
    assert not beat.due
    clock.now += 3.0
    assert (beat.due, beat.unanswered) == (False, 3.0)
    beat.heard()
    assert (beat.due, beat.unanswered) == (False, 0.0)


def test_a_question_that_was_not_taken_is_asked_again_and_counts_from_the_first() -> None:
    clock = Clock()
    beat = Heartbeat(clock)
    clock.now += BEAT_S
    beat.asked(False)
    clock.now += 2.0
    assert (beat.due, beat.unanswered) == (True, 2.0)
    beat.asked(True)
    assert (beat.due, beat.unanswered) == (False, 2.0)


def test_limits_of_two_layers_are_nested() -> None:
    """What waits for the other has the longer one: otherwise each blames the other for what it was about to do."""
    assert STOPPED_S < SILENT_S
    assert SILENT_S < keeper_module._ANSWER_S
    assert template_process._ANSWER_S < keeper_module._ANSWER_S
    assert keeper_module._KILL_S < keeper_module.LONGEST_KILL_S < Limits(1).kill_timeout


class Node:
    """Workers of a node whose keeper is a mock."""

    def __init__(self, workers: NodeWorkers, inbox: Inbox, keeper: MagicMock, another: MagicMock) -> None:
        self.workers, self.inbox, self.keeper, self.another = workers, inbox, keeper, another
        self.group = WorkerGroup("default", 0, 1, tuple(Worker(rank, rank, rank, 2, 2) for rank in range(2)))

    def start(self, generation: int) -> dict[int, int]:
        return dict(self.workers.start(SimpleNamespace(generation=generation, workers=self.group.workers)))  # type: ignore[arg-type]

    def heard(self, count: int) -> list[events.Event]:
        return [self.inbox.get(timeout=60) for _ in range(count)]


@pytest.fixture
def node() -> Iterator[Node]:
    starts = tuple(SimpleNamespace(local_rank=rank) for rank in range(2))
    with ExitStack() as steps:
        silent = os.eventfd(0)
        steps.callback(os.close, silent)

        def keeper() -> MagicMock:
            made = MagicMock(fileno=lambda: silent, told=[])
            made.events = lambda: [made.told.pop(0) for _ in made.told[:]]
            made.leftovers.return_value = made.close.return_value = []
            return made

        first, second = keeper(), keeper()
        inbox: Inbox = SYSTEM.SimpleQueue()
        second.start.return_value = {0: 10, 1: 11}
        parts = [MagicMock() for _ in range(4)]
        parts[2].tail.return_value = ()
        fence = MagicMock(close=list)
        workers = NodeWorkers(
            MagicMock(run_id="job", leave_background=False),
            first,
            lambda: second,
            fence,
            parts[0],
            parts[1],
            parts[3],
            inbox,
            lambda *_: starts,
            SYSTEM,
        )
        steps.callback(workers.close)
        yield Node(workers, inbox, first, second)


def test_a_keeper_that_is_lost_while_it_starts_workers_is_a_failure_of_theirs(node: Node) -> None:
    """As at any other moment: it ends no node, and the next start has another keeper."""

    def start(_: object) -> None:
        node.keeper.told.append(Lost("the process that keeps this node's workers (pid 7) was ended by SIGKILL"))
        raise KeeperLost("the process that keeps this node's workers has ended")

    node.keeper.start.side_effect = start
    assert node.start(1) == {}
    assert node.heard(3) == [
        events.WorkerEnded(1, 0, KeeperLost.exit_code),
        events.WorkerEnded(1, 1, KeeperLost.exit_code),
        events.GroupEnded(1),
    ]
    assert "the process that keeps" in node.workers.cause(0, KeeperLost.exit_code).lower()
    assert node.start(2) == {0: 10, 1: 11}
    node.keeper.close.assert_called_once()
    assert "pid 7" not in node.workers.cause(0, -signal.SIGKILL)


def test_the_end_of_killed_workers_is_heard_before_the_limit_for_it(node: Node) -> None:
    """However long it took: the agent would take them for stuck in the kernel otherwise."""
    node.keeper.start.return_value = {0: 10, 1: 11}
    node.start(1)
    node.keeper.kill_all.side_effect = lambda daemons: node.keeper.told.append(Lost("the keeper stood still"))
    node.workers.kill_all()
    assert [type(node.inbox.get_nowait()) for _ in range(3)] == [
        events.WorkerEnded,
        events.WorkerEnded,
        events.GroupEnded,
    ]


def test_what_a_lost_keeper_has_left_holds_up_the_next_round(node: Node) -> None:
    """A worker in uninterruptible sleep holds what the next one would need."""
    node.keeper.start.return_value = {0: 10, 1: 11}
    node.start(1)
    node.keeper.leftovers.return_value = [10]
    node.keeper.kill_all.side_effect = lambda daemons: node.keeper.told.append(Lost("the keeper stood still"))
    node.workers.kill_all()
    assert [type(each) for each in node.heard(2)] == [events.WorkerEnded, events.WorkerEnded]
    assert node.inbox.empty()
    node.keeper.leftovers.return_value = []
    assert node.heard(1) == [events.GroupEnded(1)]
