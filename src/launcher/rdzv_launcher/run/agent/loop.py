"""The agent's loop: takes the steps that ``AgentStateMachine`` asks for, and reports the results back to it.

Everything that happens arrives in one inbox: ends of workers, the fence, signals. While workers run, the main thread
waits there, and asks the rendezvous every ``monitor_interval`` whether the round changes; handlers answer that from
memory. It waits for other nodes only while no worker runs, and a signal ends every such wait.
"""

from __future__ import annotations

import contextlib
import logging
import math
import sys
import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from msgspec import Struct, field
from msgspec.structs import replace

from rdzv_launcher.run.agent import events, steps
from rdzv_launcher.run.agent.events import Event, Stuck
from rdzv_launcher.run.agent.rank_exchange import (
    RoleInfo,
    exchange,
    identical,
    is_graceful_exit,
    is_lost,
    is_timeout,
    wait_at_exit_barrier,
)
from rdzv_launcher.run.agent.restart_policy import RestartLimits, RestartPolicy
from rdzv_launcher.run.agent.state_machine import AgentStateMachine, Limits
from rdzv_launcher.run.agent.steps import Step
from rdzv_launcher.run.agent.stopping_signals import StoppingSignals
from rdzv_launcher.run.supervisor import descendants
from rdzv_launcher.run.supervisor.descendants import Processes
from rdzv_launcher.run.workers.worker_group import WorkerGroup
from rdzv_plugins.errors import RendezvousFailed, is_signal
from rdzv_plugins.handler import must_join_again
from rdzv_plugins.interfaces import Failure, Outcome, RoundEvent
from rdzv_plugins.registry.rendezvous import Rendezvous
from rdzv_plugins.runtime import SYSTEM, Empty, Runtime
from rdzv_plugins.store import Store

if TYPE_CHECKING:
    from queue import SimpleQueue

    from rdzv_launcher.run.agent.node_workers import NodeWorkers

logger = logging.getLogger(__name__)


class AgentObserver:
    """Is told what the agent hears, decides and does. Methods return at once and never raise. These do nothing.

    ``group``: the workers of the newest round; None before the first.
    """

    def heard(self, event: Event, group: WorkerGroup | None) -> None:
        """``event`` is about to be decided on."""

    def decided(self, event: Event, decisions: AgentStateMachine) -> None:
        """``event`` has been decided on; the resulting steps are about to be taken."""

    def takes(self, step: Step, group: WorkerGroup | None) -> None:
        """``step`` is about to be taken."""

    def started(self, group: WorkerGroup) -> None:
        """The workers of ``group`` are running; the group contains their pids."""

    def saw(self, event: RoundEvent) -> None:
        """The rendezvous reports ``event``; see ``TellEvent``. Any thread."""


class MainThreadHeartbeat:
    """Whether the agent's main thread is alive, as other threads see it. Made by the thread that beats.

    Neither reading nor writing takes a lock.
    """

    def __init__(self, runtime: Runtime = SYSTEM) -> None:
        self._monotonic, self._thread = runtime.monotonic, runtime.get_ident()
        self._back_at = math.inf

    def beat(self, within: float | None) -> None:
        """The thread is alive, and will be back ``within`` seconds; None: it waits for others, however long."""
        self._back_at = math.inf if within is None else self._monotonic() + within

    def overdue(self) -> float:
        """For how many seconds the thread has been overdue; 0 or less: it is not due yet."""
        return self._monotonic() - self._back_at

    def place(self) -> str:
        """Where the thread is now, as ``/site/plugin.py:12 (rdzv_worker_env)``; empty if it has ended."""
        frame = sys._current_frames().get(self._thread)
        if frame is None:
            return ""
        last = traceback.extract_stack(frame, limit=1)[-1]
        return f"{last.filename}:{last.lineno} ({last.name})"


# Workers that the kernel does not release: in uninterruptible sleep (state D of Linux) for implausibly long.
#
# As in torch's agent, the time is TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT; if it is not set, nothing is looked at.

_LONGEST_LOOK_S = 1.0


class StuckWorkers:
    """Looks at the workers of one generation after another. For one thread."""

    def __init__(self, timeout: float, processes: Processes) -> None:
        """``timeout`` is in seconds; 0: it looks at nothing. The times passed in may count from any starting point."""
        self._timeout, self._processes = timeout, processes
        self._since: dict[int, float] = {}
        self.look_at: float | None = None
        """When ``look`` should be called next; None: never."""

    def begin(self, now: float) -> None:
        """Workers have been started."""
        self.look_at = now + min(self._timeout / 4, _LONGEST_LOOK_S) if self._timeout > 0 else None

    def look(self, pids: Mapping[int, int], now: float) -> Stuck | None:
        """A worker, of ``pids`` by local rank, that was stuck for too long, in all looks of that time; None if none."""
        if self.look_at is None or now < self.look_at:
            return None
        self.begin(now)
        seen = [(rank, self._processes.look(pid)) for rank, pid in pids.items()]
        asleep = {found.pid: rank for rank, found in seen if found is not None and found.state == "D"}
        for pid in [each for each in asleep if each not in self._since]:
            logger.warning(
                "worker %d (pid %d) is in uninterruptible sleep: after %g s this node ends",
                *(asleep[pid], pid),
                self._timeout,
            )
        self._since = {pid: self._since.get(pid, now) for pid in asleep}
        for pid, since in self._since.items():
            if now - since >= self._timeout:
                return Stuck(asleep[pid], pid, now - since)
        return None


_LOOKS = ("working", "delaying")
"""The stages in which the rendezvous is asked for news."""
_START_S, _LEAVE_S = 120.0, 60.0
"""How long the main thread may take to start workers, which may have to be preloaded, and to end."""

Inbox: TypeAlias = "SimpleQueue[Event]"
"""What the agent is told. ``put`` may be called from any thread, and in the middle of a signal handler."""


class Settings(Struct, frozen=True):
    """What the user has set, beyond the ``Limits`` of the decisions. Times are in seconds."""

    limits: Limits
    role: str = "default"
    monitor_interval: float = 0.1
    exit_barrier_timeout: float = 300.0
    stuck_timeout: float = 0.0
    """How long a worker may be in uninterruptible sleep; 0: for ever."""
    hang_timeout: float = 0.0
    """How long a job must stand still to count as hanging; 0: nobody watches for that."""
    retries: RestartLimits = field(default_factory=RestartLimits)
    identical: bool = False
    """All nodes are known to have the same number of workers, of one role: no ranks are exchanged."""


class AgentLoop:
    """One agent's life, from its first round to its end. For the main thread."""

    def __init__(
        self,
        settings: Settings,
        rendezvous: Rendezvous,
        workers: NodeWorkers,
        inbox: Inbox,
        signals: StoppingSignals,
        runtime: Runtime,
        on_late: Callable[[str], None] = lambda why: None,
        heartbeat: MainThreadHeartbeat | None = None,
        give_notice: Callable[[str, float], None] = lambda reason, seconds: None,
        observers: Sequence[AgentObserver] = (),
        processes: Processes = descendants,
    ) -> None:
        """``workers`` and ``signals`` put what happens into ``inbox``; ``on_late`` is the exit barrier's.

        ``give_notice(reason, seconds)``, called once, tells the workers of all nodes that this one leaves, and that
        they have ``seconds`` to save. It returns at once; ``NoticeAnswered`` in the inbox says what comes of it.
        ``heartbeat`` is told that the main thread is alive.
        """
        self._give_notice, self._observers = give_notice, observers
        self._on_late = on_late
        self._settings = settings
        self._rendezvous, self._handler, self._workers = rendezvous, rendezvous.handler, workers
        self._inbox, self._signals = inbox, signals
        self._runtime = runtime
        self._host, self._pid = runtime.gethostname(), runtime.getpid()
        self.decisions = AgentStateMachine(settings.limits, host=self._host, pid=self._pid)
        self.group: WorkerGroup | None = None
        """The workers of the newest round; None before the first."""
        self._stuck = StuckWorkers(settings.stuck_timeout, processes)
        self._failures = RestartPolicy(rendezvous.handler, workers, settings.retries, settings.hang_timeout, runtime)
        self._heartbeat = heartbeat or MainThreadHeartbeat(runtime)
        self._store: Store | None = None
        self._untold: deque[Event] = deque()
        """Events taken from the inbox, but not passed to the decisions yet."""
        self._look_at = 0.0

    @property
    def failures(self) -> Sequence[Failure]:
        """The workers of the newest generation that failed without being told to stop, in the order of their ends."""
        return tuple(self._failures.ended.values())

    def run(self) -> steps.End:
        """Run to the end; when this returns, the others have been told of it.

        Raises only on an error of ours, or an exception that ends the process (``KeyboardInterrupt``): then all workers
        are killed, and the others are told that this node is lost.
        """
        try:
            todo = self.decisions.begin()
            while True:
                event: Event | None = None
                for step in todo:
                    for each in self._observers:
                        each.takes(step, self.group)
                    if isinstance(step, steps.End):
                        return step
                    event = self._take(step)
                todo = self._tell(event if event is not None else self._next())
        except BaseException as error:
            self._workers.kill_all()
            reason = f"the agent on {self._host} (pid {self._pid}) ended: {error!r}"
            self._note_leaving(reason)  # before the others can take the failures of their workers for their own
            self._leave(Outcome("lost", reason))
            raise

    def _tell(self, event: Event) -> tuple[Step, ...]:
        if isinstance(event, events.SignalArrived | events.GraceOver):
            self._signals.taken()
        for each in self._observers:
            each.heard(event, self.group)
        if self.decisions.stage == "working":
            self._failures.note(event)
        todo = self.decisions.handle(event, self._runtime.monotonic())
        for each in self._observers:
            each.decided(event, self.decisions)
        return todo

    def _note_simultaneous(self) -> None:
        """The workers are about to be stopped: those whose ends are already in the inbox did not end because of it."""
        with contextlib.suppress(Empty):
            while True:
                self._untold.append(self._inbox.get_nowait())
                self._failures.note(self._untold[-1])

    def _next(self) -> Event:
        while True:
            if self._untold:
                return self._untold.popleft()
            now = self._runtime.monotonic()
            times = [each for each in (self.decisions.wake_at, *self._looks(now)) if each is not None]
            wait = max(0.0, min(times) - now) if times else None
            self._heartbeat.beat(wait)
            try:
                return self._inbox.get(timeout=wait)
            except Empty:
                pass
            finally:
                self._heartbeat.beat(0.0)
            now = self._runtime.monotonic()
            wake_at = self.decisions.wake_at
            if wake_at is not None and now >= wake_at:
                return events.TimePassed()
            if (event := self._look(now)) is not None:
                return event

    def _looks(self, now: float) -> tuple[float | None, ...]:
        """When each thing has to be looked at next: only while workers run, or are about to be restarted."""
        if self.decisions.stage not in _LOOKS:
            return ()
        self._look_at = min(self._look_at, now + self._settings.monitor_interval)
        return self._look_at, self._stuck.look_at if self.decisions.stage == "working" else None

    def _look(self, now: float) -> Event | None:
        stage = self.decisions.stage
        if stage not in _LOOKS:
            return None
        stuck = self._stuck.look(self.group.pids, now) if stage == "working" and self.group is not None else None
        if stuck is not None:
            return stuck
        if now < self._look_at:
            return None
        self._look_at = now + self._settings.monitor_interval
        return self._ask(lambda: events.NodesWait() if self._handler.num_nodes_waiting() > 0 else None, within=0.0)

    def _take(self, step: Step) -> Event | None:
        """Take a step; returns its answer, if it has one and no signal came in between."""
        match step:
            case steps.Join():
                return self._ask(self._join)
            case steps.StartWorkers(generation, restarts_used):
                return self._start(generation, restarts_used)
            case steps.ReportFailure(local_rank, exit_code):
                self._failures.tell(local_rank, exit_code)
            case steps.ReportHang(failure):
                self._failures.tell_hang(failure)
            case steps.Stop(number, seconds, background):
                self._note_simultaneous()
                self._workers.stop(number, seconds, background)
            case steps.Kill():
                self._workers.kill_all()
            case steps.AskPeers():
                return self._ask(lambda: events.PeersAnswered(self._handler.peer_lost()))
            case steps.CountRestart(local_rank, exit_code):
                return self._ask(lambda: self._failures.count_restart(local_rank, exit_code))
            case steps.FindCause(local_rank, exit_code):
                return self._ask(lambda: self._failures.find_cause(local_rank, exit_code))
            case steps.WaitAtBarrier():
                return self._ask(self._wait_at_barrier)
            case steps.Stay():
                return self._ask(self._stay)
            case steps.GiveNotice(reason, seconds):
                self._signals.set_alarm(seconds)
                self._give_notice(reason, seconds)
            case steps.NoteLeaving(reason):
                self._note_leaving(reason)
            case steps.Say(text, warning):
                logger.log(logging.WARNING if warning else logging.INFO, "%s", text)
            case steps.Leave(outcome):
                self._leave(outcome)
        return None

    def _ask(self, question: Callable[[], Event | None], within: float | None = None) -> Event | None:
        """Ask what may have to wait for others. A signal ends it: it is in the inbox, and there is no answer.

        The answer has to arrive ``within`` this many seconds; None: as long as it takes.
        """
        self._heartbeat.beat(within)
        try:
            with self._signals.raising():
                answer = question()
        except Exception as error:
            # in the middle of other people's code a signal may surface as an exception of theirs
            return None if self._signals.pending else events.Failed(error)
        finally:
            self._heartbeat.beat(0.0)
        return None if self._signals.pending else answer

    def _join(self) -> Event:
        settings = self._settings
        self._failures.wait_told()
        try:
            info = self._rendezvous.next_rendezvous()
        except Exception as error:
            if not is_graceful_exit(error):
                raise
            logger.info("%s%s", error, "" if self.group is not None else ", and has not run its script")
            return events.DoneWithout()
        me = RoleInfo(settings.role, info.rank, settings.limits.workers)
        self._store = info.store
        try:
            if settings.identical:
                workers = identical(me, info.world_size)
            else:
                workers = exchange(info.store, me, info.world_size, self._runtime)
        except Exception as error:
            if is_signal(error) or not (is_lost(error) or is_timeout(error) or isinstance(error, RendezvousFailed)):
                raise
            if must_join_again(self._handler):
                logger.info("the round ended while ranks were exchanged (%s): joining again", error)
                return events.RoundOver()
            if isinstance(error, RendezvousFailed):
                raise
            raise RendezvousFailed(
                f"run {self._handler.get_run_id()!r}: could not exchange the ranks of the workers: {error}",
                remedy="Check the output of node rank 0, or of the node whose agent serves the store.",
            ) from error
        self.group = WorkerGroup(info.rank, info.world_size, workers, info.bootstrap_store_info)
        return events.Joined(info.rank)

    def _start(self, generation: int, restarts_used: int) -> Event | None:
        assert self.group is not None
        self._failures.forget()
        self._heartbeat.beat(_START_S)
        self.group = replace(self.group, generation=generation, restarts_used=restarts_used)
        try:
            self.group = replace(self.group, pids=dict(self._workers.start(self.group)))
        except Exception as error:
            self._workers.kill_all()
            return events.StartFailed(error)
        for each in self._observers:
            each.started(self.group)
        now = self._runtime.monotonic()
        self._failures.started(self.group, now)
        self._stuck.begin(now)
        self._look_at = now + self._settings.monitor_interval
        return None

    def _wait_at_barrier(self) -> Event:
        assert self.group is not None
        assert self._store is not None
        return wait_at_exit_barrier(
            self._store,
            self._handler,
            rank=self.group.group_rank,
            nodes=self.group.group_world_size,
            timeout=self._settings.exit_barrier_timeout,
            runtime=self._runtime,
            on_late=self._on_late,
        )

    def _stay(self) -> Event:
        self._handler.stay()
        return events.Stayed()

    def _note_leaving(self, reason: str) -> None:
        """No error may come between a signal and the workers; another signal ends this call."""
        try:
            with self._signals.raising():
                self._handler.note_leaving(reason)
        except Exception as error:
            if not self._signals.pending:
                logger.warning("could not tell the other nodes that this one is leaving: %s", error)

    def _leave(self, outcome: Outcome) -> None:
        """From here on signals are ignored: the workers are gone, and what is left to do takes a limited time."""
        self._signals.ignore_all()
        self._heartbeat.beat(_LEAVE_S)
        try:
            if left := self._workers.close():
                logger.error("processes started by the workers of this node do not end: %s", list(left))
        finally:
            try:
                self._rendezvous.leave(outcome)
                self._rendezvous.shutdown()
            except Exception as error:  # the job is over here, and its exit code is known
                logger.warning("could not tell the other nodes how this one ended: %s", error)
