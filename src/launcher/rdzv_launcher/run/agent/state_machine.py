"""What an agent does and when: a state machine. No processes, no sockets, no threads, no clock of its own.

Events are passed to ``handle``, each with the caller's monotonic time in seconds; it returns steps, to be taken in
order. An agent is in one of these stages:

1. *joining* a round, and exchanging ranks in it;
2. *working*: its workers run; if the job hangs, that is a failure, no matter whose worker is the odd one out;
3. *stopping*: they are being stopped, for what comes next (``_Next``); what is left of them holds up everything;
4. *asking*, after a failure: was a node lost? Then it is not a failure of this node, and uses up no restart;
5. *counting* a restart: is there one for the job, and when? *delaying* it;
6. *finding* the first failure over all nodes, when no restart is left;
7. at the *barrier*: its workers have succeeded, but those of other nodes have not yet;
8. *staying*: all is done, but others still need what this node serves;
9. *ended*. On the way there, the others are told how this node ends, once.

Four things hold in every order of events, and tests/unit/test_agent_decisions.py tries all of them: no worker is
started while one of the last generation lives, or anything in its session; a restart is used up only by a failure of
this node itself, and never more restarts than there are; the others are told of a failure before anything else is done
about it; and a signal ends this node with 128+n, whatever else is going on.

With ``Limits.preempt_grace`` some signals are a notice: the node is about to be taken away. Running workers are told
first, and have time to save; when that time is over or they have saved, they are stopped, and the node ends with 81. It
begins no further round.
"""

from __future__ import annotations

import math
from typing import Literal

from msgspec import Struct

from rdzv_launcher.run.agent import events, steps
from rdzv_launcher.run.agent.events import Event
from rdzv_launcher.run.agent.steps import LEFT, ExitOutcomes, Step
from rdzv_launcher.run.supervisor.supervisor import LONGEST_KILL_S
from rdzv_plugins.errors import EndpointUnreachable, Preempted, RendezvousClosed
from rdzv_plugins.interfaces import Outcome
from rdzv_plugins.runtime import Signals

_STOP_S, _LEAVE_S = 10.0, 2.0
"""The most time of a grace that is kept for ending the workers, and for telling the others."""


class Limits(Struct, frozen=True):
    """The limits of one agent. Times are in seconds."""

    workers: int
    """The number of workers of this node."""
    max_restarts: int = 0
    shutdown_timeout: float = 30.0
    """How long workers may take to end when told to; after that they are killed."""
    kill_timeout: float = LONGEST_KILL_S + 5.0
    """How long killed workers may take to end, longer than it takes to end a supervisor that stands still, too. After
    that they are stuck in the kernel.
    """
    leave_background: bool = False
    """What workers have started in sessions of its own is left to itself when this node ends."""
    preempt_grace: float = 0.0
    """How long this node has left from a notice on; 0: there are no notices."""
    notice_signals: frozenset[Signals] = frozenset()
    """The signals that count as a notice, if there is a grace."""

    @property
    def time_to_end(self) -> float:
        """Seconds from a notice until the remaining workers are killed; the rest is for telling the others."""
        return self.preempt_grace - min(_LEAVE_S, self.preempt_grace / 10)

    @property
    def time_to_save(self) -> float:
        """Seconds from a notice in which workers may save; after that they have to be told to end."""
        return self.time_to_end - min(self.shutdown_timeout, _STOP_S, self.preempt_grace / 5)


Stage = Literal[
    "joining", "working", "stopping", "asking", "counting", "delaying", "finding", "barrier", "staying", "ended"
]
_Next = Literal["join", "ask", "stay", "leave"]
"""What follows when the workers have ended."""

_Group = Literal["gone", "lives", "stuck"]

_HINT_S = 2.0
"""Most workers that end when told to have done so by then."""
_FAILED_S = 2.0
"""How long a background process may take to end when the job has failed: the other nodes wait to be told."""


class AgentStateMachine:
    """One agent's decisions, from ``begin`` to the step ``End``. Not thread-safe.

    All attributes are immutable values, so a shallow copy is a full copy.
    """

    def __init__(self, limits: Limits, *, host: str, pid: int) -> None:
        """``host`` and ``pid`` identify this agent to the others."""
        self._limits = limits
        self._ends = ExitOutcomes(host, pid)
        self._node_rank: int | None = None
        self.stage: Stage = "joining"
        self._next: _Next = "join"
        self.generation = 0
        """The number of the newest start on this node; 0 before the first."""
        self.restarts_used = 0
        """How many of --max-restarts this node has used."""
        self.running: frozenset[int] = frozenset()
        """The workers whose end has not been reported, by local rank."""
        self._group: _Group = "gone"
        """The newest generation, with everything in its sessions; "stuck": it was killed, and does not end."""
        self._background = False
        """What workers have started in sessions of its own is stopped, too, or has been."""
        self._failure: tuple[int, int] | None = None
        """The first failure of the newest generation on this node: (local rank, exit code)."""
        self._end: steps.End | None = None
        """How this node ends, once that is decided."""
        self._kill_by: float | None = None
        """When the remaining workers are killed, if there was a notice."""
        self._others_go_on: bool | None = None
        """Whether enough nodes are left, according to the others; None: nobody has said."""
        self._killed = False
        self._stop_by: float | None = None
        self._hint_at: float | None = None
        self._join_at: float | None = None
        """When the delay before a restart is over."""

    @property
    def wake_at(self) -> float | None:
        """When to send ``TimePassed``, unless something happens before; None: nothing is timed."""
        times = [time for time in (self._stop_by, self._hint_at, self._join_at) if time is not None]
        return min(times, default=None)

    def begin(self) -> tuple[Step, ...]:
        return (steps.Join(),)

    def handle(self, event: Event, now: float) -> tuple[Step, ...]:
        """What to do about an event. One that comes too late to matter changes nothing."""
        if self.stage == "ended":
            return ()
        match event:
            case events.SignalArrived(number):
                return self._on_signal(number, now)
            case events.NoticeAnswered(go_on, saved):
                return self._on_notice(go_on, saved, now)
            case events.GraceOver():
                leaves = self._kill_by is None or self._is_signalled
                return () if leaves else self._go(Signals.SIGTERM, self._preempted_end(), now)
            case events.Failed(error):
                return self._on_error(error, now)
            case events.StartFailed(error):
                self.running, self._group = frozenset(), "gone"
                return self._on_error(error, now) if self.stage == "working" else self._ended_group(now)
            case events.WorkerEnded(generation, local_rank, exit_code):
                return self._on_worker(local_rank, exit_code, now) if generation == self.generation else ()
            case events.Hung(generation, failure):
                if self.stage != "working" or generation != self.generation:
                    return ()
                return (steps.ReportHang(failure), *self._stop(Signals.SIGTERM, "ask", now))
            case events.GroupEnded(generation, background):
                awaited = generation == self.generation and background >= self._background
                return self._on_group(now) if awaited else ()
            case events.TimePassed():
                return self._on_time(now)
        return self._on_answer(event, now) + self._on_news(event, now)

    def _on_answer(self, event: Event, now: float) -> tuple[Step, ...]:
        """Handle an answer to the step that began a stage."""
        match self.stage, event:
            case "joining", events.Joined(node_rank):
                self._node_rank = node_rank
                return self._start()
            case "joining", events.RoundOver():
                return (steps.Join(),)
            case "joining", events.DoneWithout():
                self.stage = "staying"
                return (steps.Stay(),)
            case "asking", events.PeersAnswered(lost):
                return self._after_failure(lost)
            case "counting", events.RestartAllowed(delay):
                return self._restart(delay, now)
            case "counting", events.RestartRefused(failure, reason, why, exit_code):
                outcome = Outcome("failed", reason, failure, why, exit_code)
                self._end = steps.End(exit_code or failure.process_exit_code or 1, outcome)
                return self._stop(Signals.SIGTERM, "leave", now)
            case "finding", events.CauseFound(failure, reason):
                self._end = steps.End(failure.process_exit_code or 1, Outcome("failed", reason, failure))
                return self._stop(Signals.SIGTERM, "leave", now)
            case "staying", events.Stayed():
                self._end = steps.End(0, Outcome("done"))
                return self._stop(Signals.SIGTERM, "leave", now)
        return ()

    def _on_news(self, event: Event, now: float) -> tuple[Step, ...]:
        """Handle something that happens while workers run, before they are restarted, or at the exit barrier."""
        match self.stage, event:
            case "delaying", events.NodesWait():  # others are about to begin
                return self._join()
            case "working", events.NodesWait():
                return self._stop(Signals.SIGTERM, "join", now)
            case "working", events.Fenced():  # no worker has failed, so there is nothing to ask
                return self._stop(Signals.SIGKILL, "join", now)
            case "working", events.Stuck(local_rank, pid, seconds):
                # a new worker here would need what the kernel holds for this one: a device, a network card
                reason = f"worker {local_rank} (pid {pid}) has been in uninterruptible sleep for {seconds:.0f} s"
                self._end = self._ends.stuck(reason, self._node_rank)
                return (steps.NoteLeaving(reason), *self._stop(Signals.SIGTERM, "leave", now))
            case "barrier", events.BarrierOver():
                return self._stop(Signals.SIGTERM, "stay", now)
            case "barrier", events.MustRunAgain():
                return self._stop(Signals.SIGTERM, "join", now)
        return ()

    def _on_worker(self, local_rank: int, exit_code: int, now: float) -> tuple[Step, ...]:
        if local_rank not in self.running:
            return ()
        self.running -= {local_rank}
        if self.stage != "working":
            return ()
        if exit_code != 0:
            self._failure = local_rank, exit_code
        if exit_code != 0 and self._kill_by is not None:  # it is not restarted here: the node is leaving
            gone = self._go(Signals.SIGTERM, self._preempted_end(), now)
            return (steps.ReportFailure(local_rank, exit_code), *gone)
        if exit_code != 0:
            return (steps.ReportFailure(local_rank, exit_code), *self._stop(Signals.SIGTERM, "ask", now))
        if not self.running:
            self.stage = "barrier"
            return (steps.WaitAtBarrier(),)
        return ()

    def _on_group(self, now: float) -> tuple[Step, ...]:
        self._group = "gone"
        if self.stage == "working":  # ends that were not reported: they cannot have been successful
            untold = min(self.running)
            self.running = frozenset({untold})
            return self._on_worker(untold, -int(Signals.SIGKILL), now)
        self.running = frozenset()
        return self._ended_group(now) if self.stage == "stopping" else ()

    def _on_signal(self, number: Signals, now: float) -> tuple[Step, ...]:
        if number in self._limits.notice_signals:
            if self._kill_by is None:
                self._kill_by = now + self._limits.time_to_end
                if self.stage == "working":
                    return (
                        steps.GiveNotice(
                            f"{self._ends.who(self._node_rank)} got {number.name}", self._limits.time_to_save
                        ),
                    )
            return self._go(Signals.SIGTERM, self._preempted_end(number), now)
        outcome = Outcome("lost", f"{self._ends.who(self._node_rank)} got {number.name}")
        return self._go(number, steps.End(128 + int(number), outcome, signal=number), now)

    def _on_notice(self, go_on: bool, saved: bool, now: float) -> tuple[Step, ...]:
        """Handle what the others say about this node's notice."""
        if self._kill_by is None:
            return ()
        self._others_go_on = go_on
        if self._is_signalled:
            assert self._end is not None
            if isinstance(self._end.error, Preempted):
                self._end = self._preempted_end(self._end.signal)
            return ()
        return self._go(Signals.SIGTERM, self._preempted_end(), now) if saved and self.stage == "working" else ()

    def _go(self, number: Signals, end: steps.End, now: float) -> tuple[Step, ...]:
        """This node leaves by ``end``, because it got a signal: its workers get ``number``."""
        again, self._end = self._is_signalled, end
        if not again:
            leaving = steps.NoteLeaving(f"it got {number.name}" if self._kill_by is None else "it is preempted")
            if self.stage == "stopping" and self._killed:
                self._next = "leave"
                return (leaving,)
            stopping = self._stop(number, "leave", now)
            if self.stage == "stopping":
                self._hint_at = now + _HINT_S
            return (leaving, *stopping)
        if self.stage == "stopping" and not self._killed:  # whoever sends a second one does not want to wait
            return self._kill(now)
        return ()

    @property
    def _is_signalled(self) -> bool:
        """Whether a signal has decided how this node ends."""
        return self._end is not None and self._end.signal is not None

    def _preempted_end(self, number: Signals | None = None) -> steps.End:
        return self._ends.preempted(self._others_go_on, self._node_rank, number)

    def _on_error(self, error: Exception, now: float) -> tuple[Step, ...]:
        if self.stage == "stopping":
            if self._next != "leave":
                self._end, self._next = self._ends.by_error(error, self._node_rank), "leave"
            return ()
        self._end = self._ends.by_error(error, self._node_rank)
        # the others' workers fail with those here, which may take their time to end; who is gone cannot be told
        tells = self.stage == "working" and not isinstance(error, EndpointUnreachable | RendezvousClosed)
        leaving = (steps.NoteLeaving(str(error)),) if tells else ()
        return (*leaving, *self._stop(Signals.SIGTERM, "leave", now))

    def _on_time(self, now: float) -> tuple[Step, ...]:
        if self._join_at is not None and now >= self._join_at:
            return self._join()
        if self.stage != "stopping":
            return ()
        said: tuple[Step, ...] = ()
        if self._hint_at is not None and now >= self._hint_at:
            left, self._hint_at = max(0.0, (self._stop_by or now) - now), None
            said = (
                steps.Say(
                    f"the workers of this node are still running: they will be killed in {left:.0f} s, or at once on a "
                    "second signal",
                    warning=True,
                ),
            )
        if self._stop_by is None or now < self._stop_by:
            return said
        if not self._killed:
            return said + self._kill(now)
        self._group = "stuck"
        return (*said, steps.Say(LEFT, warning=True), *self._ended_group(now))

    def _after_failure(self, lost: bool) -> tuple[Step, ...]:
        if self._kill_by is not None:
            return self._join()
        if lost:
            said = steps.Say("the workers of this node failed because a node was lost: this uses up no restart")
            return (said, *self._join())
        if self.restarts_used < self._limits.max_restarts and self._group == "gone":
            self.stage = "counting"
            return (steps.CountRestart(*(self._failure or (0, -int(Signals.SIGKILL)))),)
        if self.restarts_used < self._limits.max_restarts:
            return self._join()  # which is not possible
        self.stage = "finding"
        return (steps.FindCause(*(self._failure or (0, -int(Signals.SIGKILL)))),)

    def _restart(self, delay: float, now: float) -> tuple[Step, ...]:
        self.restarts_used += 1
        later = f", in {delay:g} s" if delay > 0 else ""
        said = steps.Say(f"restarting the workers: restart {self.restarts_used} of {self._limits.max_restarts}{later}")
        if delay <= 0:
            return (said, *self._join())
        self.stage, self._join_at = "delaying", now + delay
        return (said,)

    def _stop(self, number: Signals, following: _Next, now: float) -> tuple[Step, ...]:
        """Stop the workers that live; ``following`` comes next. It takes no longer than an earlier stop would have.

        If no worker is started here any more, this includes what they have left running in sessions of its own.
        """
        self._next, self._join_at = following, None
        alone = self._group == "gone"
        if self._owes_background(following):
            self._background, self._group = True, "lives"
        if self._group != "lives":
            return self._ended_group(now)
        if number == Signals.SIGKILL:
            self.stage = "stopping"
            return self._kill(now)
        if self.stage != "stopping":
            failed = alone and self._end is not None and self._end.outcome.end == "failed"
            seconds = min(self._limits.shutdown_timeout, _FAILED_S if failed else math.inf)
            self.stage, self._stop_by = "stopping", now + seconds
        if self._kill_by is not None and self._stop_by is not None and not self._killed:
            self._stop_by = min(self._stop_by, self._kill_by)
        return (steps.Stop(number, max(0.0, (self._stop_by or now) - now), self._background),)

    def _owes_background(self, following: _Next) -> bool:
        """Whether something may live in the background that has to be told to end before what follows."""
        last = following in ("stay", "leave") and self.generation > 0 and not self._limits.leave_background
        return last and not self._background and self._group != "stuck"

    def _kill(self, now: float) -> tuple[Step, ...]:
        self._killed, self._hint_at = True, None
        self._stop_by = now + self._limits.kill_timeout
        return (steps.Kill(),)

    def _ended_group(self, now: float) -> tuple[Step, ...]:
        """The workers have ended, or do not end: do what was to follow."""
        if self._owes_background(self._next) and not self._killed:
            return self._stop(Signals.SIGTERM, self._next, now)
        self._killed, self._stop_by, self._hint_at = False, None, None
        match self._next:
            case "join":
                return self._join()
            case "ask":
                self.stage = "asking"
                return (steps.AskPeers(),)
            case "stay":
                self.stage = "staying"
                return (steps.Stay(),)
            case "leave":
                return self._leave()

    def _join(self) -> tuple[Step, ...]:
        self._join_at = None
        if self._group == "stuck":
            self._end = self._ends.stuck(LEFT, self._node_rank)
            return self._leave()
        if self._kill_by is not None:  # nobody is served by a round with a node that is leaving
            self._end = self._preempted_end()
            return self._leave()
        self.stage = "joining"
        return (steps.Join(),)

    def _start(self) -> tuple[Step, ...]:
        self.generation += 1
        self.running, self._group = frozenset(range(self._limits.workers)), "lives"
        self._failure, self._background = None, False
        self.stage = "working"
        return (steps.StartWorkers(self.generation, self.restarts_used),)

    def _leave(self) -> tuple[Step, ...]:
        assert self._end is not None
        self.stage, self._join_at = "ended", None
        return (steps.Kill(), steps.Leave(self._end.outcome), self._end)
