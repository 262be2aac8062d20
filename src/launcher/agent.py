"""torch's elastic agent with a monitor, an exit barrier that says whom it waits for, and rejoining."""

from __future__ import annotations

import logging
import signal
import sys
import time
from datetime import timedelta
from typing import Any

from torch.distributed import DistError, DistNetworkError
from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup
from torch.distributed.elastic.multiprocessing import SignalException

from launcher.agent_loop import LostNodesCostNothing
from launcher.monitor import WorkerMonitor
from rdzv_plugins.errors import EndpointLost, RendezvousFailed
from rdzv_plugins.host.create import HostedHandler

logger = logging.getLogger(__name__)

_BARRIER = "torchelastic/agent/terminal_state"
"""torch's key (agent/server/api.py): plain torchrun nodes of the same job use it too."""
_SLICE_S = 1.0
_REPORT_EVERY_S = 10.0


class Agent(LostNodesCostNothing):
    """Used by the main thread only."""

    def __init__(self, *, handler: HostedHandler, monitor: WorkerMonitor, **torch_arguments: Any) -> None:
        super().__init__(peer_lost=handler.peer_lost, **torch_arguments)
        self._handler = handler
        self._monitor = monitor
        self._rejoin = False

    @property
    def restarts_used(self) -> int:
        """How many of --max-restarts this node has used."""
        return int(self._worker_group.spec.max_restarts - self._remaining_restarts)

    @property
    def worker_group(self) -> WorkerGroup:
        """The workers of the current round."""
        return self._worker_group

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        started: dict[int, Any] = super()._start_workers(worker_group)
        self._monitor.watch(started)
        return started

    def _shutdown(self, death_sig: signal.Signals = signal.SIGTERM, *arguments: Any, **options: Any) -> None:
        self._monitor.ignore_exits()
        try:
            if isinstance(sys.exc_info()[1], SignalException):  # before the workers go: their peers fail with them
                self._note_leaving(death_sig)
            super()._shutdown(death_sig, *arguments, **options)
        except SignalException:  # a second signal: whoever sends it does not want to wait
            self.kill_workers()
            raise

    def _note_leaving(self, death_sig: signal.Signals) -> None:
        """Nothing may stand between a signal and the workers."""
        try:
            self._handler.note_leaving(f"it got {death_sig.name}")
        except SignalException:
            raise
        except Exception as error:
            logger.warning("could not tell the other nodes that this one leaves: %s", error)

    def kill_workers(self) -> None:
        """Last resort, when stopping them was interrupted: nothing that we started stays behind."""
        if self._pcontext is not None:
            self._pcontext.close(signal.SIGKILL, 5)

    def _invoke_run(self, *arguments: Any, **options: Any) -> RunResult:
        result = super()._invoke_run(*arguments, **options)
        while self._rejoin:  # this node was done, but another has to run again: so does this one
            self._rejoin = False
            self._stop_workers(self._worker_group)  # they have ended, their watchdog has not
            result = super()._invoke_run(*arguments, **options)
        return result

    def _rendezvous(self, worker_group: WorkerGroup) -> None:
        """Join a round, and another if that one is over while the ranks are exchanged."""
        while True:
            try:
                super()._rendezvous(worker_group)
                return
            except DistError as error:
                if not (self._handler.peer_lost() or self._handler.must_rejoin()):
                    raise RendezvousFailed(
                        f"run {self._handler.get_run_id()!r}: a node of the round has not started its workers: {error}",
                        remedy="The key names what was waited for: role_info/N comes from node N, assigned_ranks/N "
                        "from node 0. Look at that node's output: it may hang in a plug-in's hook or a file system.",
                    ) from error
                logger.info("the round was over while ranks were exchanged (%s): joining again", error)

    def _exit_barrier(self) -> None:
        """Wait for the workers of all nodes, up to the time-out. Unlike torch's, a failure elsewhere ends it."""
        group = self._worker_group
        nodes, timeout, start = group.group_world_size, self._exit_barrier_timeout, time.monotonic()
        self._in_exit_barrier = True
        try:
            self._handler.note_done()
            self._store.set(f"{_BARRIER}/node/{group.group_rank}", "")
            if self._store.add(f"{_BARRIER}/num_members", 1) == nodes:
                self._store.set(f"{_BARRIER}/last_member", "")
            next_report = start + _REPORT_EVERY_S
            while not self._all_done():
                if self._handler.must_rejoin():
                    logger.info("another node restarts its workers: this node's workers run again")
                    self._rejoin = True
                    return
                now = time.monotonic()
                if now >= min(next_report, start + timeout):
                    missing = [r for r in range(nodes) if not self._store.check([f"{_BARRIER}/node/{r}"])]
                    names = ", ".join(map(str, missing)) or "unknown (plain torchrun nodes do not say)"
                    if now >= start + timeout:
                        logger.warning(
                            "workers of node rank %s were not done %g s after this node's; leaving without them",
                            names,
                            timeout,
                        )
                        return
                    logger.info("this node is done; waiting for node rank %s (%.0f s)", names, now - start)
                    next_report = now + _REPORT_EVERY_S
        except (DistNetworkError, EndpointLost) as error:
            if self._handler.peer_lost():  # the one whose agent serves the store
                self._rejoin = True
                return
            logger.warning("this node is done, but could not wait for the others: %s", error)
        finally:
            self._in_exit_barrier = False

    def _all_done(self) -> bool:
        """True once the last node is in; waits up to a second for it. Raises what ended the job elsewhere."""
        try:
            self._store.wait([f"{_BARRIER}/last_member"], timedelta(seconds=_SLICE_S))
            return True
        except DistNetworkError:
            raise
        except RuntimeError:  # not yet: TCPStore says so by DistStoreError, FileStore by its base class
            self._handler.raise_if_ended()
            return False
