"""What handlers of torch's events hear from this agent (--event-log-handler), in the form of torch's own agent.

They hear of each rendezvous of a launch, each start of workers, the ends of the workers of the last round, the agent's
own end, and what the watchdog of the file timer does. Source of the names and fields: ``SimpleElasticAgent`` and
``LocalElasticAgent`` of torch 2.13. An agent whose workers have failed is called FAILED; torch says SUCCEEDED, as its
agent was able to report the failure.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterable, Mapping
from typing import Any

from rdzv_launcher.run.agent import events, steps
from rdzv_launcher.run.agent.loop import AgentObserver
from rdzv_launcher.run.agent.state_machine import AgentStateMachine
from rdzv_launcher.run.workers.failures import WorkerFailure
from rdzv_launcher.run.workers.spec import WorkersSpec
from rdzv_launcher.run.workers.worker_group import Worker, WorkerGroup
from rdzv_plugins.errors import UsageError


class AgentEvents(AgentObserver):
    """Tells torch's event handlers what the agent does. One per agent. ``watchdog`` may be called by any thread."""

    def __init__(self, spec: WorkersSpec, backend: str) -> None:
        """Raises ``UsageError`` if torch does not know the handler of ``spec``."""
        from torch.distributed.elastic.events import handlers

        self._spec, self._backend = spec, backend
        self._since = self._joins = time.monotonic()
        self._group: WorkerGroup | None = None
        self._restarts = 0
        try:
            handlers.get_logging_handler(spec.event_log_handler)
        except KeyError:
            known = ", ".join(sorted(handlers._log_handlers))
            raise UsageError(
                f"--event-log-handler={spec.event_log_handler}: torch knows no such handler",
                remedy=f"It knows {known}.",
            ) from None

    def takes(self, step: steps.Step, group: WorkerGroup | None) -> None:
        if isinstance(step, steps.Join):
            self._joins = time.monotonic()

    def heard(self, event: events.Event, group: WorkerGroup | None) -> None:
        self._group = group
        if isinstance(event, events.Joined):
            self._status("RENDEZVOUS", duration_ms=1000 * (time.monotonic() - self._joins))

    def decided(self, event: events.Event, decisions: AgentStateMachine) -> None:
        self._restarts = decisions.restarts_used

    def started(self, group: WorkerGroup) -> None:
        self._group = group
        for worker in group.workers:
            self._worker("START", group, worker)

    def ended(self, end: steps.End, failures: Iterable[WorkerFailure]) -> None:
        """How this node ends; ``failures`` are those of its own workers."""
        group = self._group
        failed = {each.global_rank: each for each in failures}
        if group is not None and (failed or end.exit_code == 0):
            for worker in group.workers:
                failure = failed.get(worker.global_rank)
                state = "SUCCEEDED" if end.exit_code == 0 else "TERMINATED" if failure is None else "FAILED"
                self._worker(state, group, worker, failure)
        state = "SUCCEEDED" if end.exit_code == 0 else "FAILED"
        self._status(state, raw_error=None if end.error is None else str(end.error))

    def _worker(self, state: str, group: WorkerGroup, worker: Worker, failure: WorkerFailure | None = None) -> None:
        more = {  # each a list of one, as in torch
            "local_rank": [worker.local_rank],
            "role_rank": [worker.role_rank],
            "role_world_size": [worker.role_world_size],
            "exit_code": [None if failure is None else failure.exitcode],
            "worker_pid": [None if failure is None else failure.pid],
        }
        self._status(
            state,
            more,
            source="WORKER",
            global_rank=worker.global_rank,
            worker_id=str(group.pids.get(worker.local_rank, "")),
            raw_error=None if failure is None else json.dumps(failure.error_file_data),
        )

    def watchdog(self, name: str, request: Any) -> None:
        """Like ``log_event`` of torch's ``FileTimerServer``; ``request`` is a ``FileTimerRequest`` or None."""
        said = {"watchdog_event": name}
        if request is not None:
            names = "worker_pid", "scope_id", "expiration_time", "signal"
            said |= {each: str(getattr(request, each)) for each in names}
        self._record(name, "RUNNING", said)

    def _status(self, state: str, more: Mapping[str, Any] | None = None, **fields: Any) -> None:
        group = self._group
        said = {
            "group_world_size": None if group is None else group.group_world_size,
            "entry_point": os.path.basename(self._spec.program.command(0)[0]),
            **(more or {}),
        }
        fields.setdefault("duration_ms", None)
        self._record(f"torchelastic.worker.status.{state}", state, said, **fields)

    def _record(self, name: str, state: str, said: Mapping[str, Any], *, source: str = "AGENT", **fields: Any) -> None:
        """``fields`` are further fields of an event, in place of what is here."""
        from torch.distributed.elastic.events import Event, EventSource, record

        group = self._group
        metadata = {
            "run_id": self._spec.run_id,
            "global_rank": None,
            "group_rank": None if group is None else group.group_rank,
            "worker_id": None,
            "role": self._spec.role,
            "hostname": socket.gethostname(),
            "state": state,
            "total_run_time": int(time.monotonic() - self._since),
            "rdzv_backend": self._backend,
            "raw_error": None,
            "metadata": json.dumps(said),
            "agent_restarts": self._restarts,
            **fields,
        }
        record(Event(name, EventSource(source), metadata=metadata), self._spec.event_log_handler)
