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
from rdzv_launcher.run.agent.decisions import Decisions
from rdzv_launcher.run.agent.loop import Observer
from rdzv_launcher.run.workers.failures import WorkerFailure
from rdzv_launcher.run.workers.spec import WorkersSpec
from rdzv_launcher.run.workers.worker_group import Worker, WorkerGroup
from rdzv_plugins.errors import UsageError

_NAME = "torchelastic.worker.status."


class AgentEvents(Observer):
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
        """A rendezvous begins."""
        if isinstance(step, steps.Join):
            self._joins = time.monotonic()

    def heard(self, event: events.Event, group: WorkerGroup | None) -> None:
        """A rendezvous is complete."""
        self._group = group
        if isinstance(event, events.Joined):
            self._status("RENDEZVOUS", self._of_group(), duration=1000 * (time.monotonic() - self._joins))

    def decided(self, event: events.Event, decisions: Decisions) -> None:
        """Restarts may have been used."""
        self._restarts = decisions.restarts_used

    def started(self, group: WorkerGroup) -> None:
        """The workers are running."""
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
        self._status(state, self._of_group(), error=None if end.error is None else str(end.error))

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
            self._of_group() | more,
            source="WORKER",
            rank=worker.global_rank,
            pid=str(group.pids.get(worker.local_rank, "")),
            error=None if failure is None else json.dumps(failure.error_file_data),
        )

    def watchdog(self, name: str, request: Any) -> None:
        """Like ``log_event`` of torch's ``FileTimerServer``; ``request`` is a ``FileTimerRequest`` or None."""
        said = {"watchdog_event": name}
        if request is not None:
            said |= {
                each: str(getattr(request, each)) for each in ("worker_pid", "scope_id", "expiration_time", "signal")
            }
        self._record(name, "RUNNING", said)

    def _status(self, state: str, more: dict[str, Any], *, duration: float | None = None, **rest: Any) -> None:
        self._record(f"{_NAME}{state}", state, more, {"duration_ms": duration}, **rest)

    def _of_group(self) -> dict[str, Any]:
        group = self._group
        return {
            "group_world_size": None if group is None else group.group_world_size,
            "entry_point": os.path.basename(self._spec.program.command(0)[0]),
        }

    def _record(
        self,
        name: str,
        state: str,
        more: dict[str, Any],
        also: Mapping[str, Any] | None = None,
        *,
        source: str = "AGENT",
        rank: int | None = None,
        pid: str | None = None,
        error: str | None = None,
    ) -> None:
        from torch.distributed.elastic.events import Event, EventSource, record

        group = self._group
        metadata = {
            "run_id": self._spec.run_id,
            "global_rank": rank,
            "group_rank": None if group is None else group.group_rank,
            "worker_id": pid,
            "role": self._spec.role,
            "hostname": socket.gethostname(),
            "state": state,
            "total_run_time": int(time.monotonic() - self._since),
            "rdzv_backend": self._backend,
            "raw_error": error,
            "metadata": json.dumps(more),
            "agent_restarts": self._restarts,
            **(also or {}),
        }
        record(Event(name, EventSource(source), metadata=metadata), self._spec.event_log_handler)
