"""The failures of a generation of workers: telling the others of those on this node, and finding the first over all."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rdzv_launcher.run.agent.events import CauseFound, Event, RestartAllowed, RestartRefused, WorkerEnded
from rdzv_launcher.run.agent.restarts import Retries
from rdzv_launcher.run.workers.failures import describe
from rdzv_launcher.run.workers.worker_group import WorkerGroup
from rdzv_plugins.errors import NodeLost, is_signal
from rdzv_plugins.interfaces import Failure, RendezvousHandler
from rdzv_plugins.runtime import Runtime

if TYPE_CHECKING:
    from rdzv_launcher.run.agent.node_workers import NodeWorkers
    from rdzv_plugins.threads import OwnThread

logger = logging.getLogger(__name__)

_REPORT_TIMEOUT_S = 5.0


class Failures:
    """One agent's failures, of its newest generation. For the agent's main thread."""

    def __init__(
        self, handler: RendezvousHandler, workers: NodeWorkers, retries: Retries, hang_timeout: float, runtime: Runtime
    ) -> None:
        """A hang is only found once the job has stood still for ``hang_timeout`` seconds."""
        self._handler, self._workers = handler, workers
        self._retries, self._hang_timeout = retries, hang_timeout
        self._runtime, self._host = runtime, runtime.gethostname()
        self._group: WorkerGroup | None = None
        self._ended: dict[int, Failure] = {}
        self._hang: Failure | None = None
        """The worker that was different when the generation hung."""
        self._report: OwnThread | None = None
        self._started_at = 0.0

    @property
    def ended(self) -> Sequence[Failure]:
        """The workers that failed without being told to stop, in the order in which they ended."""
        return tuple(self._ended.values())

    def forget(self) -> None:
        """A new generation is about to be started: what is known about the last one no longer matters."""
        self._ended, self._report, self._hang = {}, None, None

    def started(self, group: WorkerGroup, now: float) -> None:
        """The workers of ``group``, which has their pids, are running from ``now`` (monotonic, in seconds) on."""
        self._group, self._started_at = group, now

    def note(self, event: Event) -> None:
        """Record something that happened while workers ran that were not told to stop."""
        if not isinstance(event, WorkerEnded) or event.exit_code == 0 or self._group is None:
            return
        if event.generation == self._group.generation:
            self._ended[event.local_rank] = self._group.failure(event.local_rank, event.exit_code, host=self._host)

    def tell(self, local_rank: int, exit_code: int) -> None:
        """Tell the others that this worker has failed, the first one here. Does not wait for anybody."""
        self._tell(self._here(local_rank, exit_code))

    def tell_hang(self, failure: Failure) -> None:
        """Tell the others that the job hangs. Does not wait for anybody."""
        self._hang = failure
        self._tell(failure)

    def _tell(self, failure: Failure) -> None:
        """Runs on a thread of its own, because it uses the network and the workers must be stopped now."""
        logger.error("%s", describe(failure))

        def tell() -> None:
            try:
                self._handler.note_failure(failure)
            except Exception as error:  # the endpoint may be gone with the node that failed: then this is our own view
                logger.debug("could not record the failure: %s", error)

        self._report = self._runtime.Thread(target=tell, name="rdzv-report-failure")
        self._report.start()

    def wait_told(self) -> None:
        """Wait until the others have been told: it is about the round of these workers, not the next one."""
        if self._report is not None:
            self._report.join(_REPORT_TIMEOUT_S)

    def find_cause(self, local_rank: int, exit_code: int) -> CauseFound:
        """Find the first failure over all nodes. Asks the others; raises ``NodeLost`` if the cause is a lost node."""
        if lost := self._handler.lost_peers():
            raise NodeLost(
                f"run {self._handler.get_run_id()!r}: {'; '.join(lost)}. The workers here failed with it",
                remedy="Look at the output of that node. With --max-restarts=N the others wait for one in its place.",
            )
        first = self._first(local_rank, exit_code)
        return CauseFound(first, describe(first))

    def count_restart(self, local_rank: int, exit_code: int) -> RestartAllowed | RestartRefused:
        """Whether the workers may be restarted, as far as the job is concerned. Asks the others."""
        first, ran = self._first(local_rank, exit_code), self._runtime.monotonic() - self._started_at
        if first.hang:  # nobody made progress in that time
            ran = max(0.0, ran - self._hang_timeout)
        return self._retries.decide(first, ran)

    def _here(self, local_rank: int, exit_code: int) -> Failure:
        assert self._group is not None
        if self._hang is not None:
            return self._hang
        stderr, cause = self._workers.tail(local_rank), self._workers.cause(local_rank, exit_code)
        return self._group.failure(local_rank, exit_code, host=self._host, stderr=stderr, cause=cause)

    def _first(self, local_rank: int, exit_code: int) -> Failure:
        """The first failure over all nodes; this node's own if the others cannot be asked."""
        first = self._here(local_rank, exit_code)
        try:
            self.wait_told()
            if self._report is None:
                self._handler.note_failure(first)
            first = self._handler.first_failure() or first
        except Exception as error:  # the store may have gone with the failed node
            if is_signal(error):
                raise
            logger.debug("could not ask for the first failure: %s", error)
        return first
