"""torch's elastic agent with a monitor, an exit barrier that says whom it waits for, and rejoining."""

from __future__ import annotations

import logging
import signal
import sys
import threading
import time
from datetime import timedelta
from typing import Any

from torch.distributed import DistError, DistNetworkError
from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup
from torch.distributed.elastic.multiprocessing import SignalException

from rdzv_launcher.run import signals
from rdzv_launcher.run.agent_loop import LostNodesCostNothing
from rdzv_launcher.run.fence.fence import Fence
from rdzv_launcher.run.monitor import WorkerMonitor
from rdzv_plugins.assemble.hosted_handler import HostedHandler
from rdzv_plugins.errors import EndpointLost, NodeLost, RendezvousFailed
from rdzv_plugins.reporting import EVERY_S, Reporting
from rdzv_plugins.rounds import exit_barrier
from rdzv_plugins.rounds.joining_again import must_join_again

logger = logging.getLogger(__name__)

_SLICE_S = 1.0
_HINT_S = 2.0
"""Workers that end when they are told to have mostly done so by then."""


class Agent(LostNodesCostNothing):
    """Used by the main thread only."""

    def __init__(self, *, handler: HostedHandler, monitor: WorkerMonitor, fence: Fence, **torch_arguments: Any) -> None:
        super().__init__(peer_lost=handler.peer_lost, **torch_arguments)
        self._handler = handler
        self._monitor = monitor
        self._fence = fence
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
        with signals.deferred():  # torch knows its workers when it has started all of them
            self._fence.starting()
            try:
                started: dict[int, Any] = super()._start_workers(worker_group)
            except BaseException:
                self._fence.kill()
                raise
            self._fence.started(started.values())
            self._monitor.watch(started)
        return started

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        signals.raise_arrived()
        return super()._monitor_workers(worker_group)

    def _shutdown(self, death_sig: signal.Signals = signal.SIGTERM, timeout: int = 30) -> None:
        self._monitor.ignore_exits()
        deadline = time.monotonic() + timeout
        hint = threading.Timer(
            _HINT_S,
            logger.warning,
            (
                "the workers of this node have not ended yet: after %d s they are killed, by a second signal at once",
                timeout,
            ),
        )
        hint.daemon = True
        try:
            may_act = self._fence.stopping()
            if isinstance(sys.exc_info()[1], SignalException):  # before the workers go: their peers fail with them
                self._note_leaving(death_sig)
                hint.start()
            if not may_act:
                death_sig = signal.SIGKILL
            super()._shutdown(death_sig, timeout)
            self._fence.stopped(death_sig, deadline)
        except SignalException:  # a second signal: whoever sends it does not want to wait
            self.kill_workers()
            raise
        finally:
            hint.cancel()

    def _note_leaving(self, death_sig: signal.Signals) -> None:
        """Tell the others about a signal; no error may stand between it and the workers."""
        try:
            self._handler.note_leaving(f"it got {death_sig.name}")
        except SignalException:
            raise
        except Exception as error:
            logger.warning("could not tell the other nodes that this one leaves: %s", error)

    def kill_workers(self) -> bool:
        """Kill all that this agent has started, also when stopping was interrupted. False if anything is left.

        The pids of what does not end are logged.
        """
        if self._pcontext is not None:
            self._pcontext.close(signal.SIGKILL, 5)
        left = self._fence.close()
        if left:
            logger.error("processes that the workers of this node have started do not end: %s", left)
        return not left

    def _invoke_run(self, *arguments: Any, **options: Any) -> RunResult:
        try:
            result = super()._invoke_run(*arguments, **options)
            while self._rejoin:  # this node was done, but another has to run again: so does this one
                self._rejoin = False
                self._stop_workers(self._worker_group)  # they have ended, their watchdog has not
                result = super()._invoke_run(*arguments, **options)
            return result
        except SignalException:
            raise
        except Exception:
            # torch's metrics answer a signal in their first instruction by an UnboundLocalError of their own
            signals.raise_arrived()
            raise

    def _goes_on(self) -> bool:
        if super()._goes_on():
            return True
        if lost := self._handler.lost_peers():
            raise NodeLost(
                f"run {self._handler.get_run_id()!r}: {'; '.join(lost)}. The workers here failed with it",
                remedy="Look at the output of that node. With --max-restarts=N the others wait for one in its place.",
            )
        return False

    def _rendezvous(self, worker_group: WorkerGroup) -> None:
        """Join a round, and another if that one is over while the ranks are exchanged."""
        while True:
            try:
                super()._rendezvous(worker_group)
                return
            except DistError as error:
                if not must_join_again(self._handler):
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
            self._store.set(exit_barrier.node_key(group.group_rank), "")
            if self._store.add(exit_barrier.ARRIVALS, 1) == nodes:
                self._store.set(exit_barrier.LAST, "")
            reporting = Reporting(grows=True)
            while not self._all_done():
                if self._handler.must_rejoin():
                    logger.info("another node restarts its workers: this node's workers run again")
                    self._rejoin = True
                    return
                now = time.monotonic()
                if reporting.is_due() or now >= start + timeout:
                    missing = [r for r in range(nodes) if not self._store.check([exit_barrier.node_key(r)])]
                    names = ", ".join(map(str, missing)) or "unknown (plain torchrun nodes do not say)"
                    if now >= start + timeout:
                        if not self._handler.working_peers():  # none that is known to live
                            logger.warning(
                                "workers of node rank %s were not done %g s after this node's; leaving without them",
                                names,
                                timeout,
                            )
                            return
                        timeout = now - start + EVERY_S
                    logger.info("this node is done; waiting for node rank %s (%.0f s)", names, now - start)
        except (DistNetworkError, EndpointLost) as error:
            if must_join_again(self._handler):  # the one whose agent serves the store
                logger.info("the round was over in the exit barrier (%s): this node's workers run again", error)
                self._rejoin = True
                return
            logger.warning("this node is done, but could not wait for the others: %s", error)
        finally:
            self._in_exit_barrier = False

    def _all_done(self) -> bool:
        """True once the last node is in; waits up to a second for it. Raises what ended the job elsewhere."""
        try:
            self._store.wait([exit_barrier.LAST], timedelta(seconds=_SLICE_S))
            return True
        except DistNetworkError:
            raise
        except RuntimeError:  # not yet: TCPStore says so by DistStoreError, FileStore by its base class
            self._handler.raise_if_ended()
            return False
