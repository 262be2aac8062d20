"""One launch: first the supervisor, then handler, workers and the agent's loop; how it ended becomes an exit code."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from rdzv_launcher.console import rest_stderr, say
from rdzv_launcher.run.agent import steps
from rdzv_launcher.run.agent.events import Hung
from rdzv_launcher.run.agent.fence import Fence
from rdzv_launcher.run.agent.loop import AgentLoop, AgentObserver, Inbox, MainThreadHeartbeat, Settings
from rdzv_launcher.run.agent.node_workers import NodeWorkers
from rdzv_launcher.run.agent.restart_policy import RestartLimits
from rdzv_launcher.run.agent.state_machine import Limits
from rdzv_launcher.run.agent.steps import ExitOutcomes
from rdzv_launcher.run.agent.stopping_signals import Interrupted, StoppingSignals
from rdzv_launcher.run.importing import importing_torch
from rdzv_launcher.run.preemption.node import PreemptionNotices
from rdzv_launcher.run.preparation import Preparation
from rdzv_launcher.run.run_directory import RunDirectory
from rdzv_launcher.run.stacks.node import NodeSnapshot, NodeStacks
from rdzv_launcher.run.stacks.node import StackedWorker as NodeWorker
from rdzv_launcher.run.stderr_tail import WorkerMonitor
from rdzv_launcher.run.supervisor.descendants import ProcessTag, mark_children
from rdzv_launcher.run.supervisor.in_worker import asked
from rdzv_launcher.run.supervisor.messages import Inherited, OwnedResources, Start
from rdzv_launcher.run.supervisor.supervisor import Supervisor
from rdzv_launcher.run.workers.environment import (
    ERROR_FILE,
    FILE_TIMER,
    TIMER_FILE,
    preload_of,
    prepare_starts,
)
from rdzv_launcher.run.workers.failures import (
    WorkerFailure,
    failure_summary,
    hand_to_scheduler,
    record_own_error,
    worker_failure,
)
from rdzv_launcher.run.workers.output.log_files import Layout, LogFiles
from rdzv_launcher.run.workers.output.output import WorkerOutput
from rdzv_launcher.run.workers.spec import NO_EVENTS, Kind
from rdzv_launcher.run.workers.worker_group import Worker, WorkerGroup
from rdzv_plugins.errors import PeerFailed
from rdzv_plugins.interfaces import Failure, Outcome, RoundEvent
from rdzv_plugins.questions import HANG, LOG, NOTICE, STANDSTILL, VITALS, RpcRequest
from rdzv_plugins.registry.create import create_rendezvous
from rdzv_plugins.registry.rendezvous import Rendezvous
from rdzv_plugins.runtime import SYSTEM
from rdzv_plugins.shared_numbers import RoundPage

if TYPE_CHECKING:
    from rdzv_launcher.run.agent_events import AgentEvents
    from rdzv_launcher.run.agent_metrics import AgentFigures
    from rdzv_launcher.run.hangs.watch import HangWatch
    from rdzv_launcher.run.health import Health
    from rdzv_launcher.run.timeline import TimelineRecorder
    from rdzv_launcher.run.workers.torch_classes import FileTimer

logger = logging.getLogger(__name__)

_IDENTICAL = "TORCH_ELASTIC_WORKER_IDENTICAL"


class LaunchResult(Struct, frozen=True):
    """How a launch ended: by a failure, an error or a signal, or with success. The rest is for a caller in Python."""

    end: steps.End
    group: WorkerGroup | None = None
    """The last workers of this node; None if it has had none."""
    failures: tuple[WorkerFailure, ...] = ()
    """The failures of this node's workers that were not told to stop, in the order in which they ended."""
    first: Failure | None = None
    """The first failure over all nodes."""


def launch(start: Preparation, inherited: Inherited | None = None, logs_specs: Any = None) -> LaunchResult:
    """Run the job; returns how it ended. Raises ``RdzvError`` if it cannot.

    ``inherited`` is what workers get from a caller in Python; None: a person is at the screen, who is told how it
    ended, by an error, too. ``logs_specs``: an object of torch's ``LogsSpecs``, in place of --logs-specs.
    """
    if start.spec.nproc > 1 and "OMP_NUM_THREADS" not in os.environ:
        logger.info("OMP_NUM_THREADS=1 for each worker (torchrun's default); set it to use more threads")
    with RunDirectory() as directory, contextlib.ExitStack() as at_end:
        context = LaunchResources(start, inherited, logs_specs, directory, at_end)
        try:
            start.host.report_problems()
            with context.signals.raising(), importing_torch():
                rendezvous = create_rendezvous(start.host, start.entry, start.request, start.directories)
        except Interrupted as stop:  # before there were workers
            end = steps.End(128 + int(stop.sigval), Outcome("failed"), signal=stop.sigval)
            if stop.sigval in start.notice.signals:
                end = ExitOutcomes(socket.gethostname(), os.getpid()).preempted(None, None)
            if inherited is None and end.error is not None:
                raise end.error from None
            logger.warning("%s: stopped", stop)
            return LaunchResult(end)
        return Launch(start, context, rendezvous).run()


class LaunchResources:
    """What an agent has before it has a rendezvous: inbox, signals, files, and first of all its supervisor."""

    def __init__(
        self,
        start: Preparation,
        inherited: Inherited | None,
        logs_specs: Any,
        directory: RunDirectory,
        at_end: contextlib.ExitStack,
    ) -> None:
        """What has to be closed when the launch has ended is left to ``at_end``."""
        self.directory, self.inherited = directory, inherited
        self.events: AgentEvents | None = None
        if start.spec.event_log_handler != NO_EVENTS:  # otherwise nobody wants to hear of torch's events
            from rdzv_launcher.run.agent_events import AgentEvents  # torch's

            self.events = AgentEvents(start.spec, start.request.backend)
        self.timer: FileTimer | None = None
        if {FILE_TIMER, TIMER_FILE} & os.environ.keys():  # torch's watchdog for workers
            from rdzv_launcher.run.workers.torch_classes import FileTimer  # most launches do not need it

            log_event = None if self.events is None else self.events.watchdog
            self.timer = FileTimer(start.spec.run_id, os.environ, directory.path, log_event)
        self.layout: Layout = LogFiles(start.spec, directory.logs)
        if start.spec.logs_specs or logs_specs:
            from rdzv_launcher.run.workers.torch_classes import ThirdPartyLogs  # what most launches do not need

            self.layout = ThirdPartyLogs(start.spec, logs_specs)
        self.inbox: Inbox = SYSTEM.SimpleQueue()
        handled = ",".join((start.args.signals_to_handle, *(number.name for number in start.notice.signals)))
        self.signals = StoppingSignals(handled, self.inbox.put, SYSTEM)
        self.page = RoundPage()
        at_end.callback(self.page.close)
        self.mark = os.urandom(16).hex()
        preload, ignored = preload_of(start.spec, os.environ), start.notice.ignored
        owned = OwnedResources(self.page.fd, self.mark, directory.path)
        self.new_supervisor: Callable[[], Supervisor] = lambda: Supervisor(preload, inherited, ignored, owned, SYSTEM)
        """Makes a supervisor for this launch: the first one, or one in place of another that is lost."""
        rest_stderr()  # something may have been logged
        # before anything has made a thread: then it is a fork, no new interpreter
        self.supervisor = self.new_supervisor()
        at_end.callback(self.supervisor.close)  # if that has not been done
        self.heartbeat = MainThreadHeartbeat(SYSTEM)
        self.health: Health | None = None
        if start.args.health_port:
            from rdzv_launcher.run.health import Health, HealthServer  # most launches do not need it

            self.health = Health(self.heartbeat, start.args.health_timeout)
            if (server := HealthServer.open(self.health, start.args.health_port)) is not None:
                at_end.callback(server.close)


class Launch:
    """One agent's life, from its handler to its exit code."""

    def __init__(self, start: Preparation, context: LaunchResources, rendezvous: Rendezvous) -> None:
        self._by_hand, self._farewell = context.inherited is None, ""
        self._spec, self._directory, self._rendezvous = start.spec, context.directory, rendezvous
        self._timer, self._events = context.timer, context.events
        handler, inbox = rendezvous.handler, context.inbox
        self._timeline: TimelineRecorder | None = None
        if start.args.timeline:  # after the supervisor, a fork that must not have threads
            from rdzv_launcher.run.timeline import TimelineRecorder  # most launches do not need it

            self._timeline = TimelineRecorder.open(start.args.timeline, start.request.run_id, start.request.backend)
        figures: AgentFigures | None = None
        if context.health is not None:
            from rdzv_launcher.run.agent_metrics import AgentFigures  # most launches do not need it

            figures = AgentFigures(start.request, self._spec.max_restarts)
        observers: list[AgentObserver] = [each for each in (self._timeline, figures, self._events) if each is not None]
        if observers:
            handler.tell_events(lambda event: _tell_all(observers, event))
        self._monitor = WorkerMonitor(Path(context.directory.path, "pipes"), self._wrote)
        on_first = None if self._timeline is None else self._wrote
        self._output = WorkerOutput(
            self._spec, context.layout, self._monitor.attach, on_first, context.directory.ensure
        )
        on_request = start.args.worker_stacks or start.args.hang_timeout > 0
        self._stacks = NodeStacks(self._node, context.directory.path, logs=self._output.root, on_request=on_request)
        mark_children(context.mark)
        self._fence = self._make_fence(context)
        self._workers = NodeWorkers(
            self._spec,
            context.supervisor,
            context.new_supervisor,
            self._fence,
            self._monitor,
            self._output,
            self._stacks,
            inbox,
            self._starts,
            SYSTEM,
        )
        self._notices = self._make_notices(start, context)
        self._loop = AgentLoop(
            _settings(start),
            rendezvous,
            self._workers,
            inbox,
            context.signals,
            SYSTEM,
            on_late=lambda why: self._stacks.store_of_peers(handler.questions, why),
            heartbeat=context.heartbeat,
            give_notice=self._notices.give,
            observers=observers,
        )
        if figures is not None and context.health is not None:
            figures.publish(context.health, lambda: (self._loop.decisions, self._loop.group), handler.waits_for)
        self._hangs: HangWatch | None = None
        if start.args.hang_timeout > 0:
            from rdzv_launcher.run.hangs.watch import HangWatch  # most launches do not need it

            limit, nproc, asks = start.args.hang_timeout, self._spec.nproc, handler.questions
            self._hangs = HangWatch(limit, nproc, self._stacks, asks, lambda *hung: inbox.put(Hung(*hung)))
        if handler.questions is not None:
            handler.questions.answer_with(self._answer)

    def _make_fence(self, context: LaunchResources) -> Fence:
        return Fence(
            self._rendezvous.handler.holding,
            context.page,
            ProcessTag(context.mark),
            signal_below=lambda number: self._workers.signal_below(number),
            on_kill=lambda: self._workers.fenced(),
            runtime=SYSTEM,
        )

    def _make_notices(self, start: Preparation, context: LaunchResources) -> PreemptionNotices:
        notice = start.notice
        return PreemptionNotices(
            self._spec.nproc,
            context.directory.path,
            start.request.min_nodes,
            notice.grace,
            context.inbox.put,
            lambda: None if notice.to_workers is None else self._workers.notify(notice.to_workers),
            self._rendezvous.handler.questions,
        )

    def run(self) -> LaunchResult:
        """Run the agent to its end, and say how it ended. Raises what ended it, if that says more than a code."""
        well = False
        try:
            try:
                end = self._loop.run()
            finally:
                if self._timer is not None:
                    self._timer.stop()
            well = end.exit_code == 0 and end.error is None
            first = end.error.failure if isinstance(end.error, PeerFailed) else end.outcome.failure
            self._record(end, first)
            if self._by_hand:
                self._tell(end)
                return LaunchResult(end)
            return LaunchResult(end, self._loop.group, tuple(self._failed(first)), first)
        finally:
            if self._hangs is not None:
                self._hangs.close()
            self._notices.close()
            if self._timeline is not None:
                self._timeline.close()
            if self._farewell:  # below everything that the workers still printed
                say("rdzv-run", self._farewell)
            self._part_with_logs(well)

    def _part_with_logs(self, well: bool) -> None:
        """Name the workers' logs that are kept where nobody would look; remove them if they are of no use any more."""
        logs = self._output.root
        if logs != self._directory.logs:
            return
        if well and self._output.was_shown:
            for each in filter(Path.is_dir, Path(logs).glob("*")):
                shutil.rmtree(each, ignore_errors=True)
        elif self._by_hand and not self._farewell and _has_logs(logs):
            say("rdzv-run", f"worker logs are in {logs} (--log-dir=DIR chooses another directory)")

    def _wrote(self, local_rank: int) -> None:
        """Note a worker's first line; called by the thread that has seen it."""
        if self._timeline is not None:
            self._timeline.wrote(local_rank, self._loop.group)

    def _starts(self, group: WorkerGroup) -> Sequence[Start]:
        """What is started for a round."""
        timer = {} if self._timer is None else self._timer.start()
        barrier = {}
        if self._spec.program.kind is Kind.PATH:
            from rdzv_launcher.run.workers.run_path import BARRIER

            barrier = {BARRIER: f"{self._directory.path}/barrier"}

        def additions(worker: Worker, own: Mapping[str, str]) -> Iterator[Mapping[str, str]]:
            yield timer
            yield self._rendezvous.worker_env(own)
            yield self._fence.environment
            yield self._stacks.environment
            yield barrier
            yield {} if self._hangs is None else self._hangs.environment(worker.global_rank)
            yield self._notices.environment(group, worker.local_rank, own)
            yield asked(own)  # the last: it goes by what the others have asked for

        use_agent_store = self._rendezvous.handler.use_agent_store
        return prepare_starts(self._spec, group, self._output, use_agent_store, additions)

    def _node(self) -> NodeSnapshot:
        """Who works here now. Any thread may ask."""
        group, stage = self._loop.group, self._loop.decisions.stage
        host, agent, own = socket.gethostname(), os.getpid(), self._stacks.own
        if group is None:
            return NodeSnapshot(host, agent, own_stacks=own)
        pids = group.pids
        here = (each for each in group.workers if each.local_rank in pids)
        return NodeSnapshot(
            host,
            agent,
            group.group_rank,
            tuple(NodeWorker(each.global_rank, each.local_rank, pids[each.local_rank]) for each in here),
            own,
            nodes=group.group_world_size,
            generation=group.generation,
            works=stage in ("working", "barrier", "staying") and bool(pids),
        )

    def _answer(self, question: RpcRequest) -> Any:
        """Like ``questions.Answer``. What most jobs are never asked is imported when it is."""
        if question.arguments.get("of") not in (None, [socket.gethostname(), os.getpid()]):  # another node is meant
            return {}
        if question.kind in (VITALS, LOG):
            from rdzv_launcher.run.node_stats import log_tail, vitals

            if question.kind == VITALS:
                return vitals(self._node(), self._loop.decisions)
            return log_tail(question.arguments, self._node(), self._output.files, self._monitor.kept)
        if question.kind == NOTICE:
            return self._notices.answer(question)
        if question.kind in (STANDSTILL, HANG) and self._hangs is not None:
            return self._hangs.answer(question)
        if question.kind == STANDSTILL:
            from rdzv_launcher.run.hangs.verdict import UNWATCHED

            return UNWATCHED
        return self._stacks.answer(question)

    def _failed(self, first: Failure | None) -> Iterator[WorkerFailure]:
        """The failures of this node's workers; ``first`` is the job's first failure."""
        for here in self._loop.failures:
            told = (
                first if first is not None and (first.global_rank, first.pid) == (here.global_rank, here.pid) else here
            )
            yield worker_failure(told, time.time(), self._output.error_file(here.local_rank))

    def _tell(self, end: steps.End) -> None:
        if isinstance(end.error, PeerFailed):
            self._summarise(end.error.failure, (), end.error.why)
        elif end.error is not None:
            raise end.error
        elif end.signal is not None:
            logger.warning("got %s: stopped the workers of this node", end.signal.name)
        elif end.outcome.failure is not None:
            self._summarise(end.outcome.failure, self._loop.failures, end.outcome.why)
            self._hand_to_scheduler(end.outcome.failure)

    def _hand_to_scheduler(self, first: Failure) -> None:
        group, target = self._loop.group, os.environ.get(ERROR_FILE, "")
        if target and group is not None and first.node_rank == group.group_rank:
            hand_to_scheduler(self._output.error_file(first.local_rank), first.exit_code, target)

    def _record(self, end: steps.End, first: Failure | None) -> None:
        """Record the end for handlers registered with torch's events; an error of ours also for a scheduler."""
        if self._events is not None:
            self._events.ended(end, self._failed(first))
        if end.error is not None and not isinstance(end.error, PeerFailed):
            record_own_error(end.error, os.environ.get(ERROR_FILE, ""))

    def _summarise(self, first: Failure, here: Sequence[Failure], why: str) -> None:
        used, most = self._loop.decisions.restarts_used, self._spec.max_restarts
        hint = "" if most else " (--max-restarts=N restarts all workers)"
        group, logs = self._loop.group, self._output.root
        self._farewell = failure_summary(
            first,
            here,
            node_rank=-1 if group is None else group.group_rank,
            restarts=f"restarts used on this node: {used} of {most}{hint}",
            log_dir=logs if _has_logs(logs) else "",
            why=why,
        )


def _settings(start: Preparation) -> Settings:
    spec, notice = start.spec, start.notice
    return Settings(
        limits=Limits(
            spec.nproc,
            spec.max_restarts,
            float(spec.shutdown_timeout_s),
            leave_background=spec.leave_background,
            preempt_grace=notice.grace,
            notice_signals=frozenset(notice.signals),
        ),
        role=spec.role,
        monitor_interval=spec.monitor_interval_s,
        exit_barrier_timeout=start.args.exit_barrier_timeout,
        stuck_timeout=spec.stuck_timeout_s,
        hang_timeout=start.args.hang_timeout,
        retries=RestartLimits(start.args.job_restarts, start.args.crash_loop, start.args.restart_delay),
        identical=os.environ.get(_IDENTICAL) == "1",
    )


def _tell_all(observers: Sequence[AgentObserver], event: RoundEvent) -> None:
    for each in observers:
        each.saw(event)


def _has_logs(directory: str) -> bool:
    return any(name.endswith(".log") for _, _, names in os.walk(directory) for name in names)
