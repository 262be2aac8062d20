"""Every order in which things can happen to an agent: all states are visited, and what must hold is asserted in each.

A small world of one node with one or two workers: they end well, badly or not at all; the round changes, breaks, is
joined again; the rendezvous fails; signals come, at any time, up to two of them. Time passes where the agent waits.
The first signal may be a notice: workers have time to save then.
"""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Hashable, Iterator
from typing import Any, NamedTuple

import pytest
from kits.unit.many_worlds import shallow, without_collections

from rdzv_launcher.run.agent import events, steps
from rdzv_launcher.run.agent.decisions import Decisions, Limits
from rdzv_plugins.errors import CrashLoop, EndpointLost, NodeLost, PeerFailed, Preempted, WorkersStuck
from rdzv_plugins.interfaces import Failure

FAILURE = Failure(node_rank=1, host="other", global_rank=3, local_rank=0, pid=7, exit_code=-9)
LOST, PEER, GONE = EndpointLost("lost"), PeerFailed("failed elsewhere", FAILURE), NodeLost("gone")
STUCK = WorkersStuck("stuck")
HUNG = Failure(node_rank=1, host="other", global_rank=3, local_rank=0, pid=7, exit_code=80, hang="is stopped")
REFUSED = events.RestartRefused(FAILURE, "it failed", "it is a loop", CrashLoop.exit_code)
ANSWERED = {
    steps.Join: "joining",
    steps.AskPeers: "asking",
    steps.CountRestart: "counting",
    steps.FindCause: "finding",
    steps.WaitAtBarrier: "barrier",
    steps.Stay: "staying",
}
"""The stage in which a step is answered."""
ANSWERS = (
    events.Joined,
    events.RoundOver,
    events.DoneWithout,
    events.PeersAnswered,
    events.RestartAllowed,
    events.RestartRefused,
    events.CauseFound,
    events.BarrierOver,
    events.MustRunAgain,
    events.Stayed,
    events.Failed,
)


class Case(NamedTuple):
    """A node, and how often what can happen to it."""

    workers: int = 1
    restarts: int = 0
    rounds: int = 2
    signals: int = 1
    fenced: int = 0
    stuck: int = 0
    hung: int = 0
    untold: int = 0
    """The group ends, and the ends of its workers are not told."""
    grace: int = 0
    """Seconds for which SIGTERM is a notice; 0: it is none."""


CASES = [
    Case(),
    Case(restarts=1, rounds=3),
    Case(restarts=2, rounds=4),
    Case(signals=2, fenced=1, stuck=1, hung=1, untold=1),
    Case(restarts=1, rounds=3, signals=2, fenced=1, stuck=1, hung=1, untold=1),
    Case(workers=2, signals=2),
    Case(workers=2, restarts=1, rounds=2, signals=2, fenced=1, stuck=1, untold=1),
    Case(grace=60),
    Case(restarts=1, rounds=2, signals=2, fenced=1, stuck=1, untold=1, grace=20),
    Case(workers=2, restarts=1, rounds=2, signals=1, fenced=1, untold=1, grace=60),
]
LARGE = [
    Case(restarts=2, rounds=4, signals=2, fenced=1, stuck=1, hung=2, untold=1),
    Case(workers=2, restarts=1, rounds=3, fenced=1, hung=1, untold=1),
    Case(workers=2, restarts=2, rounds=4, signals=2, fenced=1, stuck=1, untold=1),
    Case(restarts=2, rounds=4, signals=2, fenced=1, stuck=1, untold=1, grace=20),
    Case(workers=2, restarts=1, rounds=3, signals=2, fenced=1, stuck=1, untold=1, grace=60),
]
"""Several seconds of processor time each."""


class World:
    """An agent's decisions, and around them what there really is."""

    def __init__(self, case: Case) -> None:
        self.case = case
        notices = frozenset({signal.SIGTERM} if case.grace else ())
        limits = Limits(case.workers, case.restarts, 30.0, 5.0, preempt_grace=case.grace, notice_signals=notices)
        self.machine = Decisions(limits, host="here", pid=1)
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
        self.last_signal = 0
        self.told: steps.GiveNotice | None = None
        """The workers were told that this node goes."""
        self.go_on = True
        """What the others have said of it."""
        self.left: steps.Leave | None = None
        self.end: steps.End | None = None
        self.errors: tuple[Exception, ...] = ()
        """Those that were told, and WorkersStuck where that is due."""
        self.spent = (0, 0, 0, 0, 0)
        self._do(self.machine.begin())

    def copy(self) -> World:
        other = shallow(self)
        other.machine = shallow(self.machine)
        return other

    def key(self) -> Hashable:
        """Equal for worlds in which the same can happen: times count from now."""
        times = ("_stop_by", "_hint_at", "_join_at", "_kill_by")
        inside = [value for name, value in vars(self.machine).items() if name not in (*times, "_end")]
        inside += [_relative(getattr(self.machine, name), self.now) for name in times]
        mine = [value for name, value in vars(self).items() if name not in ("machine", "now", "end", "left")]
        return (*inside, repr(self.machine._end), *mine, self.left is None)

    def possible(self) -> Iterator[tuple[events.Event, bool]]:
        """What can happen, and whether it is bound to happen, sooner or later, if nothing else does."""
        if self.end is not None:
            return
        machine, (signals, fenced, stuck, hung, untold) = self.machine, self.spent
        if signals < self.case.signals:
            yield events.SignalArrived(signal.SIGTERM if signals == 0 else signal.SIGINT), False
        if self.told is not None:
            yield events.GraceOver(), True
            yield events.NoticeAnswered(go_on=False, saved=False), False
            yield events.NoticeAnswered(go_on=True, saved=True), False
        if machine.wake_at is not None:
            yield events.TimePassed(), True
        for rank in self.running:
            for code in (0, 3) if machine.stage == "working" else (-15,):
                yield events.WorkerEnded(machine.generation, rank, code), machine.stage == "working"
        if self.group and not self.running:
            yield events.GroupEnded(machine.generation, self.background), False
        if self.running and untold < self.case.untold:
            yield events.GroupEnded(machine.generation, self.background), False
        if machine.stage == "working":
            yield events.NodesWait(), False
            yield events.Failed(LOST), False
            yield events.Failed(PEER), False
            if fenced < self.case.fenced:
                yield events.Fenced(), False
            if stuck < self.case.stuck:
                yield events.Stuck(0, 7, 9.0), False
            if hung < self.case.hung:
                yield events.Hung(machine.generation, HUNG), False
            if self.awaited is steps.Start:
                yield events.StartFailed(LOST), False
        if machine.stage == "stopping" and not self.errors:
            yield events.Failed(LOST), False
        if machine.stage == "delaying":
            yield events.NodesWait(), False
            yield events.Failed(PEER), False
        yield from ((event, True) for event in self._answers())

    def _answers(self) -> Iterator[events.Event]:
        if self.awaited in ANSWERED:
            yield events.Failed(PEER)
        if self.awaited is steps.Join:
            if self.machine.generation < self.case.rounds:
                yield events.Joined(0)
            yield events.RoundOver()
            yield events.DoneWithout()
        elif self.awaited is steps.AskPeers:
            yield events.PeersAnswered(lost=True)
            yield events.PeersAnswered(lost=False)
        elif self.awaited is steps.CountRestart:
            yield events.RestartAllowed()
            yield events.RestartAllowed(delay=9.0)
            yield REFUSED
        elif self.awaited is steps.FindCause:
            yield events.CauseFound(FAILURE, "it failed")
            yield events.Failed(GONE)
        elif self.awaited is steps.WaitAtBarrier:
            yield events.BarrierOver()
            yield events.MustRunAgain()
        elif self.awaited is steps.Stay:
            yield events.Stayed()

    def happens(self, event: events.Event) -> None:
        signals, fenced, stuck, hung, untold = self.spent
        stage = self.machine.stage
        untimely = isinstance(event, events.GroupEnded) and bool(self.running)
        fails = isinstance(event, events.WorkerEnded) and event.exit_code != 0
        match event:
            case events.SignalArrived(number):
                self.last_signal, signals = int(number), signals + 1
            case events.Fenced():
                fenced += 1
            case events.Stuck():
                stuck += 1
                self.errors += (STUCK,)
            case events.Hung():
                hung += 1
            case events.WorkerEnded(_, rank, _):
                self.running -= {rank}
            case events.GroupEnded():
                untold += untimely
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
        self.spent = signals, fenced, stuck, hung, untold
        interrupts = isinstance(event, events.SignalArrived | events.GraceOver)
        if isinstance(event, ANSWERS) or interrupts or self.awaited is steps.Start:
            self.awaited = None
        done = self.machine.handle(event, self.now)
        if isinstance(event, events.GraceOver) or event == events.NoticeAnswered(go_on=True, saved=True):
            assert self.machine.stage in ("stopping", "ended", stage), "it is told to stop"
            assert self.machine.stage != "working"
        if stage == "working" and (fails or untimely):
            self.own_failure = True
            assert isinstance(done[0], steps.Report), "a failure is told before anything else is done"
        if isinstance(event, events.Hung):
            self.own_failure = True
            assert isinstance(done[0], steps.ReportHang), "so is a hang"
            assert isinstance(done[1], steps.Stop), "and the workers are stopped for it"
        self._do(done)

    def _do(self, todo: tuple[steps.Step, ...]) -> None:
        for number, step in enumerate(todo):
            assert self.end is None, "nothing follows the end"
            if type(step) in ANSWERED or isinstance(step, steps.Start):
                assert number == len(todo) - 1, "who answers comes last"
                self.awaited = type(step)
            match step:
                case steps.Start(generation, restarts_used):
                    assert not self.group, "no worker is started while one lives"
                    assert not self.last_signal, "nor after a signal"
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
                    assert self.told is None, "once"
                    assert 0 < seconds < self.case.grace
                    assert self.machine.stage == "working"
                    self.told = step
                case steps.Join():
                    assert not self.case.grace or not self.last_signal, "it begins no round that it has to leave"
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
                    self.end = step
                    self._check_end(step)
        self._check()

    def _check(self) -> None:
        """What holds between two events."""
        stage = self.machine.stage
        assert (stage == "ended") == (self.end is not None)
        if stage in ANSWERED.values():
            assert self.awaited is not None
            assert ANSWERED[self.awaited] == stage
        if stage == "stopping":
            assert self.machine.wake_at is not None, "it does not wait for ever"
            assert self.group
            if self.told and not self.machine._killed:
                assert self.machine._kill_by is not None
                assert self.machine.wake_at <= max(self.now, self.machine._kill_by), "within the grace"
        if stage == "working":
            assert self.running
        assert (self.machine.wake_at is None) == (stage not in ("stopping", "delaying"))
        if stage in ("counting", "delaying"):
            assert not self.group
        if stage == "counting":
            assert self.machine.restarts_used < self.case.restarts, "there is a restart to count"

    def _check_end(self, end: steps.End) -> None:
        assert self.left is not None, "the others are told before the end"
        assert self.left.outcome == end.outcome
        if self.case.grace and end.signal is not None:
            preempted = isinstance(end.error, Preempted)
            assert end.exit_code == (Preempted.exit_code if preempted else 130)
            assert preempted == (self.last_signal == signal.SIGTERM)
            if preempted:
                assert end.outcome.end == ("lost" if self.go_on else "failed")
                assert end.outcome.exit_code == Preempted.exit_code, "the same on all nodes"
                return
        if self.last_signal and (end.signal is not None or not self.case.grace):
            assert end.exit_code == 128 + self.last_signal
            assert end.outcome.end == "lost"
            return
        assert end.signal is None
        assert (end.exit_code == 0) == (end.outcome.end == "done")
        if end.outcome.end == "done":
            assert not self.own_failure
            assert not self.errors
        if end.outcome.end == "failed":
            assert self.refused or self.counted == self.case.restarts, "no restart is left"
            assert end.outcome.failure == FAILURE
            assert end.exit_code == (REFUSED.exit_code if self.refused else FAILURE.process_exit_code)
            assert end.outcome.exit_code == (REFUSED.exit_code if self.refused else 0), "the same on all nodes"
            assert bool(end.outcome.why) == self.refused
        if end.outcome.end == "lost":
            assert end.error is not None
            assert end.exit_code == end.error.exit_code
            stuck = isinstance(end.error, WorkersStuck)
            assert (stuck and self.group) or any(type(end.error) is type(error) for error in self.errors)


def _relative(time: float | None, now: float) -> float | None:
    return None if time is None else time - now


class Explorer:
    """Visits all states of a case, breadth first: the shortest story is the one that is told."""

    def __init__(self, case: Case) -> None:
        self.why: list[tuple[int, events.Event | None]] = []
        self.leads_here: list[list[int]] = []
        self.ended: list[int] = []
        self.ends: set[tuple[str, int]] = set()
        world = World(case)
        number: dict[Hashable, int] = {}
        todo: deque[tuple[int, World]] = deque([(self._add(number, world, 0, None), world)])
        while todo:
            state, world = todo.popleft()
            if world.end is not None:
                self.ended.append(state)
                self.ends.add((world.end.outcome.end, world.end.exit_code))
                continue
            self._changes_nothing(world)
            for event, bound in world.possible():
                after = world.copy()
                try:
                    after.happens(event)
                except Exception as error:
                    raise AssertionError(f"{self.story(state)}; {event}: {error!r}") from error
                known = len(self.why)
                found = self._add(number, after, state, event)
                if bound:
                    self.leads_here[found].append(state)
                if found == known:
                    todo.append((found, after))

    def _add(self, number: dict[Hashable, int], world: World, before: int, event: events.Event | None) -> int:
        state = number.setdefault(world.key(), len(self.why))
        if state == len(self.why):
            self.why.append((before, event))
            self.leads_here.append([])
        return state

    @staticmethod
    def _changes_nothing(world: World) -> None:
        """What comes of an earlier generation, or answers what was not asked."""
        late: list[events.Event] = [
            events.WorkerEnded(world.machine.generation - 1, 0, 3),
            events.GroupEnded(world.machine.generation - 1),
            *([events.GroupEnded(world.machine.generation)] if world.background else []),
            events.Hung(world.machine.generation - 1, HUNG),
        ]
        late += [] if world.awaited is steps.AskPeers else [events.PeersAnswered(lost=True)]
        late += [] if world.awaited is steps.CountRestart else [events.RestartAllowed(), REFUSED]
        late += [] if world.awaited is steps.Join else [events.Joined(0)]
        late += [] if world.awaited is steps.Stay else [events.Stayed()]
        late += [] if world.awaited is steps.WaitAtBarrier else [events.BarrierOver(), events.MustRunAgain()]
        late += [] if world.machine.stage == "working" else [events.Fenced()]
        notice = [events.GraceOver(), events.NoticeAnswered(False, True)]
        late += [] if world.case.grace and world.last_signal else notice
        late += [] if world.machine.stage == "working" else [events.Hung(world.machine.generation, HUNG)]
        late += [] if world.machine.stage in ("working", "delaying") else [events.NodesWait()]
        machine = shallow(world.machine)
        for event in late:
            assert machine.handle(event, world.now) == (), event
            assert vars(machine) == vars(world.machine), event

    def story(self, state: int) -> str:
        told: list[str] = []
        while state:
            state, event = self.why[state]
            told.append(str(event))
        return "; ".join(reversed(told))

    def endless(self) -> list[int]:
        """States that what is bound to happen never leads from to an end."""
        reached, todo = set(self.ended), self.ended.copy()
        while todo:
            for state in self.leads_here[todo.pop()]:
                if state not in reached:
                    reached.add(state)
                    todo.append(state)
        return [state for state in range(len(self.why)) if state not in reached]


def name(case: Case) -> str:
    return "-".join(f"{field}{value}" for field, value in case._asdict().items())


@pytest.mark.parametrize(
    "case", [*CASES, *(pytest.param(each, marks=pytest.mark.thorough) for each in LARGE)], ids=name
)
def test_every_order_of_events(case: Case) -> None:
    with without_collections():
        explorer = Explorer(case)
    print(f"{len(explorer.why)} states, {len(explorer.ended)} of them ends")
    assert not explorer.endless(), explorer.story(explorer.endless()[0])
    signalled = 81 if case.grace else 143
    expected: set[tuple[str, Any]] = {("done", 0), ("failed", 137), ("lost", signalled), ("lost", 68), ("lost", 71)}
    expected |= {("failed", 81)} if case.grace else set()
    assert expected <= explorer.ends
    assert (("failed", REFUSED.exit_code) in explorer.ends) == (case.restarts > 0)
    assert {code for end, code in explorer.ends if end == "lost"} <= {68, 71, 137, signalled, 130}
