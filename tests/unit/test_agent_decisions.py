"""What an agent does when exactly, in situations that have a name: ``test_agent_decisions_model`` tries all orders."""

from __future__ import annotations

import signal
from unittest.mock import ANY

import pytest

from rdzv_launcher.run.agent import events, steps
from rdzv_launcher.run.agent.decisions import Decisions, Limits
from rdzv_plugins.errors import EndpointLost, NotNeeded, PeerFailed
from rdzv_plugins.interfaces import Failure

TERM, INT = signal.SIGTERM, signal.SIGINT
ELSEWHERE = Failure(node_rank=1, host="other", global_rank=3, local_rank=1, pid=7, exit_code=9)
FAILED = (events.WorkerEnded(1, 0, 3), events.GroupEnded(1), events.PeersAnswered(lost=False))
"""The worker of the first start fails, and no node was lost."""


class Agent:
    """Decisions, of which each is told at a time of its own."""

    def __init__(self, workers: int = 1, restarts: int = 0, *, started: bool = True) -> None:
        self.machine = Decisions(Limits(workers, restarts, 30.0, 5.0), host="here", pid=1)
        self.now = 100.0
        if started:
            self.tell(events.Joined(0))

    def tell(self, *told: events.Event) -> list[steps.Step]:
        """What comes of these, which happen at the same time."""
        return [step for event in told for step in self.machine.handle(event, self.now)]

    def wait(self) -> list[steps.Step]:
        """Nothing happens until it is time."""
        assert self.machine.wake_at is not None
        self.now = self.machine.wake_at
        return self.tell(events.TimePassed())


def test_a_signal_while_workers_are_stopped_gives_them_no_more_time() -> None:
    agent = Agent(restarts=1)
    agent.tell(events.WorkerEnded(1, 0, 3))
    agent.now += 20
    assert agent.tell(events.SignalArrived(INT)) == [steps.NoteLeaving(ANY), steps.Stop(INT, 10.0, background=True)]
    agent.wait()
    assert agent.wait() == [steps.Kill()]
    assert agent.now == 130.0


def test_what_is_in_the_background_goes_on_through_a_restart_and_has_little_time_when_the_job_fails() -> None:
    """The others wait to be told."""
    agent = Agent(restarts=1)
    assert agent.tell(events.WorkerEnded(1, 0, 3)) == [steps.Report(0, 3), steps.Stop(TERM, 30.0, background=False)]
    agent.tell(*FAILED[1:], events.RestartAllowed(), events.Joined(0), events.WorkerEnded(2, 0, 3))
    agent.tell(events.GroupEnded(2), events.PeersAnswered(lost=False))
    assert agent.tell(events.CauseFound(ELSEWHERE, "how")) == [steps.Stop(TERM, 2.0, background=True)]
    assert agent.wait() == [steps.Kill()]
    assert agent.now == 102.0


@pytest.mark.parametrize(
    ("error", "code", "tells"),
    [
        (EndpointLost("gone"), 68, False),
        (PeerFailed("failed", ELSEWHERE), 9, False),
        (NotNeeded("too late"), 66, False),
        (OSError("odd"), 70, True),
    ],
)
def test_an_error_ends_the_node_with_its_code_and_is_told_if_it_is_news_to_the_others(
    error: Exception, code: int, tells: bool
) -> None:
    told = [steps.NoteLeaving("odd")] if tells else []
    working, joining = Agent(), Agent(started=False)
    assert working.tell(events.Failed(error)) == [*told, steps.Stop(TERM, 30.0, background=True)]
    for end in working.tell(events.GroupEnded(1, True))[-1], joining.tell(events.Failed(error))[-1]:
        assert isinstance(end, steps.End)
        assert (end.exit_code, end.outcome.end) == (code, "lost")
        assert str(error) in end.outcome.reason
        # whoever ends by another's failure does not name itself
        assert ("on here" in end.outcome.reason) is not isinstance(error, PeerFailed)


def test_a_group_that_ends_untold_has_failed() -> None:
    """Its keeper was killed, and it with it."""
    assert Agent(workers=2).tell(events.GroupEnded(1)) == [steps.Report(0, -9), steps.AskPeers()]
