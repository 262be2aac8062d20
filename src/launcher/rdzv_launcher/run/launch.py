"""One launch: first the keeper, then handler, workers and the agent's loop; how it ended becomes an exit code."""

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

from rdzv_launcher import queued_stderr
from rdzv_launcher.console import say
from rdzv_launcher.run.agent import events, steps
from rdzv_launcher.run.agent.ends import AgentEnds
from rdzv_launcher.run.agent.limits import Limits
from rdzv_launcher.run.agent.loop import AgentLoop, Inbox, Settings
from rdzv_launcher.run.agent.node_workers import NodeWorkers
from rdzv_launcher.run.agent.retries import RetryLimits
from rdzv_launcher.run.agent.stopping_signals import Interrupted, StoppingSignals
from rdzv_launcher.run.agent_events import AgentEvents
from rdzv_launcher.run.caller import Caller, Ending
from rdzv_launcher.run.fence.fence import Fence
from rdzv_launcher.run.hangs.node import NodeHangs
from rdzv_launcher.run.health import Health, Pulse, readiness
from rdzv_launcher.run.importing import importing_torch
from rdzv_launcher.run.keeper.in_worker import asked
from rdzv_launcher.run.keeper.keeper import Keeper
from rdzv_launcher.run.keeper.marked import Marked, mark_children
from rdzv_launcher.run.keeper.messages import Belongings, Start
from rdzv_launcher.run.monitor import WorkerMonitor
from rdzv_launcher.run.notice.node import NodeNotices
from rdzv_launcher.run.preparation import Preparation
from rdzv_launcher.run.run_directory import RunDirectory
from rdzv_launcher.run.stacks.node import Node, NodeStacks, Place, Worker, workers_in
from rdzv_launcher.run.summary import describe, failure_summary
from rdzv_launcher.run.vitals import LogTails, vitals
from rdzv_launcher.run.workers.environment import ERROR_FILE, Addition
from rdzv_launcher.run.workers.error_files import hand_to_scheduler, record_own_error
from rdzv_launcher.run.workers.event_log import EventLog
from rdzv_launcher.run.workers.failures import WorkerFailure, worker_failure
from rdzv_launcher.run.workers.output.log_files import Layout, LogFiles
from rdzv_launcher.run.workers.output.output import Output
from rdzv_launcher.run.workers.program import Kind
from rdzv_launcher.run.workers.run_path import BARRIER
from rdzv_launcher.run.workers.starts import preload_of, prepare_starts
from rdzv_launcher.run.workers.worker_group import WorkerGroup
from rdzv_plugins.assemble.create import create_rendezvous
from rdzv_plugins.assemble.rendezvous import Rendezvous
from rdzv_plugins.errors import PeerFailed
from rdzv_plugins.interfaces import Failure, RoundEvent
from rdzv_plugins.questions import HANG, LOG, NOTICE, STANDSTILL, VITALS, Question
from rdzv_plugins.round_page import RoundPage
from rdzv_plugins.runtime import SYSTEM

if TYPE_CHECKING:
    from rdzv_launcher.run.agent_metrics import AgentFigures
    from rdzv_launcher.run.timeline import Recorder

logger = logging.getLogger(__name__)

_IDENTICAL = "TORCH_ELASTIC_WORKER_IDENTICAL"


def launch(start: Preparation, caller: Caller | None = None) -> int:
    """Run the job once every step was taken; returns the exit code. Raises ``RdzvError`` if it cannot.

    ``caller`` is told how it ended, instead of the person at the screen.
    """
    spec, runtime = start.spec, SYSTEM
    inbox: Inbox = runtime.SimpleQueue()
    if spec.nproc > 1 and "OMP_NUM_THREADS" not in os.environ:
        logger.info("OMP_NUM_THREADS=1 for each worker (torchrun's default); set it to use more threads")
    event_log = EventLog(spec.event_log_handler)
    with RunDirectory() as directory, contextlib.ExitStack() as at_end:
        own_logs = caller.logs_specs if caller is not None else None
        layout: Layout = LogFiles(spec, directory.logs)
        if spec.logs_specs or own_logs:
            from rdzv_launcher.run.workers.logs_specs import ThirdPartyLogs  # what most launches do not need

            layout = ThirdPartyLogs(spec, own_logs)
        handled = ",".join((start.args.signals_to_handle, *(number.name for number in start.notice.signals)))
        signals = StoppingSignals(handled, inbox.put, runtime)

        page = RoundPage()
        at_end.callback(page.close)
        mark = os.urandom(16).hex()
        belongings = Belongings(page.fd, mark, directory.path)

        def new_keeper() -> Keeper:
            inherited = caller.inherited if caller is not None else None
            return Keeper(preload_of(spec, os.environ), inherited, start.notice.ignored, belongings, runtime)

        queued_stderr.rest()  # something may have been logged
        keeper = new_keeper()  # before anything has made a thread: then it is a fork, and not a new interpreter
        pulse = Pulse(runtime)
        health = Health(pulse, start.own.health_timeout)
        if start.own.health_port:
            from rdzv_launcher.run.health_server import HealthServer

            if (server := HealthServer.open(health, start.own.health_port)) is not None:
                at_end.callback(server.close)
        try:
            start.host.report_problems()
            with signals.raising(), importing_torch():
                rendezvous = create_rendezvous(start.host, start.entry, start.request, start.directories)
        except Interrupted as stop:  # before there were workers
            keeper.close()
            error = None
            if stop.sigval in start.notice.signals:
                error = AgentEnds(socket.gethostname(), os.getpid()).preempted(None, None).error
            if caller is not None:
                caller.ended(Ending(None, (), None, "", error, stop.sigval))
            elif error is not None:
                raise error from None
            logger.warning("%s: stopped", stop)
            return 128 + int(stop.sigval)
        except BaseException:
            keeper.close()
            raise
        return Launch(
            start,
            rendezvous,
            keeper,
            new_keeper,
            page,
            mark,
            directory,
            layout,
            event_log,
            inbox,
            signals,
            pulse,
            health,
            caller,
        ).run()


class Launch:
    """One agent's life, from its handler to its exit code."""

    def __init__(
        self,
        start: Preparation,
        rendezvous: Rendezvous,
        keeper: Keeper,
        new_keeper: Callable[[], Keeper],
        page: RoundPage,
        mark: str,
        directory: RunDirectory,
        layout: Layout,
        event_log: EventLog,
        inbox: Inbox,
        signals: StoppingSignals,
        pulse: Pulse,
        health: Health,
        caller: Caller | None = None,
    ) -> None:
        self._caller = caller
        self._spec = spec = start.spec
        self._rendezvous, handler = rendezvous, rendezvous.handler
        self._farewell = ""
        self._own_logs = directory.logs
        self._timeline = _timeline(start)
        figures = _figures(start) if start.own.health_port else None
        observers = [each for each in (self._timeline, figures) if each is not None]
        if observers:
            handler.tell_events(lambda event: _tell_all(observers, event))
        monitor = WorkerMonitor(Path(directory.pipes), self._wrote)
        on_first = None if self._timeline is None else self._wrote
        self._output = Output(spec, layout, monitor.attach, on_first, directory.ensure)
        self._barrier = {BARRIER: f"{directory.path}/barrier"} if spec.program.kind is Kind.PATH else {}
        on_request = start.own.worker_stacks or start.own.hang_timeout > 0
        self._stacks = NodeStacks(self._node, directory.path, on_request=on_request)
        self._stacks.log_to(self._output.root)
        self._tails = LogTails(self._node, self._output.files, monitor.kept)
        mark_children(mark)
        self._fence = Fence(
            handler.holding,
            page,
            Marked(mark),
            signal_below=lambda number: self._workers.signal_below(number),
            on_kill=lambda: self._workers.fenced(),
            runtime=SYSTEM,
        )
        self._workers = NodeWorkers(
            spec,
            keeper,
            new_keeper,
            self._fence,
            monitor,
            self._output,
            self._stacks,
            inbox,
            self._starts,
            SYSTEM,
            on_timer=lambda name, request: self._events.watchdog(name, request),
        )
        notice = start.notice
        self._notices = NodeNotices(
            spec.nproc,
            directory.path,
            start.request.min_nodes,
            notice.grace,
            inbox.put,
            lambda: None if notice.to_workers is None else self._workers.notify(notice.to_workers),
            handler.questions,
        )
        settings = Settings(
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
            hang_timeout=start.own.hang_timeout,
            retries=RetryLimits(start.own.job_restarts, start.own.crash_loop, start.own.restart_delay),
            identical=os.environ.get(_IDENTICAL) == "1",
        )
        self._events = AgentEvents(
            event_log, spec, start.request.backend, lambda: (self._loop.group, self._loop.decisions.restarts_used)
        )
        self._loop = AgentLoop(
            settings,
            rendezvous,
            self._workers,
            inbox,
            signals,
            SYSTEM,
            on_late=lambda why: self._stacks.store_of_peers(handler.questions, why),
            pulse=pulse,
            notices=self._notices,
            observers=[*observers, self._events] if event_log.wanted else observers,
        )
        if figures is not None:
            figures.publish(health, lambda: (self._loop.decisions, self._loop.group))
        health.tell_by(lambda: readiness(self._loop.decisions.stage, self._loop.group, handler.waits_for()))
        self._run_id = start.request.run_id
        self._hangs = NodeHangs(
            start.own.hang_timeout,
            spec.nproc,
            self._place,
            self._stacks,
            handler.questions,
            lambda generation, failure: inbox.put(events.Hung(generation, failure)),
        )
        if handler.questions is not None:
            handler.questions.answer_with(self._answer)

    def run(self) -> int:
        """Run the agent to its end, and say how it ended. Raises what ended it, if that says more than a code."""
        well = False
        try:
            end = self._loop.run()
            well = end.exit_code == 0 and end.error is None
            first = end.error.failure if isinstance(end.error, PeerFailed) else end.outcome.failure
            self._record(end, first)
            if self._caller is not None:
                self._caller.ended(self._ending(end, first))
                return end.exit_code
            return self._tell(end)
        finally:
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
        if logs != self._own_logs:
            return
        if well and self._output.was_shown:
            for each in filter(Path.is_dir, Path(logs).glob("*")):
                shutil.rmtree(each, ignore_errors=True)
        elif self._caller is None and not self._farewell and _has_logs(logs):
            say("rdzv-run", f"the workers' logs are in {logs} (--log-dir=DIR chooses another directory)")

    def _wrote(self, local_rank: int) -> None:
        """Note a worker's first line; called by the thread that has seen it."""
        if self._timeline is not None:
            self._timeline.wrote(local_rank, self._loop.group)

    def _starts(self, group: WorkerGroup, timer: Mapping[str, str]) -> Sequence[Start]:
        """What is started for a round; workers get the variables of the ``timer``, and those of all others here."""
        additions: Sequence[Addition] = (
            lambda group, worker, own: timer,
            lambda group, worker, own: self._rendezvous.worker_env(own),
            lambda group, worker, own: self._fence.environment,
            lambda group, worker, own: self._stacks.environment,
            lambda group, worker, own: self._barrier,
            lambda group, worker, own: self._hangs.environment(worker.global_rank),
            lambda group, worker, own: self._notices.environment(group, worker.local_rank, own),
            lambda group, worker, own: asked(own),  # the last: it goes by what the others have asked for
        )
        use_agent_store = self._rendezvous.handler.use_agent_store
        return prepare_starts(self._spec, group, self._output, use_agent_store, additions)

    def _place(self) -> Place:
        """This node's place in the job, for the watch for hangs. Any thread may ask."""
        group, stage = self._loop.group, self._loop.decisions.stage
        if group is None:
            return Place()
        works = stage in ("working", "barrier", "staying") and bool(group.pids)
        return Place(group.group_rank, group.group_world_size, group.generation, works, _workers_of(group))

    def _node(self) -> Node:
        """Who works here now, for those who ask for stacks. Any thread may ask."""
        group = self._loop.group
        host, agent = socket.gethostname(), os.getpid()
        if group is None:
            return Node(host, agent, self._run_id, own_stacks=self._stacks.own)
        return Node(host, agent, self._run_id, group.group_rank, _workers_of(group), self._stacks.own)

    def _answer(self, question: Question) -> Any:
        """Like ``questions.Answer``."""
        if question.arguments.get("of") not in (None, [socket.gethostname(), os.getpid()]):  # another node is meant
            return {}
        if question.kind == VITALS:
            return vitals(self._node(), self._loop.decisions)
        if question.kind == LOG:
            return self._tails.answer(question.arguments)
        by_kind = {NOTICE: self._notices.answer, STANDSTILL: self._hangs.answer, HANG: self._hangs.answer}
        return by_kind.get(question.kind, self._stacks.answer)(question)

    def _ending(self, end: steps.End, first: Failure | None) -> Ending:
        """The end as reported to the caller of this launch."""
        told = "" if first is None else describe(first)
        return Ending(self._loop.group, tuple(self._failed(first)), first, told, end.error, end.signal)

    def _failed(self, first: Failure | None) -> Iterator[WorkerFailure]:
        """The failures of this node's workers; ``first`` is the job's first failure."""
        for here in self._loop.failures:
            told = (
                first if first is not None and (first.global_rank, first.pid) == (here.global_rank, here.pid) else here
            )
            yield worker_failure(told, time.time(), self._workers.error_file(here.local_rank))

    def _tell(self, end: steps.End) -> int:
        if isinstance(end.error, PeerFailed):
            self._summarise(end.error.failure, (), end.error.why)
        elif end.error is not None:
            raise end.error
        elif end.signal is not None:
            logger.warning("got %s: the workers of this node were stopped", end.signal.name)
        elif end.outcome.failure is not None:
            self._summarise(end.outcome.failure, self._loop.failures, end.outcome.why)
            self._hand_to_scheduler(end.outcome.failure)
        return end.exit_code

    def _hand_to_scheduler(self, first: Failure) -> None:
        group, target = self._loop.group, os.environ.get(ERROR_FILE, "")
        if target and group is not None and first.node_rank == group.group_rank:
            hand_to_scheduler(self._workers.error_file(first.local_rank), first.exit_code, target)

    def _record(self, end: steps.End, first: Failure | None) -> None:
        """Record the end for handlers registered with torch's events; an error of ours also for a scheduler."""
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


def _timeline(start: Preparation) -> Recorder | None:
    """Open the timeline, if there is one. This comes after the keeper, a fork that must not have threads."""
    if not start.own.timeline:
        return None
    from rdzv_launcher.run.timeline import Recorder  # most launches do not need it

    return Recorder.open(start.own.timeline, start.request.run_id, start.request.backend)


def _tell_all(observers: Sequence[Recorder | AgentFigures], event: RoundEvent) -> None:
    for each in observers:
        each.saw(event)


def _figures(start: Preparation) -> AgentFigures:
    from rdzv_launcher.run.agent_metrics import AgentFigures  # most launches do not need it

    request = start.request
    return AgentFigures(request.max_nodes, start.spec.max_restarts, run=request.run_id, backend=request.backend)


def _workers_of(group: WorkerGroup) -> tuple[Worker, ...]:
    """The running workers, by their pids and their ranks."""
    return workers_in(group.pids, {worker.local_rank: worker.global_rank for worker in group.workers})


def _has_logs(directory: str) -> bool:
    return any(name.endswith(".log") for _, _, names in os.walk(directory) for name in names)
