"""Every order in which things can happen to an agent: all states are visited, and what must hold is asserted in each.

A small world of one node with one or two workers: they end well, badly or not at all; the round changes, breaks, is
joined again; the rendezvous fails; signals come, at any time, up to two of them. Time passes where the agent waits.
The first signal may be a notice: workers have time to save then. At the end, what happens when exactly.
"""

from __future__ import annotations

import gc
import signal
from collections import defaultdict, deque
from collections.abc import Hashable, Iterator
from typing import Any, NamedTuple, TypeVar
from unittest.mock import ANY

import pytest

from rdzv_launcher.run.agent import events, steps
from rdzv_launcher.run.agent.state_machine import AgentStateMachine, Limits
from rdzv_plugins.errors import CrashLoop, EndpointLost, NodeLost, NotNeeded, PeerFailed, Preempted, WorkersStuck
from rdzv_plugins.interfaces import Failure

T = TypeVar("T")
TERM, INT = signal.SIGTERM, signal.SIGINT
FAILURE = Failure(node_rank=1, host="other", global_rank=3, local_rank=0, pid=7, exit_code=-9)
LOST, PEER = EndpointLost("lost"), PeerFailed("failed elsewhere", FAILURE)
HUNG = Failure(node_rank=1, host="other", global_rank=3, local_rank=0, pid=7, exit_code=80, hang="is stopped")
REFUSED = events.RestartRefused(FAILURE, "it failed", "it is a loop", CrashLoop.exit_code)
ANSWERS: dict[type[steps.Step], tuple[str, tuple[events.Event, ...]]] = {
    steps.Join: ("joining", (events.Joined(0), events.RoundOver(), events.DoneWithout())),
    steps.AskPeers: ("asking", (events.PeersAnswered(lost=True), events.PeersAnswered(lost=False))),
    steps.CountRestart: ("counting", (events.RestartAllowed(), events.RestartAllowed(delay=9.0), REFUSED)),
    steps.FindCause: ("finding", (events.CauseFound(FAILURE, "it failed"), events.Failed(NodeLost("gone")))),
    steps.WaitAtBarrier: ("barrier", (events.BarrierOver(), events.MustRunAgain())),
    steps.Stay: ("staying", (events.Stayed(),)),
}
"""The stage in which a step is answered, and how."""
IN_WORK = (events.NodesWait(), events.Failed(LOST), events.Failed(PEER))
ONCE: dict[str, events.Event] = {"fenced": events.Fenced(), "stuck": events.Stuck(0, 7, 9.0)}


class Case(NamedTuple):
    """A node, and how often what can happen to it."""

    workers: int = 1
    restarts: int = 0
    rounds: int = 2
    signals: int = 1
    once: str = ""
    """What may happen once; ``untold``: the group ends, and the ends of its workers are not told."""
    grace: int = 0
    """Seconds for which SIGTERM is a notice; 0: it is none."""


CASES = [
    Case(restarts=1, rounds=3),
    Case(restarts=2, rounds=4),
    Case(restarts=1, rounds=3, signals=2, once="fenced stuck hung untold"),
    Case(workers=2, signals=2),
    Case(workers=2, restarts=1, signals=2, once="fenced stuck untold"),
    Case(restarts=1, signals=2, once="fenced stuck untold", grace=20),
    Case(workers=2, restarts=1, once="fenced untold", grace=60),
]
LARGE = [
    Case(restarts=2, rounds=4, signals=2, once="fenced stuck hung untold"),
    Case(workers=2, restarts=2, rounds=4, signals=2, once="fenced stuck untold"),
    Case(workers=2, restarts=1, rounds=3, signals=2, once="fenced stuck untold", grace=60),
]
"""Several seconds of processor time each."""


def shallow(value: T) -> T:
    """As ``copy.copy`` copies a plain object, in a quarter of the time."""
    twin = object.__new__(type(value))
    twin.__dict__ = value.__dict__.copy()
    return twin


class World:
    """An agent's decisions, and around them what there really is."""

    def __init__(self, case: Case) -> None:
        self.case = case
        notices = frozenset({TERM} if case.grace else ())
        limits = Limits(case.workers, case.restarts, 30.0, 5.0, preempt_grace=case.grace, notice_signals=notices)
        self.machine = AgentStateMachine(limits, host="here", pid=1)
        self.now = 0.0
        self.running: frozenset[int] = frozenset()
        self.group = False
        """Something of the newest generation lives."""
        self.background = False
        """What is left in sessions of its own is being stopped, too."""
        self.killed = False
        self.awaited: type[steps.Step] | None = None
        self.counted = 0
        """Failures that were this node's own, and followed by a restart."""
        self.own_failure = False
        """The newest generation has failed here."""
        self.refused = False
        """The rest of the job has no restart for it."""
        self.signals: tuple[int, ...] = ()
        self.once = frozenset(case.once.split())
        self.told = False
        """The workers were told that this node goes."""
        self.go_on = True
        """What the others have said of it."""
        self.left: steps.Leave | None = None
        self.end: steps.End | None = None
        self.errors: tuple[Exception, ...] = ()
        """Those that were told, and WorkersStuck where that is due."""
        self._do(self.machine.begin())

    def copy(self) -> World:
        other = shallow(self)
        other.machine = shallow(self.machine)
        return other

    def key(self) -> Hashable:
        """Equal for worlds in which the same can happen: times count from now."""
        times = ("_stop_by", "_hint_at", "_join_at", "_kill_by")
        inside = [value for name, value in vars(self.machine).items() if name not in (*times, "_end")]
        left = [(at := getattr(self.machine, name)) is not None and at - self.now for name in times]
        mine = [value for name, value in vars(self).items() if name not in ("machine", "now", "end", "left")]
        return (*inside, *left, repr(self.machine._end), *mine, self.left is None)

    def possible(self) -> Iterator[tuple[events.Event, bool]]:
        """What can happen, and whether it is bound to happen, sooner or later, if nothing else does."""
        if self.end is not None:
            return
        machine, works = self.machine, self.machine.stage == "working"
        if len(self.signals) < self.case.signals:
            yield events.SignalArrived(INT if self.signals else TERM), False
        if self.told:
            yield events.GraceOver(), True
            yield events.NoticeAnswered(go_on=False, saved=False), False
            yield events.NoticeAnswered(go_on=True, saved=True), False
        if machine.wake_at is not None:
            yield events.TimePassed(), True
        for rank in self.running:
            for code in (0, 3) if works else (-15,):
                yield events.WorkerEnded(machine.generation, rank, code), works
        if self.group and (not self.running or "untold" in self.once):
            yield events.GroupEnded(machine.generation, self.background), False
        if works:
            yield from ((event, False) for event in IN_WORK)
            yield from ((event, False) for kind, event in ONCE.items() if kind in self.once)
            if "hung" in self.once:
                yield events.Hung(machine.generation, HUNG), False
            if self.awaited is steps.StartWorkers:
                yield events.StartFailed(LOST), False
        if machine.stage == "stopping" and not self.errors:
            yield events.Failed(LOST), False
        if machine.stage == "delaying":
            yield events.NodesWait(), False
            yield events.Failed(PEER), False
        if self.awaited in ANSWERS:
            yield events.Failed(PEER), True
            for event in ANSWERS[self.awaited][1]:
                if not isinstance(event, events.Joined) or machine.generation < self.case.rounds:
                    yield event, True

    def happens(self, event: events.Event) -> None:
        stage = self.machine.stage
        untimely = isinstance(event, events.GroupEnded) and bool(self.running)
        fails = stage == "working" and (untimely or (isinstance(event, events.WorkerEnded) and event.exit_code != 0))
        match event:
            case events.SignalArrived(number):
                self.signals += (int(number),)
            case events.Fenced():
                self.once -= {"fenced"}
            case events.Stuck():
                self.once -= {"stuck"}
                self.errors += (WorkersStuck("stuck"),)
            case events.Hung():
                self.once -= {"hung"}
            case events.WorkerEnded(_, rank, _):
                self.running -= {rank}
            case events.GroupEnded():
                self.once -= {"untold"} if untimely else set()
                self.running, self.group = frozenset(), False
            case events.StartFailed(error):
                self.errors += (error,)
                self.running, self.group = frozenset(), False
            case events.Failed(error):
                if stage != "stopping" or self.machine._next != "leave":  # then the end is known
                    self.errors += (error,)
            case events.DoneWithout():
                self.own_failure = False  # others did without this node
            case events.TimePassed():
                assert self.machine.wake_at is not None
                self.now = self.machine.wake_at
            case events.RestartAllowed():
                self.counted += 1
            case events.NoticeAnswered(go_on, _):
                self.go_on = go_on
            case events.RestartRefused():
                self.refused = True
        answers = self.awaited in ANSWERS and (event in ANSWERS[self.awaited][1] or isinstance(event, events.Failed))
        if answers or isinstance(event, events.SignalArrived | events.GraceOver) or self.awaited is steps.StartWorkers:
            self.awaited = None
        done = self.machine.handle(event, self.now)
        if isinstance(event, events.GraceOver) or event == events.NoticeAnswered(go_on=True, saved=True):
            assert self.machine.stage in {"stopping", "ended", stage} - {"working"}, "it is told to stop"
        if fails:
            self.own_failure = True
            assert isinstance(done[0], steps.ReportFailure), "a failure is told before anything else is done"
        if isinstance(event, events.Hung):
            self.own_failure = True
            assert [type(step) for step in done[:2]] == [steps.ReportHang, steps.Stop], "so is a hang"
        self._do(done)

    def _do(self, todo: tuple[steps.Step, ...]) -> None:
        for number, step in enumerate(todo):
            assert self.end is None, "nothing follows the end"
            if type(step) in ANSWERS or isinstance(step, steps.StartWorkers):
                assert number == len(todo) - 1, "who answers comes last"
                self.awaited = type(step)
            match step:
                case steps.StartWorkers(generation, restarts_used):
                    assert not self.group, "no worker is started while one lives"
                    assert not self.signals, "nor after a signal"
                    assert generation == self.machine.generation
                    assert restarts_used == self.counted <= self.case.restarts
                    self.running, self.group = frozenset(range(self.case.workers)), True
                    self.own_failure = self.background = self.killed = False
                case steps.Kill() if self.machine.stage == "stopping":
                    self.killed = True
                case steps.Stop(_, _, background):
                    assert background >= self.background
                    if background and not self.background:
                        self.group = self.background = True
                case steps.GiveNotice(_, seconds):
                    assert not self.told, "once"
                    assert 0 < seconds < self.case.grace
                    assert self.machine.stage == "working"
                    self.told = True
                case steps.Join():
                    assert not self.case.grace or not self.signals, "it begins no round that it has to leave"
                    assert not self.group, "no round is joined while a worker lives"
                case steps.WaitAtBarrier():
                    assert not self.running
                    assert not self.own_failure
                case steps.Leave():
                    assert self.left is None
                    told = self.machine.generation == 0 or self.background
                    assert told or self.killed or self.machine._kill_by is not None, "what is in the background as well"
                    self.left = step
                case steps.End():
                    assert self.left is not None, "the others are told before the end"
                    assert self.left.outcome == step.outcome
                    self.end = step
                    self._check_end(step)
        self._check()

    def _check(self) -> None:
        """What holds between two events."""
        stage = self.machine.stage
        assert (stage == "ended") == (self.end is not None)
        if stage in [stage for stage, _ in ANSWERS.values()]:
            assert self.awaited is not None
            assert ANSWERS[self.awaited][0] == stage
        if stage == "stopping":
            assert self.machine.wake_at is not None, "it does not wait for ever"
            assert self.group
            if self.told and not self.machine._killed:
                assert self.machine._kill_by is not None
                assert self.machine.wake_at <= max(self.now, self.machine._kill_by), "within the grace"
        assert self.running or stage != "working"
        assert (self.machine.wake_at is None) == (stage not in ("stopping", "delaying"))
        assert not self.group or stage not in ("counting", "delaying")
        assert self.machine.restarts_used < self.case.restarts or stage != "counting", "there is a restart to count"

    def _check_end(self, end: steps.End) -> None:
        how, code = end.outcome.end, end.exit_code
        preempted = self.case.grace and isinstance(end.error, Preempted)
        if preempted or end.signal is not None or (self.signals and not self.case.grace):
            assert code == (Preempted.exit_code if preempted else 128 + self.signals[-1])
            assert how == ("failed" if preempted and not self.go_on else "lost")
            assert end.outcome.exit_code == (Preempted.exit_code if preempted else 0), "the same on all nodes"
            assert not preempted or self.signals == (TERM,)
            return
        assert (code == 0) == (how == "done")
        if how == "done":
            assert not self.own_failure
            assert not self.errors
        elif how == "failed":
            assert self.refused or self.counted == self.case.restarts, "no restart is left"
            assert end.outcome.failure == FAILURE
            assert code == (REFUSED.exit_code if self.refused else FAILURE.process_exit_code)
            assert end.outcome.exit_code == (REFUSED.exit_code if self.refused else 0), "the same on all nodes"
            assert bool(end.outcome.why) == self.refused
        else:
            assert end.error is not None
            assert code == end.error.exit_code
            stuck = isinstance(end.error, WorkersStuck)
            assert (stuck and self.group) or any(type(end.error) is type(error) for error in self.errors)

    def changes_nothing(self) -> None:
        """What comes of an earlier generation, or answers what was not asked."""
        machine, stage = shallow(self.machine), self.machine.stage
        late: list[events.Event] = [
            events.WorkerEnded(machine.generation - 1, 0, 3),
            events.GroupEnded(machine.generation - 1),
            events.Hung(machine.generation - 1, HUNG),
            *([events.GroupEnded(machine.generation)] if self.background else []),
            *([] if stage == "working" else [events.Fenced(), events.Hung(machine.generation, HUNG)]),
            *([] if stage in ("working", "delaying") else [events.NodesWait()]),
            *([] if self.case.grace and self.signals else [events.GraceOver(), events.NoticeAnswered(False, True)]),
        ]
        for step, (_, answers) in ANSWERS.items():
            late += [each for each in answers if step is not self.awaited and not isinstance(each, events.Failed)]
        for event in late:
            assert machine.handle(event, self.now) == (), event
            assert vars(machine) == vars(self.machine), event


class Explorer:
    """Visits all states of a case, breadth first: the shortest story is the one that is told."""

    def __init__(self, case: Case) -> None:
        self.why: list[tuple[int, events.Event | None]] = [(0, None)]
        self.bound: defaultdict[int, list[int]] = defaultdict(list)
        """From which states what is bound to happen leads here."""
        self.ended: dict[int, tuple[str, int]] = {}
        world = World(case)
        number = {world.key(): 0}
        todo = deque([(0, world)])
        while todo:
            state, world = todo.popleft()
            if world.end is not None:
                self.ended[state] = world.end.outcome.end, world.end.exit_code
                continue
            world.changes_nothing()
            for event, bound in world.possible():
                after = world.copy()
                try:
                    after.happens(event)
                except Exception as error:
                    raise AssertionError(f"{self.story(state)}; {event}: {error!r}") from error
                found = number.setdefault(after.key(), len(self.why))
                if bound:
                    self.bound[found].append(state)
                if found == len(self.why):
                    self.why.append((state, event))
                    todo.append((found, after))

    def story(self, state: int) -> str:
        told: list[str] = []
        while state:
            state, event = self.why[state]
            told.append(str(event))
        return "; ".join(reversed(told))

    def endless(self) -> list[str]:
        """The stories that what is bound to happen never leads from to an end."""
        reached, todo = set(self.ended), list(self.ended)
        while todo:
            new = set(self.bound[todo.pop()]) - reached
            reached |= new
            todo += new
        return [self.story(state) for state in range(len(self.why)) if state not in reached]


@pytest.mark.parametrize(
    "case",
    [*CASES, *(pytest.param(each, marks=pytest.mark.thorough) for each in LARGE)],
    ids=lambda case: "-".join(map(str, case)),
)
def test_every_order_of_events(case: Case) -> None:
    gc.disable()  # worlds are no garbage: to look at all of them again and again takes a fifth of the time
    try:
        explorer = Explorer(case)
    finally:
        gc.enable()
    assert explorer.endless() == []
    ends, signalled = set(explorer.ended.values()), Preempted.exit_code if case.grace else 143
    expected: set[tuple[str, Any]] = {("done", 0), ("failed", 137), ("lost", signalled), ("lost", 68), ("lost", 71)}
    assert expected | ({("failed", 81)} if case.grace else set()) <= ends
    assert (("failed", REFUSED.exit_code) in ends) == (case.restarts > 0)
    assert {code for end, code in ends if end == "lost"} <= {68, 71, 137, signalled, 130}


class Agent:
    """Decisions, of which each is told at a time of its own."""

    def __init__(self, workers: int = 1, restarts: int = 0, *, started: bool = True) -> None:
        self.machine = AgentStateMachine(Limits(workers, restarts, 30.0, 5.0), host="here", pid=1)
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
    assert agent.tell(events.WorkerEnded(1, 0, 3)) == [
        steps.ReportFailure(0, 3),
        steps.Stop(TERM, 30.0, background=False),
    ]
    agent.tell(events.GroupEnded(1), events.PeersAnswered(lost=False), events.RestartAllowed(), events.Joined(0))
    agent.tell(events.WorkerEnded(2, 0, 3), events.GroupEnded(2), events.PeersAnswered(lost=False))
    assert agent.tell(events.CauseFound(FAILURE, "how")) == [steps.Stop(TERM, 2.0, background=True)]
    assert agent.wait() == [steps.Kill()]
    assert agent.now == 102.0


@pytest.mark.parametrize(
    ("error", "code", "tells"),
    [
        (EndpointLost("gone"), 68, False),
        (PEER, 137, False),
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
    """Its supervisor was killed, and it with it."""
    assert Agent(workers=2).tell(events.GroupEnded(1)) == [steps.ReportFailure(0, -9), steps.AskPeers()]
