"""The one decision of torch's agent that has to be another: whether failed workers use up a restart.

In torch the workers of the survivors fail with the peers that a lost node takes away, and each failure uses up
``--max-restarts``: with its default of 0 a job cannot survive the loss of a node at all. Here the agent first asks
the rendezvous whether a node was lost; then it is a change of membership, which torch does not count either.

The loop is written after ``SimpleElasticAgent._invoke_run`` of torch 2.13, where the decision is in the
middle of the method; tests/launcher/test_agent_loop.py fails when that method of the installed torch changes.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from torch.distributed.elastic.agent.server.api import DEFAULT_ROLE, RunResult, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.metrics import put_metric

logger = logging.getLogger(__name__)


class LostNodesCostNothing(LocalElasticAgent):  # type: ignore[misc]
    """torch's agent; ``peer_lost`` is asked before a failure is counted."""

    def __init__(self, *, peer_lost: Callable[[], bool], **torch_arguments: Any) -> None:
        super().__init__(**torch_arguments)
        self._peer_lost = peer_lost

    def _invoke_run(self, role: str = DEFAULT_ROLE) -> RunResult:
        group = self._worker_group
        spec = group.spec
        self._initialize_workers(group)
        while True:
            time.sleep(spec.monitor_interval)
            result: RunResult = self._monitor_workers(group)
            state = group.state = result.state
            put_metric(f"workers.{spec.role}.remaining_restarts", self._remaining_restarts)
            put_metric(f"workers.{spec.role}.{state.name.lower()}", 1)
            if state == WorkerState.SUCCEEDED:
                self._exit_barrier()
                return result
            if state in (WorkerState.UNHEALTHY, WorkerState.FAILED):
                if not self._goes_on():
                    self._stop_workers(group)
                    group.state = WorkerState.FAILED
                    return result
                self._restart_workers(group)
            elif state == WorkerState.HEALTHY:
                if spec.rdzv_handler.num_nodes_waiting() > 0:
                    self._restart_workers(group)  # a change of membership: not counted
            else:
                raise RuntimeError(f"the workers are in state {state.name}")

    def _goes_on(self) -> bool:
        """Whether to restart the workers after a failure. Uses up a restart if the failure was their own."""
        if self._peer_lost():
            logger.info("the workers of this node failed with a node that was lost: this uses up no restart")
            return True
        if self._remaining_restarts <= 0:
            return False
        self._remaining_restarts -= 1
        used = self._worker_group.spec.max_restarts - self._remaining_restarts
        logger.info("restarting the workers: restart %d of %d", used, self._worker_group.spec.max_restarts)
        return True
