"""What an agent does in situations that have a name: those of tests/launcher, without processes."""

from __future__ import annotations

import signal
from unittest.mock import ANY

import pytest

from rdzv_launcher.run.agent import events, steps
from rdzv_launcher.run.agent.decisions import Decisions
from rdzv_launcher.run.agent.limits import Limits
from rdzv_plugins.errors import EndpointLost, NodeLost, NotNeeded, PeerFailed, WorkersStuck
from rdzv_plugins.interfaces import Failure, Outcome

TERM, INT, KILL = signal.SIGTERM, signal.SIGINT, signal.SIGKILL
ELSEWHERE = Failure(node_rank=1, host="other", global_rank=3, local_rank=1, pid=7, exit_code=9)
NODE = "the agent on here (pid 1, node 0)"


class Story:
    """Tells an agent one event after the other; all steps so far are in ``done``."""

    def __init__(self, workers: int = 1, restarts: int = 0, grace: float = 0.0, leave_background: bool = False) -> None:
        notices = frozenset({TERM} if grace else ())
        limits = Limits(workers, restarts, 30.0, 5.0, leave_background, preempt_grace=grace, notice_signals=notices)
        self.machine = Decisions(limits, host="here", pid=1)
        self.now = 100.0
        self.group = False
        """Something of the newest generation lives, unless it is in the background, where nothing is."""
        self.done: list[steps.Step] = list(self.machine.begin())

    def tell(self, *told: events.Event) -> list[steps.Step]:
        """What comes of these, which happen at the same time."""
        new: list[steps.Step] = []
        for event in told:
            self.group &= not isinstance(event, events.GroupEnded | events.StartFailed)
            new += self.machine.handle(event, self.now)
            self.group |= any(isinstance(step, steps.Start) for step in new)
            if new and new[-1] == steps.Stop(TERM, ANY, True) and not self.group:
                del new[-1]
                new += self.machine.handle(events.GroupEnded(self.machine.generation, True), self.now)
        self.done += new
        return new

    def wait(self) -> list[steps.Step]:
        """Nothing happens until it is time."""
        assert self.machine.wake_at is not None
        self.now = self.machine.wake_at
        return self.tell(events.TimePassed())

    def working(self) -> Story:
        assert isinstance(self.tell(events.Joined(0))[-1], steps.Start)
        return self

    def ends(self, *codes: int, group: bool = True) -> list[steps.Step]:
        """The workers end, in the order of their ranks."""
        generation = self.machine.generation
        told: list[events.Event] = [events.WorkerEnded(generation, rank, code) for rank, code in enumerate(codes)]
        return self.tell(*told, *([events.GroupEnded(generation, self.machine._background)] if group else []))


def end_of(done: list[steps.Step]) -> tuple[int, Outcome]:
    """The exit code and the outcome, told as it has to be."""
    kill, leave, end = done[-3:]
    assert isinstance(kill, steps.Kill)
    assert isinstance(end, steps.End)
    assert leave == steps.Leave(end.outcome)
    return end.exit_code, end.outcome


HUNG = Failure(node_rank=1, host="other", global_rank=3, local_rank=1, pid=7, exit_code=80, hang="is stopped")


def test_a_hang_is_a_failure_whosever_worker_is_different() -> None:
    """It uses a restart, and without one all nodes end with its code."""
    story = Story(restarts=1).working()
    assert story.tell(events.Hung(1, HUNG)) == [steps.ReportHang(HUNG), steps.Stop(TERM, 30.0)]
    assert story.ends(-15) == [steps.AskPeers()]
    assert isinstance(story.tell(events.PeersAnswered(lost=False))[-1], steps.CountRestart)
    story.tell(events.RestartAllowed(), events.Joined(0))
    assert story.machine.restarts_used == 1
    assert story.tell(events.Hung(1, HUNG)) == [], "of the last generation"
    story.tell(events.Hung(2, HUNG))
    story.ends(-15)
    assert isinstance(story.tell(events.PeersAnswered(lost=False))[-1], steps.FindCause)
    assert end_of(story.tell(events.CauseFound(HUNG, "it hung"))) == (80, Outcome("failed", "it hung", HUNG))


def test_a_job_that_is_done() -> None:
    story = Story(workers=2)
    assert story.done == [steps.Join()]
    assert story.tell(events.Joined(0)) == [steps.Start(1, 0)]
    assert story.ends(0, 0) == [steps.WaitAtBarrier()]
    assert story.tell(events.BarrierOver()) == [steps.Stay()]
    assert end_of(story.tell(events.Stayed())) == (0, Outcome("done"))
    assert story.tell(events.SignalArrived(TERM), events.Failed(EndpointLost("late"))) == []


def test_who_is_done_waits_at_the_barrier_only_when_all_of_its_workers_are() -> None:
    story = Story(workers=2).working()
    assert story.ends(0, group=False) == []
    assert story.tell(events.WorkerEnded(1, 1, 0)) == [steps.WaitAtBarrier()]


def test_what_workers_leave_behind_is_stopped_before_this_node_stays() -> None:
    story = Story().working()
    story.ends(0, group=False)
    assert story.tell(events.BarrierOver()) == [steps.Stop(TERM, 30.0, background=True)]
    assert story.wait() == [steps.Kill()]
    assert story.tell(events.GroupEnded(1)) == [], "of the sessions of the workers alone, and told before"
    assert story.tell(events.GroupEnded(1, background=True)) == [steps.Stay()]
    assert end_of(story.tell(events.Stayed())) == (0, Outcome("done")), "it is told once"


def test_what_is_in_the_background_goes_on_through_a_restart_and_has_little_time_when_the_job_fails() -> None:
    """The others wait to be told."""
    story = Story(restarts=1).working()
    assert story.ends(5)[0:2] == [steps.Report(0, 5), steps.Stop(TERM, 30.0, background=False)]
    story.tell(events.PeersAnswered(lost=False), events.RestartAllowed(), events.Joined(0))
    story.ends(5)
    story.tell(events.PeersAnswered(lost=False))
    story.group = True  # here something is
    assert story.tell(events.CauseFound(ELSEWHERE, "how")) == [steps.Stop(TERM, 2.0, background=True)]
    assert story.wait() == [steps.Kill()]
    assert end_of(story.tell(events.GroupEnded(2, background=True))) == (9, Outcome("failed", "how", ELSEWHERE))


def test_what_is_in_the_background_is_left_if_the_user_wants_that() -> None:
    story = Story(leave_background=True).working()
    story.group = True
    story.ends(0)
    assert story.tell(events.BarrierOver()) == [steps.Stay()]
    assert end_of(story.tell(events.Stayed())) == (0, Outcome("done"))


@pytest.mark.parametrize(("code", "expected"), [(3, 3), (-9, 137), (-11, 139)])
def test_exit_code_is_that_of_the_first_failure_over_all_nodes(code: int, expected: int) -> None:
    story = Story(workers=2).working()
    assert story.ends(5, group=False) == [steps.Report(0, 5), steps.Stop(TERM, 30.0)]
    assert story.tell(events.WorkerEnded(1, 1, -15)) == []
    assert story.tell(events.GroupEnded(1)) == [steps.AskPeers()]
    assert story.tell(events.PeersAnswered(lost=False)) == [steps.FindCause(0, 5)]
    first = Failure(node_rank=1, host="other", global_rank=2, local_rank=0, pid=9, exit_code=code)
    assert end_of(story.tell(events.CauseFound(first, "how"))) == (expected, Outcome("failed", "how", first))


def test_own_failures_use_up_restarts_and_lost_nodes_do_not() -> None:
    story = Story(restarts=1).working()
    story.ends(3)
    assert story.tell(events.PeersAnswered(lost=True))[-1] == steps.Join()
    assert story.tell(events.Joined(1)) == [steps.Start(2, 0)]
    story.ends(3)
    assert story.tell(events.PeersAnswered(lost=False)) == [steps.CountRestart(0, 3)]
    assert story.tell(events.RestartAllowed()) == [steps.Say("restarting the workers: restart 1 of 1"), steps.Join()]
    assert story.tell(events.Joined(1)) == [steps.Start(3, 1)]
    story.ends(3)
    assert story.tell(events.PeersAnswered(lost=False)) == [steps.FindCause(0, 3)]
    assert story.machine.restarts_used == 1


def test_a_restart_waits_unless_others_begin_before() -> None:
    story = Story(restarts=2).working()
    story.ends(3)
    story.tell(events.PeersAnswered(lost=False))
    (said,) = story.tell(events.RestartAllowed(delay=4.0))
    assert said == steps.Say("restarting the workers: restart 1 of 2, in 4 s")
    assert story.machine.wake_at == 104.0
    assert story.wait() == [steps.Join()]
    assert story.machine.wake_at is None
    story.tell(events.Joined(0))
    story.ends(3)
    story.tell(events.PeersAnswered(lost=False), events.RestartAllowed(delay=8.0))
    assert story.tell(events.NodesWait()) == [steps.Join()]
    assert story.tell(events.Joined(0)) == [steps.Start(3, 2)]


def test_a_signal_ends_the_wait_for_a_restart_and_so_does_the_end_of_the_job_elsewhere() -> None:
    for event, code in ((events.SignalArrived(TERM), 143), (events.Failed(PeerFailed("failed", ELSEWHERE)), 9)):
        story = Story(restarts=1).working()
        story.ends(3)
        story.tell(events.PeersAnswered(lost=False), events.RestartAllowed(delay=4.0))
        assert end_of(story.tell(event))[0] == code


def test_a_job_that_may_not_be_restarted_ends_everywhere_with_the_same_code() -> None:
    story = Story(restarts=5).working()
    story.ends(3)
    story.tell(events.PeersAnswered(lost=False))
    code, outcome = end_of(story.tell(events.RestartRefused(ELSEWHERE, "it failed", "it is a loop", 82)))
    assert (code, outcome) == (82, Outcome("failed", "it failed", ELSEWHERE, "it is a loop", 82))
    story = Story(restarts=5).working()
    story.ends(3)
    story.tell(events.PeersAnswered(lost=False))
    assert end_of(story.tell(events.RestartRefused(ELSEWHERE, "it failed", "no budget")))[0] == 9


def test_a_change_of_membership_uses_up_no_restart() -> None:
    story = Story().working()
    assert story.tell(events.NodesWait(), events.NodesWait()) == [steps.Stop(TERM, 30.0)]
    assert story.ends(-15) == [steps.Join()]
    assert story.tell(events.Joined(0)) == [steps.Start(2, 0)]


def test_a_round_that_is_over_while_ranks_are_exchanged_is_followed_by_another() -> None:
    story = Story()
    assert story.tell(events.RoundOver()) == [steps.Join()]
    assert story.tell(events.Joined(0)) == [steps.Start(1, 0)]


def test_a_node_that_was_done_runs_again_with_another() -> None:
    story = Story().working()
    story.ends(0)
    assert story.tell(events.MustRunAgain()) == [steps.Join()]
    assert story.tell(events.Joined(0)) == [steps.Start(2, 0)]


def test_a_lost_node_is_the_cause_not_who_fails_with_it() -> None:
    story = Story().working()
    story.ends(1)
    story.tell(events.PeersAnswered(lost=False))
    assert end_of(story.tell(events.Failed(NodeLost("node 1 was lost")))) == (
        68,
        Outcome("lost", f"{NODE} ended: node 1 was lost"),
    )


def test_a_failed_node_ends_the_job_on_nodes_whose_workers_never_notice() -> None:
    story = Story().working()
    error = PeerFailed("it failed on node 1", ELSEWHERE)
    assert story.tell(events.Failed(error)) == [steps.Stop(TERM, 30.0, background=True)]
    assert end_of(story.ends(-15)) == (9, Outcome("lost", "it failed on node 1"))


@pytest.mark.parametrize("stage", ["joining", "barrier", "asking", "staying"])
def test_an_end_elsewhere_is_heard_while_this_node_waits(stage: str) -> None:
    story = Story()
    if stage != "joining":
        story.working().ends(1 if stage == "asking" else 0)
    if stage == "staying":
        story.tell(events.BarrierOver())
    assert story.machine.stage == stage
    assert end_of(story.tell(events.Failed(PeerFailed("why", ELSEWHERE)))) == (9, Outcome("lost", "why"))


def test_errors_end_with_their_own_codes_and_others_as_faults() -> None:
    assert end_of(Story().tell(events.Failed(NotNeeded("too late"))))[0] == 66
    assert end_of(Story().tell(events.Failed(OSError("odd")))) == (
        70,
        Outcome("lost", "the agent on here (pid 1) ended: odd"),
    )


def test_workers_that_cannot_be_started_end_this_node() -> None:
    story = Story(restarts=2).working()
    assert end_of(story.tell(events.StartFailed(EndpointLost("why"))))[0] == 68


def test_a_spare_ends_with_the_job() -> None:
    story = Story()
    assert story.tell(events.DoneWithout()) == [steps.Stay()]
    assert end_of(story.tell(events.Stayed())) == (0, Outcome("done"))


@pytest.mark.parametrize("number", [TERM, INT])
def test_a_signal_reaches_the_workers_and_the_others_hear_of_it_first(number: signal.Signals) -> None:
    story = Story(restarts=1).working()
    told = story.tell(events.SignalArrived(number))
    assert told == [steps.NoteLeaving(f"it got {number.name}"), steps.Stop(number, 30.0, background=True)]
    assert end_of(story.ends(-number)) == (128 + number, Outcome("lost", f"{NODE} got {number.name}"))


@pytest.mark.parametrize("stage", ["joining", "barrier", "staying", "asking", "finding"])
def test_a_signal_ends_every_wait(stage: str) -> None:
    story = Story()
    if stage != "joining":
        story.working().ends(0 if stage in ("barrier", "staying") else 1)
    if stage == "staying":
        story.tell(events.BarrierOver())
    if stage == "finding":
        story.tell(events.PeersAnswered(lost=False))
    assert story.machine.stage == stage
    assert end_of(story.tell(events.SignalArrived(TERM)))[0] == 143


@pytest.mark.parametrize(
    ("go_on", "says"),
    [(None, ""), (True, ": enough nodes are left to go on"), (False, ": too few nodes are left to go on")],
)
def test_who_is_preempted_says_of_the_others_what_is_known(go_on: bool | None, says: str) -> None:
    story = Story(grace=20.0).working()
    story.tell(events.SignalArrived(TERM))
    if go_on is not None:
        story.tell(events.NoticeAnswered(go_on, saved=False))
    assert story.tell(events.GraceOver())[-1] == steps.Stop(TERM, 18.0, background=True), (
        "not the 30 of workers that are stopped otherwise"
    )
    (said,) = story.wait()
    assert isinstance(said, steps.Say)
    assert "in 16 s they are killed" in said.text
    end = story.ends(-15)[-1]
    assert isinstance(end, steps.End)
    assert str(end.error).startswith("the agent on here (pid 1, node 0) was preempted" + says)
    assert end.outcome.end == ("failed" if go_on is False else "lost")


def test_workers_that_do_not_stop_are_killed_when_their_time_is_over() -> None:
    story = Story().working()
    story.tell(events.SignalArrived(TERM))
    (said,) = story.wait()
    assert story.now == 102.0
    assert said == steps.Say(
        "the workers of this node have not ended yet: in 28 s they are killed, by a second signal at once", True
    )
    assert story.wait() == [steps.Kill()]
    assert story.now == 130.0
    assert end_of(story.ends(-9))[0] == 143


def test_a_second_signal_kills_workers_that_do_not_stop() -> None:
    story = Story().working()
    story.tell(events.SignalArrived(TERM))
    assert story.tell(events.SignalArrived(INT)) == [steps.Kill()]
    assert story.tell(events.SignalArrived(INT)) == []
    assert end_of(story.ends(-9)) == (130, Outcome("lost", f"{NODE} got SIGINT"))


def test_a_signal_while_workers_are_stopped_gives_them_no_more_time() -> None:
    story = Story(restarts=1).working()
    story.ends(3, group=False)
    story.now += 20
    assert story.tell(events.SignalArrived(INT)) == [
        steps.NoteLeaving("it got SIGINT"),
        steps.Stop(INT, 10.0, background=True),
    ]
    story.wait()
    assert story.wait() == [steps.Kill()]
    assert story.now == 130.0
    assert end_of(story.tell(events.GroupEnded(1, background=True)))[0] == 130


def test_workers_that_the_fence_kills_have_not_failed() -> None:
    """Nobody is asked or told of a failure, and no restart is used up, whatever becomes of the session."""
    story = Story(restarts=1).working()
    assert story.tell(events.Fenced()) == [steps.Kill()]
    assert story.ends(-9) == [steps.Join()]
    story.working()
    assert story.machine.restarts_used == 0
    assert story.tell(events.Fenced()) == [steps.Kill()]
    assert story.ends(-9) == [steps.Join()]
    code, outcome = end_of(story.tell(events.Failed(EndpointLost("lost the rendezvous at there:1"))))
    assert (code, outcome.end, outcome.failure) == (68, "lost", None)
    assert "there:1" in outcome.reason


def test_a_worker_in_uninterruptible_sleep_ends_this_node_whatever_restarts_there_are() -> None:
    story = Story(restarts=3).working()
    reason = "worker 0 (pid 7) has been in uninterruptible sleep for 60 s"
    assert story.tell(events.Stuck(0, 7, 60.0)) == [steps.NoteLeaving(reason), steps.Stop(TERM, 30.0, background=True)]
    assert story.wait() == [steps.Kill()]
    code, outcome = end_of(story.wait())
    assert (code, outcome.end) == (71, "lost")
    assert reason in outcome.reason


@pytest.mark.parametrize("lost", [False, True])
def test_no_worker_is_started_beside_one_that_does_not_end(lost: bool) -> None:
    story = Story(workers=2, restarts=3).working()
    story.ends(3, group=False)
    assert story.wait() == [steps.Kill()]
    assert story.wait()[-1] == steps.AskPeers()
    done = story.tell(events.PeersAnswered(lost=lost))
    assert end_of(done)[0] == 71
    assert isinstance(done[-1], steps.End)
    assert isinstance(done[-1].error, WorkersStuck)


def test_a_failure_without_restarts_ends_the_job_also_beside_a_worker_that_does_not_end() -> None:
    story = Story(workers=2).working()
    story.ends(3, group=False)
    story.wait()
    story.wait()
    assert story.tell(events.PeersAnswered(lost=False)) == [steps.FindCause(0, 3)]
    assert end_of(story.tell(events.CauseFound(ELSEWHERE, "how")))[1].end == "failed"


def test_ends_of_an_earlier_generation_are_nothing_to_this_one() -> None:
    story = Story(restarts=1).working()
    story.tell(events.NodesWait())
    story.ends(-15)
    story.tell(events.Joined(0))
    assert story.tell(events.WorkerEnded(1, 0, -15), events.GroupEnded(1)) == []


def test_a_group_that_ends_untold_has_failed() -> None:
    """Its keeper was killed, and it with it."""
    story = Story(workers=2).working()
    assert story.tell(events.GroupEnded(1)) == [steps.Report(0, -9), steps.AskPeers()]
