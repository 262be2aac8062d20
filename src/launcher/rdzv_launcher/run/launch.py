"""One launch: request, handler, torch's agent, exit code.

torch's ``launch_agent`` does the same, but hides what has to be set here: the exit barrier's
time-out, the signals, how the end is told. What torch's ``LaunchConfig`` holds is handed on to
``WorkerSpec`` and the agent by name, so a setting that a later torch adds is passed on too.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import inspect
import logging
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch.distributed.elastic import events, metrics
from torch.distributed.elastic.agent.server.api import RunResult, WorkerSpec
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure, record
from torch.distributed.launcher.api import LaunchConfig

from rdzv_launcher.console import say
from rdzv_launcher.run import signals
from rdzv_launcher.run.agent import Agent
from rdzv_launcher.run.fence.fence import Fence
from rdzv_launcher.run.fence.run_directory import RunDirectory
from rdzv_launcher.run.monitor import WorkerMonitor
from rdzv_launcher.run.preparation import STEPS, Preparation
from rdzv_launcher.run.stderr_pipes import last_lines
from rdzv_launcher.run.summary import describe, failure_summary
from rdzv_launcher.run.torch_lines import failures_said_once
from rdzv_launcher.run.worker_logs import WorkerLogs
from rdzv_plugins.assemble.create import create_handler
from rdzv_plugins.assemble.hosted_handler import HostedHandler
from rdzv_plugins.errors import PeerFailed
from rdzv_plugins.interfaces import Failure, Outcome, Request

logger = logging.getLogger(__name__)

_REPORT_TIMEOUT_S = 5.0


def launch(args: argparse.Namespace) -> int:
    """Run the job of parsed ``args`` on this node; returns the exit code. Raises ``RdzvError`` if it cannot."""
    start = Preparation(args)
    for step in STEPS:
        step(start)
    request = start.request
    with RunDirectory() as directory:
        config, entrypoint, arguments = start.torch_config(directory.logs)
        start.host.report_problems()
        try:
            signals.install(config.signals_to_handle)
            handler = create_handler(start.host, start.entry, request)
            timeout = args.exit_barrier_timeout
            return Launch(request, handler, config, entrypoint, arguments, timeout, directory).run()
        except SignalException as stop:  # before there were workers
            logger.warning("%s: stopped", stop)
            return 128 + int(stop.sigval)


class Launch:
    """One agent's life, from its handler to its exit code."""

    def __init__(
        self,
        request: Request,
        handler: HostedHandler,
        config: LaunchConfig,
        entrypoint: Callable[..., Any] | str,
        arguments: list[str],
        exit_barrier_timeout: float,
        directory: RunDirectory,
    ) -> None:
        self._handler = handler
        self._config = config
        self._farewell = ""
        self._name = entrypoint if isinstance(entrypoint, str) else request.entrypoint[0]
        self._monitor = WorkerMonitor(Path(directory.pipes), self._note_failure)
        capture = self._monitor if isinstance(entrypoint, str) else None
        self._fence = Fence(handler.holding, directory.path, on_kill=self._monitor.ignore_exits)
        signals.at_another(self._fence.kill_at_once)
        logs = WorkerLogs(config.logs_specs, capture, self._worker_env)
        spec = WorkerSpec(
            **_by_name(WorkerSpec, config)
            | {
                "local_world_size": config.nproc_per_node,
                "entrypoint": entrypoint,
                "args": tuple(arguments),
                "rdzv_handler": handler,
            }
        )
        self._agent = Agent(
            handler=handler,
            monitor=self._monitor,
            fence=self._fence,
            **_by_name(LocalElasticAgent, config)
            | {"spec": spec, "logs_specs": logs, "exit_barrier_timeout": exit_barrier_timeout},
        )

    def run(self) -> int:
        """Run the agent to its end, tell the other nodes how it ended, and return the exit code."""
        outcome = Outcome("lost", f"{self._who()} had an error")
        try:
            metrics.initialize_metrics(metrics.MetricsConfig(self._config.metrics_cfg))
            # torch's record() copies the first worker's error file to where a scheduler asked for it
            result: RunResult | None = record(self._run_agent)()
            self._handler.stay()  # here a signal is heard
            outcome = Outcome("done")
            return 0 if result is not None else self._spare()
        except ChildFailedError as error:
            failure = self._first_failure(error)
            outcome = Outcome("failed", describe(failure), failure)
            self._summarise(failure, {rank: own.exitcode for rank, own in error.failures.items()})
            return failure.process_exit_code
        except PeerFailed as error:
            outcome = Outcome("lost", str(error))
            self._summarise(error.failure, {})
            return error.exit_code
        except SignalException as stop:
            signals.ignore_all()
            outcome = Outcome("lost", f"{self._who()} got {stop.sigval.name}")
            if self._agent.kill_workers():
                logger.warning("got %s: the workers of this node were stopped", stop.sigval.name)
            return 128 + int(stop.sigval)
        except Exception as error:
            outcome = Outcome("lost", f"{self._who()} ended: {error}")
            self._record_event(self._agent.get_event_failed())
            raise
        finally:
            signals.ignore_all()
            with contextlib.ExitStack() as steps:  # in reverse order, each one even if another fails
                steps.callback(self._say_farewell)
                steps.callback(self._leave, outcome)
                steps.callback(self._monitor.close)
                steps.callback(self._agent.kill_workers)

    def _worker_env(self, env: dict[str, str]) -> dict[str, str]:
        return signals.for_workers() | self._handler.worker_env(env) | self._fence.environment

    def _leave(self, outcome: Outcome) -> None:
        try:
            self._handler.leave(outcome)
            self._handler.shutdown()
        except Exception as error:  # the job is over here, and its exit code is known
            logger.warning("could not tell the other nodes how this one ended: %s", error)

    def _say_farewell(self) -> None:
        if self._farewell:  # below everything that torch and the workers still printed
            say("rdzv-run", self._farewell)

    def _run_agent(self) -> RunResult | None:
        with failures_said_once(lambda: self._monitor.has_reported):
            result: RunResult | None = self._agent.run()
        if result is not None:
            self._record_event(self._agent.get_event_succeeded())
            if result.is_failed():
                raise ChildFailedError(name=self._name, failures=result.failures)
        return result

    def _who(self) -> str:
        rank = self._agent.worker_group.group_rank
        return f"the agent on {socket.gethostname()} (pid {os.getpid()}{'' if rank is None else f', node {rank}'})"

    def _spare(self) -> int:
        logger.info("run %s is done: this node was a spare, and has not run its script", self._handler.get_run_id())
        return 0

    def _record_event(self, event: events.Event) -> None:
        events.record(event, self._config.event_log_handler)

    def _note_failure(self, local_rank: int, pid: int, exit_code: int, stderr: tuple[str, ...]) -> None:
        """Called by the monitor the moment the first worker of a round has failed."""
        failure = self._failure(local_rank, pid, exit_code, stderr)
        logger.error("%s", describe(failure))
        try:
            self._handler.note_failure(failure)
        except Exception as error:  # the endpoint may be gone with the node that failed: then this is our own view
            logger.debug("could not record the failure: %s", error)

    def _failure(self, local_rank: int, pid: int, exit_code: int, stderr: tuple[str, ...]) -> Failure:
        group = self._agent.worker_group
        return Failure(
            node_rank=group.group_rank if group.group_rank is not None else -1,
            host=socket.gethostname(),
            global_rank=group.workers[local_rank].global_rank,
            local_rank=local_rank,
            pid=pid,
            exit_code=exit_code,
            stderr=stderr,
        )

    def _first_failure(self, error: ChildFailedError) -> Failure:
        """The first failure of the round over all nodes; this node's own when the others cannot be asked."""
        _, own = error.get_first_failure()
        tail = self._monitor.tail(own.local_rank) or _recorded(own)
        mine = self._failure(own.local_rank, own.pid, own.exitcode, tail)
        try:
            if not self._monitor.wait_report(_REPORT_TIMEOUT_S):
                self._handler.note_failure(mine)
            return self._handler.first_failure() or mine
        except Exception as problem:  # the store may have gone with the failed node
            logger.debug("could not ask for the first failure: %s", problem)
            return mine

    def _summarise(self, first: Failure, here: dict[int, int]) -> None:
        group, config = self._agent.worker_group, self._config
        logs = str(config.logs_specs.root_log_dir)
        hint = "" if config.max_restarts else " (--max-restarts=N restarts all workers)"
        self._farewell = failure_summary(
            first,
            here,
            node_rank=group.group_rank,
            restarts=f"restarts used on this node: {self._agent.restarts_used} of {config.max_restarts}{hint}",
            log_dir=logs if _has_logs(logs) else "",
        )


def _recorded(failure: ProcessFailure) -> tuple[str, ...]:
    """What torch's error file says of a failure: with --run-path, where stderr is not captured, the traceback's end."""
    message = failure.error_file_data.get("message", "")
    if isinstance(message, dict):
        message = message.get("extraInfo", {}).get("py_callstack", message.get("message", ""))
    return last_lines(str(message).encode()) if message != "<NONE>" else ()


def _has_logs(directory: str) -> bool:
    return any(name.endswith(".log") for _, _, names in os.walk(directory) for name in names)


def _by_name(target: type, config: LaunchConfig) -> dict[str, Any]:
    """The fields of ``config`` that ``target``'s constructor takes under the same name."""
    accepted = inspect.signature(target).parameters
    return {f.name: getattr(config, f.name) for f in dataclasses.fields(config) if f.name in accepted}
